//! One client's hold on a job: its events on the way out, its input and control on the way in.

use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use sandbox_core::{
    Admitted, ControlReply, ControlRequest, ErrorKind, ExecEvent, ExecExit, PtyEvent, Result, SandboxError, Session,
    SessionControl, SessionEvent, SessionSink, async_trait,
};
use sandbox_process::{ControlError, ControlErrorKind, TerminalSize};

use super::{
    input,
    job::{End, Job, JobKind, State, WithoutClient},
    log::{Cursor, Piece, Stream},
};

/// Events of a job.
pub(super) trait JobEvent: SessionEvent {
    fn output(stream: Stream, bytes: Bytes) -> Self;
    /// None where a gap cannot be told in an event.
    fn gap(bytes: u64) -> Option<Self>;
    fn exit(exit: ExecExit) -> Self;
}

impl JobEvent for ExecEvent {
    fn output(stream: Stream, bytes: Bytes) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout(bytes),
            Stream::Stderr => Self::Stderr(bytes),
        }
    }

    fn gap(_bytes: u64) -> Option<Self> {
        None
    }

    fn exit(exit: ExecExit) -> Self {
        Self::Exit(exit)
    }
}

impl JobEvent for PtyEvent {
    fn output(stream: Stream, bytes: Bytes) -> Self {
        match stream {
            Stream::Stdout => Self::Output(bytes),
            Stream::Stderr => Self::Stderr(bytes),
        }
    }

    fn gap(bytes: u64) -> Option<Self> {
        Some(Self::Gap(bytes))
    }

    fn exit(exit: ExecExit) -> Self {
        Self::Exit(exit)
    }
}

/// What the end of a client's session does to a job that still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnDrop {
    Kills,
    Leaves,
}

/// Where the input of a client begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputFrom {
    /// Behind what was taken.
    Here,
    /// At this offset of the whole: what was taken already is skipped.
    Offset(u64),
}

/// How a client gets a job.
pub(super) struct Attach<E> {
    pub(super) cursor: Cursor,
    /// Goes ahead of everything.
    pub(super) first: Option<E>,
    pub(super) on_drop: OnDrop,
    pub(super) input: InputFrom,
}

/// Gives a job to a client, whoever had it before.
///
/// # Errors
/// `InvalidInput` when input in between was never taken; the client before keeps the job then.
pub(super) fn attach<E: JobEvent>(job: &Arc<Job>, how: Attach<E>) -> Result<Session<E>> {
    let Attach { cursor, first, on_drop, input } = how;
    let (number, skip) = {
        let mut state = job.state();
        let taken = state.input.taken;
        let skip = match input {
            InputFrom::Here => 0,
            InputFrom::Offset(offset) => taken.checked_sub(offset).ok_or_else(|| {
                let why = format!("must be at most {taken}: the input between was never taken");
                SandboxError::invalid_input("stdin_offset", why)
            })?,
        };
        state.clients += 1;
        state.client = Some(state.clients);
        state.sent = cursor.at;
        (state.clients, skip)
    };
    // The client before sees that it was replaced, and the job that there is room.
    job.grown.notify_waiters();
    job.input_room.notify_waiters();
    job.has_taken();
    let hold = Hold { job: job.clone(), number };
    let session = Session::spawn(Control { hold: hold.clone(), skip: Mutex::new(skip) }, {
        let job = job.clone();
        move |sink| async move { forward(&job, number, cursor, first, &sink).await }
    });
    Ok(session.with_guard(Guard { hold, on_drop }))
}

async fn forward<E: JobEvent>(
    job: &Job,
    number: u64,
    mut cursor: Cursor,
    first: Option<E>,
    sink: &SessionSink<E>,
) -> Result<()> {
    if let Some(first) = first
        && !sink.send(first).await
    {
        return Ok(());
    }
    loop {
        let mut grown = pin!(job.grown.notified());
        grown.as_mut().enable();
        match step(job, number, &mut cursor)? {
            Step::Wait => grown.await,
            Step::Piece(Piece::Gap(bytes, _)) => {
                let gap = E::gap(bytes).ok_or_else(|| SandboxError::lost("output is no longer kept", Admitted::Yes))?;
                if !sink.send(gap).await {
                    return Ok(());
                }
            }
            Step::Piece(Piece::Bytes(stream, bytes)) => {
                if !sink.send(E::output(stream, bytes)).await {
                    return Ok(());
                }
                let mut state = job.state();
                if state.client == Some(number) {
                    state.sent = cursor.at;
                    drop(state);
                    job.has_taken();
                }
            }
            Step::Exit(exit) => {
                sink.send(E::exit(exit)).await;
                return Ok(());
            }
        }
    }
}

enum Step {
    Wait,
    Piece(Piece),
    Exit(ExecExit),
}

fn step(job: &Job, number: u64, cursor: &mut Cursor) -> Result<Step> {
    let state = job.state();
    check_client(&state, number)?;
    Ok(match (state.log.next(cursor), &state.end) {
        (Some(piece), _) => Step::Piece(piece),
        (None, None) => Step::Wait,
        (None, Some(End::Exit(exit))) => Step::Exit(exit.clone()),
        (None, Some(End::Error(kind, message))) => return Err(End::to_error(*kind, message)),
    })
}

/// Refuses a client that was replaced.
pub(super) fn check_client(state: &State, number: u64) -> Result<()> {
    match state.clients == number {
        true => Ok(()),
        false => Err(SandboxError::invalid_state("replaced: another client has attached to it")),
    }
}

#[derive(Clone)]
struct Hold {
    job: Arc<Job>,
    number: u64,
}

impl Hold {
    /// Gives the job up. True if it was held, and runs.
    fn release(&self) -> bool {
        let mut state = self.job.state();
        if state.client != Some(self.number) {
            return false;
        }
        state.client = None;
        let runs = state.end.is_none();
        drop(state);
        self.job.has_taken();
        runs
    }

    /// Leaves the job without a client.
    fn detach(&self) {
        if !self.release() {
            return;
        }
        if let WithoutClient::Grace(grace) = self.job.without_client {
            let (job, number) = (self.job.clone(), self.number);
            tokio::spawn(async move {
                tokio::select! {
                    () = job.ended() => {}
                    () = tokio::time::sleep(grace) => {
                        let is_left = job.state().clients == number;
                        if is_left {
                            tracing::debug!("a command is ended: its client did not come back");
                            job.kill();
                        }
                    }
                }
            });
        }
    }

    fn check(&self) -> Result<()> {
        check_client(&self.job.state(), self.number)
    }
}

/// Ends or leaves the job when the session is dropped.
struct Guard {
    hold: Hold,
    on_drop: OnDrop,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.hold.release() && self.on_drop == OnDrop::Kills {
            self.hold.job.kill();
        }
    }
}

struct Control {
    hold: Hold,
    /// Bytes of the client's input that were taken before it came.
    skip: Mutex<u64>,
}

impl Control {
    fn unknown_part(&self, mut data: Bytes) -> Bytes {
        let mut skip = self.skip.lock().unwrap_or_else(PoisonError::into_inner);
        let known = data.len().min(usize::try_from(*skip).unwrap_or(usize::MAX));
        *skip -= known as u64;
        data.split_off(known)
    }
}

#[async_trait]
impl SessionControl for Control {
    async fn write(&self, data: Bytes) -> Result<()> {
        input::write(&self.hold.job, self.hold.number, self.unknown_part(data)).await
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        match request {
            ControlRequest::Detach => {
                self.hold.detach();
                return Ok(ControlReply::default());
            }
            ControlRequest::Kill => {
                self.hold.check()?;
                self.hold.job.kill();
                return Ok(ControlReply::default());
            }
            ControlRequest::CloseInput => {
                input::close(&self.hold.job, self.hold.number)?;
                return Ok(ControlReply::default());
            }
            _ => self.hold.check()?,
        }
        let controller = self.hold.job.started().await.ok_or_else(ended)?;
        match request {
            ControlRequest::Signal(signal) => controller.signal(signal).map_err(control)?,
            ControlRequest::Resize { rows, cols } if self.hold.job.kind == JobKind::Terminal => {
                if rows == 0 || cols == 0 {
                    return Err(SandboxError::invalid_input("size", "must be at least 1 row and 1 column"));
                }
                controller.resize(TerminalSize { rows, cols }).map_err(control)?;
            }
            _ => return Err(SandboxError::unsupported_control("agent", None)),
        }
        Ok(ControlReply::default())
    }
}

pub(super) fn ended() -> SandboxError {
    SandboxError::invalid_state("it is over already")
}

/// A running command that could not be reached.
pub(super) fn control(error: ControlError) -> SandboxError {
    let kind = match error.kind() {
        ControlErrorKind::InvalidSignal => return SandboxError::invalid_input("signal", "must be 1 to 64"),
        ControlErrorKind::NoTerminal => ErrorKind::Unsupported,
        ControlErrorKind::Ended | ControlErrorKind::BrokenPipe | ControlErrorKind::StdinClosed => {
            ErrorKind::InvalidState
        }
        _ => ErrorKind::Internal,
    };
    SandboxError::new(kind, error.to_string())
}
