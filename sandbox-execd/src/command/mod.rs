//! Commands, in the foreground and in the background. Each is one of the agent's, under the same id, and runs on whoever
//! reads it.

mod events;
mod log;
mod order;
mod outcome;
mod table;

use std::{
    fs::File,
    io::Read,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::{StatusCode, header::HeaderValue};
use sandbox_core::{ControlRequest, ErrorKind, ExecEvent, ExecExit, ExecStream, SandboxError, SessionControl};
use sandbox_protocol::methods::{self, ExecInfo, ExecList, ExecSignal, ExecStart, ExecWait, ExecWaited, Nothing};
use serde_json::{Value, json};

use crate::{
    execd::{Execd, expand, new_id},
    http::{self, Answer, Query, Refusal, Request},
};
use order::Order;
use outcome::Told;
use table::{Command, End};

pub(crate) use events::{Events, Form, Stream, now_ms};
pub(crate) use order::folder;
pub(crate) use outcome::told;
pub(crate) use table::Commands;

/// How often a client hears that a command still runs.
const PING_INTERVAL: Duration = Duration::from_secs(3);

/// The longest time for which the first events may be asked to wait for others.
const GATHER_LIMIT: Duration = Duration::from_secs(1);

/// How long SIGTERM has before SIGKILL when a command is interrupted.
const INTERRUPT_GRACE_S: f64 = 3.0;

/// How long a command that is interrupted may take to start, and how often it is looked whether it has.
const STARTS_WITHIN: Duration = Duration::from_secs(2);
const STARTS_PAUSE: Duration = Duration::from_millis(2);

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// Input is read in pieces of this size.
const INPUT_BYTES: usize = 64 * 1024;

const CURSOR_HEADER: &str = "EXECD-COMMANDS-TAIL-CURSOR";

/// A time in the form of the API.
fn time(ms: u64) -> String {
    let time = std::time::UNIX_EPOCH + Duration::from_millis(ms);
    humantime::format_rfc3339_millis(time).to_string()
}

impl Execd {
    pub(crate) async fn run_command(self: &Arc<Self>, request: Request) -> Answer {
        let order: Order = http::read_json(request.into_body()).await?;
        let mut prepared = order.prepare(self)?;
        let input = match order.stdin_path.is_empty() {
            true => None,
            false => Some(open_input(&order.stdin_path).await?),
        };
        let id = new_id();
        prepared.request.exec_id.clone_from(&id);
        let command = Command::new(&id, &order.command, order.background, now_ms());
        let start = ExecStart { request: prepared.request, detached: true };
        let (_, stream) = self.client.exec_start(start).await?;
        self.commands.add(&command);
        if let Some(input) = input {
            tokio::spawn(feed(input, stream.control()));
        }
        let (pieces, waiting) = http::pieces();
        let form = if order.bytes { Form::Bytes } else { Form::Text };
        let events = Events::new(pieces, form);
        let (execd, program) = (self.clone(), prepared.program);
        if order.background {
            tokio::spawn(async move { execd.collect(stream, command, &program).await });
            tokio::spawn(async move {
                events.begin(&id).await;
                // It is submitted, no more.
                events.complete(0).await;
            });
        } else {
            tokio::spawn(async move { execd.stream(stream, command, events, &program).await });
        }
        let time = Duration::from_millis(order.gather_ms).min(GATHER_LIMIT);
        Ok(http::gathered("text/event-stream", waiting, time).await)
    }

    /// Sends the output of a command, and how it ended.
    async fn stream(&self, mut stream: ExecStream, command: Arc<Command>, mut events: Events, program: &str) {
        events.begin(&command.id).await;
        let mut ping = tokio::time::interval(PING_INTERVAL);
        ping.reset();
        loop {
            let next = tokio::select! {
                biased;
                next = stream.next() => next,
                _ = ping.tick() => {
                    events.ping().await;
                    continue;
                }
            };
            match next {
                Ok(Some(ExecEvent::Stdout(bytes))) => events.output(Stream::Stdout, bytes).await,
                Ok(Some(ExecEvent::Stderr(bytes))) => events.output(Stream::Stderr, bytes).await,
                Ok(Some(ExecEvent::Exit(exit))) => {
                    let told = self.finish(&command, exit.clone(), program);
                    return events.end(&told, &exit).await;
                }
                Ok(Some(_)) => {}
                ended => {
                    self.lose(&command, ended.err());
                    return events.cut().await;
                }
            }
        }
    }

    /// Keeps the output of a command in the background, both streams in the order in which they came.
    async fn collect(&self, mut stream: ExecStream, command: Arc<Command>, program: &str) {
        loop {
            match stream.next().await {
                Ok(Some(ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes))) => command.log.push(bytes).await,
                Ok(Some(ExecEvent::Exit(exit))) => return drop(self.finish(&command, exit, program)),
                Ok(Some(_)) => {}
                ended => return self.lose(&command, ended.err()),
            }
        }
    }

    fn finish(&self, command: &Arc<Command>, exit: ExecExit, program: &str) -> Told {
        let told = told(&exit, program);
        self.commands.finish(command, End { told: told.clone(), exit: Some(exit), finished_ms: now_ms() });
        told
    }

    fn lose(&self, command: &Arc<Command>, why: Option<SandboxError>) {
        let words = why.map_or_else(|| "its end is not known".to_owned(), |error| error.message().to_owned());
        let told = Told { code: Some(-1), words };
        self.commands.finish(command, End { told, exit: None, finished_ms: now_ms() });
    }

    /// What the agent knows of a command that this API has not started.
    async fn known_to_the_agent(&self, id: &str) -> Result<Option<ExecInfo>, Refusal> {
        let list: ExecList = self.client.call(methods::EXEC_LIST, &Nothing {}).await?;
        Ok(list.execs.into_iter().find(|exec| exec.exec_id == id))
    }

    pub(crate) async fn command_status(&self, id: &str) -> Answer {
        let (content, started_ms, end) = match self.commands.get(id) {
            Some(command) => (command.content.clone(), command.started_ms, command.end()),
            None => {
                let unknown =
                    || Refusal::new(StatusCode::NOT_FOUND, "INVALID_REQUEST_BODY", format!("command not found: {id}"));
                let known = self.known_to_the_agent(id).await?.ok_or_else(unknown)?;
                let finished_ms = now_ms();
                let end = known.exit.map(|exit| End { told: told(&exit, ""), exit: Some(exit), finished_ms });
                (String::new(), known.started_at_ms, end)
            }
        };
        let mut status =
            json!({ "id": id, "content": content, "running": end.is_none(), "started_at": time(started_ms) });
        if let Some(end) = end {
            status["finished_at"] = json!(time(end.finished_ms));
            status["exit_code"] = json!(end.told.code.unwrap_or(-1));
            if end.told.code != Some(0) {
                status["error"] = json!(end.told.words);
            }
            if let Some(exit) = end.exit {
                status["exit"] = json!(exit);
            }
        }
        Ok(http::json(StatusCode::OK, &status))
    }

    pub(crate) async fn command_logs(&self, id: &str, request: &Request) -> Answer {
        let cursor = Query::of(request).number::<u64>("cursor")?.unwrap_or(0);
        let command = self.commands.get(id).filter(|command| command.is_background);
        let command = command.ok_or_else(|| Refusal::bad(format!("no command in the background: {id}")))?;
        let (bytes, next) = command.log.read(cursor).await.map_err(Refusal::failed)?;
        let mut response = http::text(StatusCode::OK, bytes);
        response.headers_mut().insert(CURSOR_HEADER, HeaderValue::from(next));
        Ok(response)
    }

    /// Ends a command: SIGTERM, and after the grace SIGKILL, to its whole tree. Ours: `now` is SIGKILL at once. The id may
    /// be that of a session, whose command it is then.
    pub(crate) async fn interrupt(self: &Arc<Self>, request: &Request) -> Answer {
        let query = Query::of(request);
        let id = query.get("id").filter(|id| !id.is_empty()).ok_or_else(|| Refusal::missing_query("id"))?;
        let id = self.command_of_session(id).unwrap_or_else(|| id.to_owned());
        let not_running = || Refusal::failed(format!("no such running command: {id}"));
        let is_over = self.commands.get(&id).is_some_and(|command| command.end().is_some());
        if is_over || self.commands.get(&id).is_none() && self.known_to_the_agent(&id).await?.is_none() {
            return Err(not_running());
        }
        let first = if query.get("now").is_some() { SIGKILL } else { SIGTERM };
        let deadline = Instant::now() + STARTS_WITHIN;
        let is_known = || self.commands.get(&id).is_some_and(|command| command.end().is_none());
        loop {
            match self.signal(&id, first).await {
                // A command is known a moment before it runs.
                Err(error) if error.kind() == ErrorKind::InvalidState && is_known() && Instant::now() < deadline => {
                    tokio::time::sleep(STARTS_PAUSE).await;
                }
                Err(error) if matches!(error.kind(), ErrorKind::InvalidState | ErrorKind::NotFound) => {
                    return Err(not_running());
                }
                sent => break sent?,
            }
        }
        if first == SIGTERM {
            let execd = self.clone();
            tokio::spawn(async move {
                let wait = ExecWait { exec_id: id.clone(), timeout_s: Some(INTERRUPT_GRACE_S) };
                let waited = execd.client.call::<ExecWaited>(methods::EXEC_WAIT, &wait).await;
                if waited.is_ok_and(|waited| waited.exit.is_none()) {
                    // One that has ended meanwhile needs none.
                    let _ = execd.signal(&id, SIGKILL).await;
                }
            });
        }
        Ok(http::ok())
    }

    pub(crate) fn kill_in_background(self: &Arc<Self>, id: String) {
        let execd = self.clone();
        tokio::spawn(async move {
            // One that has ended meanwhile needs none.
            let _ = execd.signal(&id, SIGKILL).await;
        });
    }

    async fn signal(&self, exec_id: &str, signal: i32) -> sandbox_core::Result<()> {
        let request = ExecSignal { exec_id: exec_id.to_owned(), signal, tree: true };
        self.client.call::<Value>(methods::EXEC_SIGNAL, &request).await.map(drop)
    }
}

async fn open_input(path: &str) -> Result<File, Refusal> {
    let path = expand(path)?;
    let opened = tokio::task::spawn_blocking(move || File::open(path.as_path())).await;
    opened.ok().and_then(Result::ok).ok_or_else(|| Refusal::bad("the input cannot be read"))
}

/// Writes a file into a command, as far as that reads it. One whose input cannot be read on is ended: it would take a part
/// for the whole.
async fn feed(file: File, control: Arc<dyn SessionControl>) {
    let file = Arc::new(file);
    loop {
        let file = file.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; INPUT_BYTES];
            let count = (&*file).read(&mut piece)?;
            piece.truncate(count);
            Ok::<_, std::io::Error>(piece)
        });
        let last = match read.await {
            Ok(Ok(piece)) if !piece.is_empty() => match control.write(piece.into()).await {
                Ok(()) => continue,
                // It reads no more.
                Err(_) => return,
            },
            Ok(Ok(_)) => ControlRequest::CloseInput,
            _ => ControlRequest::Kill,
        };
        // One that is over needs neither.
        let _ = control.control(last).await;
        return;
    }
}
