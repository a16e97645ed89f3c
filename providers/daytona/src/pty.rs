//! Terminals.
//!
//! The service opens a login shell with a prompt and has no way to run a command in its place. So the shell is told to
//! become the command, and what comes before the command's first byte is left out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream::SplitSink};
use reqwest::Method;
use sandbox_core::{
    Admitted, AttachOptions, ControlReply, ControlRequest, ExecCommand, ExecEvent, ExecExit, ExecOutcome, ExecRequest,
    Pty, PtyAttach, PtyEvent, PtyStream, Result, SandboxError, SandboxHandle, SandboxPtySpec, SessionControl,
    SessionSink, StdinSource, async_trait, tracing,
};
use serde_json::json;
use tokio::{runtime::Handle, sync::Mutex, time::timeout};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    error::{Failure, NAME},
    exec::exec,
    job::Job,
    labels::state,
    provider::{DaytonaProvider, Shared},
    random::random_hex,
    socket::{Socket, connect},
    toolbox::{Script, check},
    wire::TerminalMessage,
};

/// How long one call about a terminal may take.
const CALL_WITHIN: Duration = Duration::from_secs(30);

/// How long the command may take to say that it starts.
const START_WITHIN: Duration = Duration::from_secs(30);

/// Silent connections are cut on the way after a minute.
const PING_EVERY: Duration = Duration::from_secs(20);

/// What the service takes as one message of input.
const INPUT_BYTES: usize = 32 << 10;

/// What a prompt and start-up files may print before the command starts.
const MAX_NOISE_BYTES: usize = 1 << 20;

struct Terminal {
    shared: Arc<Shared>,
    handle: SandboxHandle,
    /// Address of this terminal at the toolbox.
    url: String,
    /// What runs in it, if it was made here.
    job: Option<Job>,
    toolbox: String,
    writer: Mutex<SplitSink<Socket, Message>>,
    is_over: AtomicBool,
    /// It goes on without this connection.
    is_detached: AtomicBool,
}

impl Terminal {
    async fn send(&self, message: Message) -> Result<()> {
        let sent = timeout(CALL_WITHIN, async { self.writer.lock().await.send(message).await }).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            _ => Err(SandboxError::pty("the connection to the terminal broke").with_provider(NAME)),
        }
    }

    async fn call(&self, method: Method, path: &str, body: Option<serde_json::Value>) -> Result<(), Failure> {
        let url = format!("{}{path}", self.url);
        let mut call = self.shared.tool(method, url, CALL_WITHIN, Instant::now() + CALL_WITHIN);
        call.body = body;
        self.shared.client.call(&call).await.map(drop)
    }

    fn ensure_open(&self) -> Result<()> {
        if self.is_over.load(Ordering::Acquire) {
            return Err(SandboxError::invalid_state("the terminal session is over").with_provider(NAME));
        }
        Ok(())
    }

    /// Ends what runs in it.
    async fn end(&self) {
        if let Err(failure) = self.call(Method::DELETE, "", None).await {
            tracing::debug!(status = failure.status(), "a terminal could not be closed");
        }
        if let Some(job) = &self.job {
            let text = job.kill(crate::job::Wanted::Nothing);
            let script = Script { text: &text, within: CALL_WITHIN, deadline: Instant::now() + CALL_WITHIN * 2 };
            let _ = self.shared.script_at(&self.toolbox, script).await;
        }
    }
}

/// Ends a session that this client made when it is dropped before its end.
struct EndOnDrop(Arc<Terminal>, Handle);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let terminal = self.0.clone();
        let is_ours = terminal.job.is_some();
        if !terminal.is_over.swap(true, Ordering::AcqRel) && is_ours && !terminal.is_detached.load(Ordering::Acquire) {
            self.1.spawn(async move { terminal.end().await });
        }
    }
}

struct Control(Arc<Terminal>);

#[async_trait]
impl SessionControl for Control {
    async fn write(&self, mut data: Bytes) -> Result<()> {
        self.0.ensure_open()?;
        while !data.is_empty() {
            let part = data.split_to(data.len().min(INPUT_BYTES));
            self.0.send(Message::Binary(part)).await?;
        }
        Ok(())
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        let terminal = &self.0;
        terminal.ensure_open()?;
        let done = match request {
            ControlRequest::Resize { rows, cols } => {
                check_size(rows, cols)?;
                terminal.call(Method::POST, "/resize", Some(json!({"rows": rows, "cols": cols}))).await
            }
            ControlRequest::Kill => {
                terminal.end().await;
                Ok(())
            }
            // A terminal has no end of its input but this character.
            ControlRequest::CloseInput => {
                return terminal.send(Message::Binary("\x04".into())).await.map(|()| ControlReply::default());
            }
            ControlRequest::Signal(signal @ 1..=64) => match &terminal.job {
                Some(job) => {
                    let text = job.signal(signal);
                    let deadline = Instant::now() + CALL_WITHIN;
                    let script = Script { text: &text, within: CALL_WITHIN, deadline };
                    terminal.shared.script_at(&terminal.toolbox, script).await.map(drop)
                }
                None => return Err(SandboxError::unsupported_control(NAME, None)),
            },
            ControlRequest::Detach => {
                terminal.is_detached.store(true, Ordering::Release);
                terminal.is_over.store(true, Ordering::Release);
                let _ = terminal.send(Message::Close(None)).await;
                Ok(())
            }
            _ => return Err(SandboxError::unsupported_control(NAME, None)),
        };
        match done {
            Ok(()) => Ok(ControlReply::default()),
            Err(failure) if matches!(failure.status(), Some(404 | 410)) => {
                Err(SandboxError::invalid_state("the terminal session is over").with_provider(NAME))
            }
            Err(failure) => Err(failure.into_error("reaching the terminal")),
        }
    }
}

fn check_size(rows: u16, cols: u16) -> Result<()> {
    for (field, value) in [("rows", rows), ("cols", cols)] {
        if !(1..=1000).contains(&value) {
            return Err(SandboxError::invalid_input(field, format!("the service takes 1 to 1000, not {value}")));
        }
    }
    Ok(())
}

/// How the service says that a session ended.
fn exit_of(code: i32) -> ExecExit {
    // 137 is what it says of a session that was killed.
    ExecExit::new(if code == 137 { ExecOutcome::Signalled(9) } else { ExecOutcome::Exited(code) })
}

/// What a message from the service is.
enum Heard {
    Output(Bytes),
    Exit(i32),
    Nothing,
    Failed(String),
    End(Option<i32>),
}

fn hear(message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>) -> Heard {
    match message {
        Some(Ok(Message::Binary(bytes))) => Heard::Output(bytes),
        Some(Ok(Message::Text(text))) => match serde_json::from_str::<TerminalMessage>(&text) {
            Ok(said) if said.r#type == "control" => match said.status.as_str() {
                "exited" => Heard::Exit(said.exit_code.unwrap_or(0)),
                "error" => Heard::Failed("the service says that there is no such session".to_owned()),
                _ => Heard::Nothing,
            },
            // What is no message of the service is output.
            _ => Heard::Output(Bytes::copy_from_slice(text.as_bytes())),
        },
        Some(Ok(Message::Close(frame))) => match frame {
            None => Heard::End(None),
            Some(frame) => {
                let said = serde_json::from_str::<TerminalMessage>(&frame.reason).unwrap_or_default();
                let code = u16::from(frame.code);
                Heard::End(said.exit_code.or((code == 1000).then_some(0)))
            }
        },
        Some(Ok(_)) => Heard::Nothing,
        Some(Err(_)) | None => Heard::End(None),
    }
}

async fn pump(
    terminal: Arc<Terminal>,
    mut reader: futures_util::stream::SplitStream<Socket>,
    id: String,
    first: Bytes,
    sink: SessionSink<PtyEvent>,
) -> Result<()> {
    sink.send(PtyEvent::Opened { session_id: id }).await;
    if !first.is_empty() {
        sink.send(PtyEvent::Output(first)).await;
    }
    let mut pings = tokio::time::interval(PING_EVERY);
    let code = loop {
        let heard = tokio::select! {
            message = reader.next() => hear(message),
            _ = pings.tick() => {
                terminal.send(Message::Ping(Bytes::new())).await?;
                Heard::Nothing
            }
        };
        match heard {
            Heard::Output(bytes) => {
                if !sink.send(PtyEvent::Output(bytes)).await {
                    return Ok(());
                }
            }
            Heard::Nothing => {}
            Heard::Exit(code) | Heard::End(Some(code)) => break code,
            Heard::Failed(why) => return Err(SandboxError::pty(why).with_provider(NAME)),
            Heard::End(None) if terminal.is_detached.load(Ordering::Acquire) => {
                return Err(SandboxError::lost("the session was left", Admitted::Yes).with_provider(NAME));
            }
            Heard::End(None) => {
                let error = SandboxError::lost("the connection to the terminal broke", Admitted::Yes);
                return Err(error.with_provider(NAME).with_help("attach to the session again"));
            }
        }
    };
    terminal.is_over.store(true, Ordering::Release);
    let _ = terminal.send(Message::Close(None)).await;
    sink.send(PtyEvent::Exit(exit_of(code))).await;
    Ok(())
}

impl DaytonaProvider {
    async fn open(&self, handle: &SandboxHandle, spec: &SandboxPtySpec) -> Result<PtyStream> {
        let shared = &self.shared;
        let toolbox = shared.toolbox(handle).await?;
        let nonce = random_hex(12)?;
        let id = format!("sandbox-{nonce}");
        let job = Job::terminal(
            format!("tty-{nonce}"),
            &shared.config.operations.job_folder,
            handle_workdir(handle),
            &request(spec),
            &nonce,
        );
        for (path, contents) in job.uploads() {
            shared.put(handle, &path, contents).await?;
        }
        let text = job.prepare();
        let script = Script { text: &text, within: CALL_WITHIN, deadline: Instant::now() + CALL_WITHIN * 2 };
        if let Err(failure) = shared.script_at(&toolbox, script).await {
            return Err(shared.explain(handle, "opening a terminal", failure).await);
        }
        let line = job.become_line();
        let deadline = Instant::now() + CALL_WITHIN;
        let mut call = shared.tool(Method::POST, format!("{toolbox}/process/pty"), CALL_WITHIN, deadline);
        call.body = Some(json!({"id": id, "rows": spec.rows, "cols": spec.cols}));
        match shared.client.call(&call).await {
            Ok(_) => {}
            // Of an attempt that was not answered: the id is ours alone.
            Err(failure) if failure.status() == Some(409) => {}
            Err(failure) => return Err(shared.explain(handle, "opening a terminal", failure).await),
        }
        let (terminal, mut reader) = self.reach(handle, &toolbox, &id, Some(job)).await?;
        let guard = EndOnDrop(terminal.clone(), Handle::current());
        terminal.send(Message::Binary(line.into())).await?;
        let first = timeout(START_WITHIN, until_start(&mut reader, nonce.as_bytes())).await;
        let first =
            first.unwrap_or_else(|_| Err(SandboxError::pty("the command of the terminal did not start in time")))?;
        let control = Control(terminal.clone());
        Ok(PtyStream::spawn(control, |sink| pump(terminal, reader, id, first, sink)).with_guard(guard))
    }

    async fn reach(
        &self,
        handle: &SandboxHandle,
        toolbox: &str,
        id: &str,
        job: Option<Job>,
    ) -> Result<(Arc<Terminal>, futures_util::stream::SplitStream<Socket>)> {
        let url = format!("{toolbox}/process/pty/{id}");
        let socket = match connect(&self.shared.client, &format!("{url}/connect")).await {
            Ok(socket) => socket,
            Err(failure) => return Err(self.shared.explain(handle, "reaching a terminal", failure).await),
        };
        let (writer, reader) = socket.split();
        let terminal = Terminal {
            shared: self.shared.clone(),
            handle: handle.clone(),
            url,
            job,
            toolbox: toolbox.to_owned(),
            writer: Mutex::new(writer),
            is_over: AtomicBool::new(false),
            is_detached: AtomicBool::new(false),
        };
        tracing::debug!(sandbox_id = terminal.handle.sandbox_id, "a terminal is open");
        Ok((Arc::new(terminal), reader))
    }
}

fn handle_workdir(handle: &SandboxHandle) -> Option<String> {
    state(handle).workdir
}

/// Reads until the command says that it starts, and gives what came after that.
async fn until_start(reader: &mut futures_util::stream::SplitStream<Socket>, nonce: &[u8]) -> Result<Bytes> {
    let mark = [b"start-of-", nonce].concat();
    let mut seen = Vec::new();
    loop {
        match hear(reader.next().await) {
            Heard::Output(bytes) => seen.extend_from_slice(&bytes),
            Heard::Nothing => {}
            Heard::Failed(why) => return Err(SandboxError::pty(why).with_provider(NAME)),
            Heard::Exit(_) | Heard::End(_) => {
                return Err(SandboxError::pty(
                    "the terminal ended before its command started: its working directory, user or shell is not there",
                )
                .with_provider(NAME));
            }
        }
        if let Some(at) = seen.windows(mark.len()).position(|part| part == mark) {
            return Ok(Bytes::from(seen.split_off(at + mark.len())));
        }
        if seen.len() > MAX_NOISE_BYTES {
            return Err(SandboxError::pty("the terminal's shell prints without end").with_provider(NAME));
        }
    }
}

/// What runs in a session, as a command.
fn request(spec: &SandboxPtySpec) -> ExecRequest {
    let shell = "command -v bash >/dev/null && exec bash -i; exec sh -i";
    let mut request = match &spec.command {
        Some(command) => ExecRequest::shell(command.clone()),
        None => ExecRequest::shell(shell),
    };
    request.cwd = spec.cwd.clone();
    request.user = spec.user.clone();
    request.env = spec.env.clone();
    request
}

/// A session without a terminal: a command with an open input.
async fn pipes(shared: &Arc<Shared>, handle: &SandboxHandle, spec: &SandboxPtySpec) -> Result<PtyStream> {
    let mut request = request(spec).with_stdin(StdinSource::Stream);
    if spec.command.is_none() {
        request.command =
            ExecCommand::Shell { script: "command -v bash >/dev/null && exec bash; exec sh".into(), shell: None };
    }
    let id = format!("pipes-{}", random_hex(12)?);
    request.exec_id = id.clone();
    let mut stream = exec(shared, handle, request).await?;
    let control = Pipes(stream.control());
    Ok(PtyStream::spawn(control, |sink| async move {
        sink.send(PtyEvent::Opened { session_id: id }).await;
        while let Some(event) = stream.next().await? {
            let event = match event {
                ExecEvent::Stdout(bytes) => PtyEvent::Output(bytes),
                ExecEvent::Stderr(bytes) => PtyEvent::Stderr(bytes),
                ExecEvent::Exit(exit) => PtyEvent::Exit(exit),
                _ => continue,
            };
            if !sink.send(event).await {
                break;
            }
        }
        Ok(())
    }))
}

struct Pipes(Arc<dyn SessionControl>);

#[async_trait]
impl SessionControl for Pipes {
    async fn write(&self, data: Bytes) -> Result<()> {
        self.0.write(data).await
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        self.0.control(request).await
    }
}

#[async_trait]
impl Pty for DaytonaProvider {
    async fn create_pty(&self, handle: &SandboxHandle, spec: SandboxPtySpec) -> Result<PtyStream> {
        spec.validate()?;
        check(handle)?;
        if !spec.pty {
            return pipes(&self.shared, handle, &spec).await;
        }
        check_size(spec.rows, spec.cols)?;
        self.open(handle, &spec).await
    }
}

#[async_trait]
impl PtyAttach for DaytonaProvider {
    async fn attach_pty(&self, handle: &SandboxHandle, id: String, options: AttachOptions) -> Result<PtyStream> {
        check(handle)?;
        if options.since.is_some() {
            let text = "the service keeps no output of sessions: attach without it";
            return Err(SandboxError::invalid_input("since", text).with_provider(NAME));
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let missing =
            || SandboxError::not_found(format!("no session {:?} in the sandbox", id.escape_debug().to_string()));
        if id.is_empty() || !id.chars().all(is_part) {
            return Err(missing().with_provider(NAME));
        }
        let toolbox = self.shared.toolbox(handle).await?;
        let url = format!("{toolbox}/process/pty/{id}");
        let call = self.shared.tool(Method::GET, url, CALL_WITHIN, Instant::now() + CALL_WITHIN);
        if let Err(failure) = self.shared.client.call(&call).await {
            let is_missing = failure.status() == Some(404);
            let error = self.shared.explain(handle, "looking for a session", failure).await;
            let is_there = error.kind() == sandbox_core::ErrorKind::NotFound && is_missing;
            return Err(if is_there { missing().with_provider(NAME) } else { error });
        }
        let (terminal, reader) = self.reach(handle, &toolbox, &id, None).await?;
        let guard = EndOnDrop(terminal.clone(), Handle::current());
        let control = Control(terminal.clone());
        Ok(PtyStream::spawn(control, |sink| pump(terminal, reader, id, Bytes::new(), sink)).with_guard(guard))
    }
}
