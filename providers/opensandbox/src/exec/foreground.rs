//! A command whose output comes as a stream of events.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use reqwest::Response;
use sandbox_core::{
    Admitted, ExecEvent, ExecExit, ExecOutcome, ExecStream, Result, SandboxError, SessionSink, StartFailure,
};
use tokio::time::Instant;

use super::{
    Job,
    control::{Control, Handle, Over},
    frames::{Frame, Frames, Garbage},
    outcome,
};
use crate::error::NAME;

/// A daemon says something every 3 s; one that is silent for so long is not there.
const SILENT_FOR: Duration = Duration::from_secs(45);

/// How much later than its limit a command may end.
const LATE: Duration = Duration::from_secs(15);

/// How long a command's end waits for that of the answer it came in.
const ENDS_WITHIN: Duration = Duration::from_millis(100);

/// The connection is free for another call when the answer has ended; so long it is waited for.
const DRAIN_WITHIN: Duration = Duration::from_millis(200);

/// Runs a command whose events are coming.
pub(super) fn run(job: Job, response: Response) -> ExecStream {
    let handle = Arc::new(Handle::default());
    let (sink, stream) = ExecStream::channel(Control(handle.clone()));
    tokio::spawn(async move {
        let over = Over(handle.clone());
        let mut running = Running {
            frames: Frames::default(),
            command_id: None,
            ending: None,
            lines: [0; 2],
            head: job.marker.as_ref().map(|_| Vec::new()),
            last_output: Instant::now(),
            job,
            handle,
        };
        match running.follow(response, &sink).await {
            Ok(Some(exit)) => {
                drop(over);
                sink.send(ExecEvent::Exit(exit)).await;
            }
            // Nobody waits for it any more.
            Ok(None) => {}
            Err(error) => {
                drop(over);
                sink.fail(error).await;
            }
        }
        running.job.remove_files();
    });
    stream
}

/// Why a command is being ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Dropped,
    Killed,
    TimedOut { idle: bool },
    Late,
}

struct Running {
    job: Job,
    handle: Arc<Handle>,
    frames: Frames,
    command_id: Option<String>,
    ending: Option<(Ending, Instant)>,
    lines: [u64; 2],
    /// The start of standard error, where it may say that nothing was started.
    head: Option<Vec<u8>>,
    last_output: Instant,
}

/// Reads an answer to its end, which is near: then its connection is there for the command that comes next. One that takes
/// its time is not waited for.
async fn end(mut response: Response) {
    let mut rest = Box::pin(async move { while let Ok(Some(_)) = response.chunk().await {} });
    if tokio::time::timeout(ENDS_WITHIN, &mut rest).await.is_err() {
        tokio::spawn(tokio::time::timeout(DRAIN_WITHIN, rest));
    }
}

enum Step {
    Chunk(Bytes),
    End(&'static str),
    Stop(Ending),
    Again,
}

impl Running {
    async fn follow(&mut self, mut response: Response, sink: &SessionSink<ExecEvent>) -> Result<Option<ExecExit>> {
        let mut heard = Instant::now();
        loop {
            loop {
                match self.frames.next() {
                    Ok(Some(frame)) => {
                        if let Some(exit) = self.take(frame, sink).await? {
                            end(response).await;
                            return Ok(Some(exit));
                        }
                    }
                    Ok(None) => break,
                    Err(Garbage(why)) => return Err(self.broken(why).await),
                }
            }
            if let Some((Ending::Dropped, _)) = self.ending
                && self.command_id.is_some()
            {
                return Ok(None);
            }
            let step = tokio::select! {
                chunk = response.chunk() => match chunk {
                    Ok(Some(chunk)) => Step::Chunk(chunk),
                    Ok(None) if self.frames.has_rest() => Step::End("the events ended in the middle of one"),
                    Ok(None) => Step::End("the events ended without the end of the command"),
                    Err(_) => Step::End("the stream of events was cut"),
                },
                () = sink.closed(), if self.ending.is_none_or(|(why, _)| why != Ending::Dropped) => {
                    Step::Stop(Ending::Dropped)
                }
                () = self.handle.killed(), if self.ending.is_none() => Step::Stop(Ending::Killed),
                () = tokio::time::sleep_until(heard + SILENT_FOR) => Step::End("the daemon has fallen silent"),
                ending = self.limit() => ending.map_or(Step::Again, Step::Stop),
            };
            match step {
                Step::Chunk(chunk) => {
                    heard = Instant::now();
                    self.frames.push(&chunk);
                }
                Step::End(_) if matches!(self.ending, Some((Ending::Dropped, _))) => return Ok(None),
                Step::End(why) => return Err(self.broken(why).await),
                Step::Stop(Ending::Late) => return Err(self.broken("it did not end at its time limit").await),
                Step::Stop(why) => {
                    self.ending = Some((why, Instant::now()));
                    self.end(why == Ending::Killed || self.job.request.kill_grace_s == 0.0).await;
                }
                // The grace is over.
                Step::Again => {
                    if let Some((_, at)) = &mut self.ending {
                        *at = Instant::now() + LATE;
                    }
                    self.end(true).await;
                }
            }
        }
    }

    /// Waits for the next limit; none: the grace of one is over.
    async fn limit(&self) -> Option<Ending> {
        let (request, started) = (&self.job.request, self.job.started);
        if let Some((why, at)) = self.ending {
            let grace = request.kill_grace();
            if matches!(why, Ending::TimedOut { .. }) && !grace.is_zero() && at <= Instant::now() {
                tokio::time::sleep_until(at + grace).await;
                return None;
            }
            tokio::time::sleep_until(at.max(started) + LATE).await;
            return Some(Ending::Late);
        }
        let run = async {
            match request.timeout() {
                // The daemon does it, and at once.
                Some(timeout) if request.kill_grace_s == 0.0 => {
                    tokio::time::sleep_until(started + timeout + LATE).await;
                    Ending::Late
                }
                Some(timeout) => {
                    tokio::time::sleep_until(started + timeout).await;
                    Ending::TimedOut { idle: false }
                }
                None => std::future::pending().await,
            }
        };
        let idle = async {
            match request.idle_timeout() {
                Some(timeout) => tokio::time::sleep_until(self.last_output + timeout).await,
                None => std::future::pending().await,
            }
            Ending::TimedOut { idle: true }
        };
        Some(tokio::select! { ending = run => ending, ending = idle => ending })
    }

    /// Has the daemon end the command, as soon as it has a name.
    async fn end(&self, at_once: bool) {
        let Some(id) = &self.command_id else { return };
        let at_once = at_once && self.job.kind.extensions;
        if let Ok(daemon) = self.job.shared.daemon(&self.job.id).await {
            // A command that cannot be ended is told by its stream.
            let _ = daemon.interrupt(id, at_once).await;
        }
    }

    async fn broken(&self, why: &str) -> SandboxError {
        let error = self.job.lost(why).await;
        // Nobody sees what it does from now on.
        self.end(true).await;
        error
    }

    /// Takes one event; gives the end if it is that.
    async fn take(&mut self, frame: Frame, sink: &SessionSink<ExecEvent>) -> Result<Option<ExecExit>> {
        match frame.kind.as_str() {
            "init" => {
                self.command_id = Some(frame.text);
                if self.ending.is_some() {
                    self.end(true).await;
                }
            }
            "stdout" => {
                let bytes = self.bytes(&frame, 0)?;
                self.send(sink, ExecEvent::Stdout(bytes)).await;
            }
            "stderr" => {
                let bytes = self.bytes(&frame, 1)?;
                self.stderr(bytes, sink).await;
            }
            "execution_complete" | "error" => return self.finish(frame, sink).await.map(Some),
            "" if frame.code.is_some() => {
                let code = crate::error::short(&frame.code.unwrap_or_default());
                let text = format!("the daemon gave up on a command: {code}");
                return Err(SandboxError::lost(text, Admitted::Yes).with_provider(NAME));
            }
            _ => {}
        }
        Ok(None)
    }

    fn bytes(&mut self, frame: &Frame, stream: usize) -> Result<Bytes> {
        let bytes = frame.bytes(self.job.kind.dialect, &mut self.lines[stream]);
        bytes.map_err(|Garbage(why)| SandboxError::lost(why, Admitted::Yes).with_provider(NAME))
    }

    async fn send(&mut self, sink: &SessionSink<ExecEvent>, event: ExecEvent) {
        let is_empty = matches!(&event, ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) if bytes.is_empty());
        if !is_empty {
            sink.send(event).await;
        }
        // A reader that is slow does not make the command idle.
        self.last_output = Instant::now();
    }

    async fn stderr(&mut self, bytes: Bytes, sink: &SessionSink<ExecEvent>) {
        let Some(mut head) = self.head.take() else { return self.send(sink, ExecEvent::Stderr(bytes)).await };
        head.extend_from_slice(&bytes);
        let marker = self.job.marker.as_deref().unwrap_or_default().as_bytes();
        let common = marker.len().min(head.len());
        if head[..common] == marker[..common] {
            self.head = Some(head);
        } else {
            self.send(sink, ExecEvent::Stderr(head.into())).await;
        }
    }

    async fn finish(&mut self, frame: Frame, sink: &SessionSink<ExecEvent>) -> Result<ExecExit> {
        if let Some(head) = self.head.take().filter(|head| !head.is_empty()) {
            if let Some(exit) = unstarted(&self.job, &head) {
                return Ok(exit);
            }
            self.send(sink, ExecEvent::Stderr(head.into())).await;
        }
        let exact = frame.exit.is_some();
        let mut exit = match (frame.exit, &frame.error) {
            (Some(exit), _) => exit,
            (None, Some(error)) => outcome::of_error(error, self.job.has_timed_out(), &self.job.program),
            (None, None) => ExecExit::new(ExecOutcome::Exited(0)),
        };
        if let ExecOutcome::StartFailed { reason, message } = &mut exit.outcome {
            *message = format!("{}: {}", self.job.program, outcome::words(*reason));
        }
        match self.ending {
            Some((Ending::TimedOut { idle }, _)) => exit.outcome = ExecOutcome::TimedOut { idle },
            Some((Ending::Killed, _)) if !exact && !matches!(exit.outcome, ExecOutcome::Exited(_)) => {
                exit.outcome = ExecOutcome::Signalled(9);
            }
            _ => {}
        }
        Ok(exit)
    }
}

/// The end of a command that its shell could not find, told on standard error.
pub(super) fn unstarted(job: &Job, stderr: &[u8]) -> Option<ExecExit> {
    let told = stderr.strip_prefix(job.marker.as_deref()?.as_bytes())?;
    let reason = match String::from_utf8_lossy(told).trim() {
        "not_found" => StartFailure::NotFound,
        "not_executable" => StartFailure::NotExecutable,
        _ => return None,
    };
    Some(ExecExit::start_failed(reason, format!("{}: {}", job.program, outcome::words(reason))))
}
