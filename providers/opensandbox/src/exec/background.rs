//! A command in the background of the daemon: its state is polled, its output fetched by byte offset. Standard error goes
//! through a file, because the daemon keeps both streams as one.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use reqwest::{
    Method, Response,
    header::{HeaderValue, RANGE},
};
use sandbox_core::{ExecEvent, ExecExit, ExecOutcome, ExecStream, Result, SessionSink};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    Job,
    control::{Control, Handle, Over},
    foreground::unstarted,
    frames::{Frame, FrameError, Frames},
    outcome,
};
use crate::{
    config::seconds,
    daemon::{Daemon, query, segment},
    error::Failure,
    retry::Operation,
};

/// How much later than its limit a command may end.
const LATE: Duration = Duration::from_secs(15);

/// So much of standard error is fetched at once.
const RANGE_BYTES: u64 = 4 * 1024 * 1024;

/// Waits until the command is submitted, and follows it from there.
pub(super) async fn run(job: Job, response: Response) -> Result<ExecStream> {
    let limit = job.shared.config.connection.request_timeout();
    let submitted = tokio::time::timeout(limit, submitted(response)).await;
    let submitted = match submitted {
        Ok(Some(Submitted::Id(id))) => id,
        Ok(Some(Submitted::Failed(frame))) => {
            job.remove_files();
            let exit = match (frame.exit, frame.error) {
                (Some(exit), _) => exit,
                (None, error) => outcome::of_error(&error.unwrap_or_default(), false, &job.program),
            };
            return Ok(ExecStream::finished("", "", exit));
        }
        _ => {
            job.remove_files();
            return Err(job.lost("it was sent, and its name never came").await);
        }
    };
    let handle = Arc::new(Handle::default());
    let (sink, stream) = ExecStream::channel(Control(handle.clone()));
    tokio::spawn(async move {
        let over = Over(handle.clone());
        let mut polled = Polled { job, id: submitted, stdout: 0, stderr: 0, head: None, ending: None };
        polled.head = polled.job.marker.as_ref().map(|_| Vec::new());
        match polled.follow(&handle, &sink).await {
            Ok(Some(exit)) => {
                drop(over);
                sink.send(ExecEvent::Exit(exit)).await;
            }
            Ok(None) => {}
            Err(error) => {
                drop(over);
                sink.fail(error).await;
            }
        }
        polled.job.remove_files();
    });
    Ok(stream)
}

enum Submitted {
    Id(String),
    Failed(Box<Frame>),
}

async fn submitted(mut response: Response) -> Option<Submitted> {
    let (mut frames, mut id) = (Frames::default(), None);
    loop {
        while let Some(frame) = frames.next().ok()? {
            match frame.kind.as_str() {
                "init" => id = Some(frame.text),
                // Submitted, not over.
                "execution_complete" => return id.map(Submitted::Id),
                "error" => return Some(Submitted::Failed(Box::new(frame))),
                _ => {}
            }
        }
        match response.chunk().await {
            Ok(Some(chunk)) => frames.push(&chunk),
            // Its name is enough.
            _ => return id.map(Submitted::Id),
        }
    }
}

struct Polled {
    job: Job,
    id: String,
    /// How much of each stream was fetched.
    stdout: u64,
    stderr: u64,
    /// The start of standard error, where it may say that nothing was started.
    head: Option<Vec<u8>>,
    /// What it is reported as, if it was ended from here.
    ending: Option<ExecOutcome>,
}

impl Polled {
    async fn follow(&mut self, handle: &Handle, sink: &SessionSink<ExecEvent>) -> Result<Option<ExecExit>> {
        let operations = &self.job.shared.config.operations;
        let mut pause = seconds(operations.background_poll_initial_s);
        let longest = seconds(operations.background_poll_interval_s);
        let mut last_output = Instant::now();
        loop {
            let request = &self.job.request;
            let now = Instant::now();
            let mut wake = now + pause;
            let run = request.timeout().map(|timeout| self.job.started + timeout);
            let idle = request.idle_timeout().map(|timeout| last_output + timeout);
            if self.ending.is_none() {
                wake = [run, idle].into_iter().flatten().fold(wake, |wake, limit| wake.min(limit)).max(now);
            }
            tokio::select! {
                () = tokio::time::sleep_until(wake) => {}
                () = sink.closed() => {
                    self.end().await;
                    return Ok(None);
                }
                () = handle.killed(), if self.ending.is_none() => {
                    self.ending = Some(ExecOutcome::Signalled(9));
                    self.end().await;
                }
            }
            pause = (pause * 3 / 2).min(longest);
            let status = match self.status().await {
                Ok(status) => status,
                Err(failure) => return Err(self.broken(failure).await),
            };
            // The state first: what it wrote before its end is there then.
            let fetched = match self.fetch(sink).await {
                Ok(fetched) => fetched,
                Err(failure) => return Err(self.broken(failure).await),
            };
            if fetched {
                last_output = Instant::now();
            }
            let Some(is_running) = status["running"].as_bool() else {
                return Err(self.job.lost("the daemon does not say whether it runs").await);
            };
            if !is_running {
                return self.finish(&status, sink).await.map(Some);
            }
            let now = Instant::now();
            if self.ending.is_none() {
                if idle.is_some_and(|idle| !fetched && idle <= now) {
                    self.ending = Some(ExecOutcome::TimedOut { idle: true });
                    self.end().await;
                } else if run.is_some_and(|run| run <= now) && self.job.request.kill_grace_s > 0.0 {
                    self.ending = Some(ExecOutcome::TimedOut { idle: false });
                    self.end().await;
                } else if run.is_some_and(|run| run <= now) {
                    // The daemon ends it at this moment.
                    pause = seconds(self.job.shared.config.operations.background_poll_initial_s);
                }
            }
            if run.is_some_and(|run| run + LATE + self.job.request.kill_grace() <= now) {
                self.end().await;
                return Err(self.job.lost("it did not end at its time limit").await);
            }
        }
    }

    async fn finish(&mut self, status: &Value, sink: &SessionSink<ExecEvent>) -> Result<ExecExit> {
        if let Some(head) = self.head.take().filter(|head| !head.is_empty()) {
            if let Some(exit) = unstarted(&self.job, &head) {
                return Ok(exit);
            }
            sink.send(ExecEvent::Stderr(head.into())).await;
        }
        // A daemon of ours says it exactly.
        let exact = serde_json::from_value::<ExecExit>(status["exit"].clone()).ok();
        let words = status["error"].as_str().unwrap_or_default();
        let Some(code) = status["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok()) else {
            // Over, and nobody says how: that is no success.
            return Err(self.job.lost("the daemon does not say how it ended").await);
        };
        let mut exit = match code {
            _ if exact.is_some() => exact.unwrap_or_else(|| ExecExit::new(ExecOutcome::Exited(code))),
            0.. => ExecExit::new(ExecOutcome::Exited(code)),
            _ if words.starts_with("signal") || words.is_empty() => {
                outcome::of_code(code, words, self.job.has_timed_out())
            }
            _ => {
                let error = FrameError { evalue: words.to_owned(), traceback: Vec::new() };
                outcome::of_error(&error, self.job.has_timed_out(), &self.job.program)
            }
        };
        match self.ending.take() {
            Some(ending @ ExecOutcome::TimedOut { .. }) => exit.outcome = ending,
            Some(ending) if !matches!(exit.outcome, ExecOutcome::Exited(_)) => exit.outcome = ending,
            _ => {}
        }
        Ok(exit)
    }

    async fn daemon(&self) -> Result<Daemon<'_>, Failure> {
        self.job.shared.daemon(&self.job.id).await.map_err(|error| Failure::Broke(error.to_string()))
    }

    async fn status(&self) -> Result<Value, Failure> {
        let daemon = self.daemon().await?;
        let mut call = daemon.call(Method::GET, &format!("/command/status/{}", segment(&self.id)));
        call.timeout = seconds(self.job.shared.config.operations.status_poll_timeout_s);
        let answer = daemon.ask(&call, Operation::Poll).await?;
        Ok(serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    /// Fetches what is new of both streams; says whether there was anything.
    async fn fetch(&mut self, sink: &SessionSink<ExecEvent>) -> Result<bool, Failure> {
        let mut any = false;
        loop {
            let data = {
                let daemon = self.daemon().await?;
                let path = format!("/command/{}/logs?cursor={}", segment(&self.id), self.stdout);
                daemon.ask(&daemon.call(Method::GET, &path), Operation::Poll).await?.body
            };
            self.stdout += data.len() as u64;
            if data.is_empty() {
                break;
            }
            any = true;
            sink.send(ExecEvent::Stdout(data)).await;
        }
        loop {
            let data = self.more_stderr().await?;
            self.stderr += data.len() as u64;
            if data.is_empty() {
                break;
            }
            any = true;
            self.take_stderr(data, sink).await;
        }
        Ok(any)
    }

    async fn more_stderr(&self) -> Result<Bytes, Failure> {
        let daemon = self.daemon().await?;
        let path = self.job.stderr_path.as_deref().unwrap_or_default();
        let mut call = daemon.call(Method::GET, &format!("/files/download?path={}", query(path)));
        let range = format!("bytes={}-{}", self.stderr, self.stderr + RANGE_BYTES - 1);
        if let Ok(value) = HeaderValue::from_str(&range) {
            call.headers.insert(RANGE, value);
        }
        match daemon.ask(&call, Operation::Poll).await {
            Ok(answer) => Ok(answer.body),
            // Nothing yet: no bytes from there on, or no file.
            Err(Failure::Refused(refusal)) if refusal.status == 416 => Ok(Bytes::new()),
            Err(Failure::Refused(refusal)) if refusal.status == 404 && !refusal.is_gone() => Ok(Bytes::new()),
            Err(failure) => Err(failure),
        }
    }

    async fn take_stderr(&mut self, data: Bytes, sink: &SessionSink<ExecEvent>) {
        let Some(mut head) = self.head.take() else {
            sink.send(ExecEvent::Stderr(data)).await;
            return;
        };
        head.extend_from_slice(&data);
        let marker = self.job.marker.as_deref().unwrap_or_default().as_bytes();
        let common = marker.len().min(head.len());
        if head[..common] == marker[..common] {
            self.head = Some(head);
        } else {
            sink.send(ExecEvent::Stderr(head.into())).await;
        }
    }

    async fn end(&self) {
        if let Ok(daemon) = self.daemon().await {
            let at_once = self.job.kind.extensions && self.job.request.kill_grace_s == 0.0;
            let _ = daemon.interrupt(&self.id, at_once).await;
        }
    }

    async fn broken(&self, failure: Failure) -> sandbox_core::SandboxError {
        let why = match &failure {
            Failure::Refused(refusal) if refusal.status == 404 => "the daemon does not know it any more",
            _ => "its state cannot be asked for any more",
        };
        self.job.lost(why).await.with_source(failure.error("a command"))
    }
}
