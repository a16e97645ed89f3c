//! The task that carries one process from start to the last of its descendants.

use std::future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use crate::control::{ControlSocket, Shared};
use crate::error::StartError;
use crate::event::{Ending, Event, Exit};
use crate::fork::Nursery;
use crate::limits::Limits;
use crate::output::{Chunk, Output, Stream};
use crate::raw::Errno;
use crate::set::Registration;
use crate::spawn::NotStarted;
use crate::sys;
use crate::wire::Report;

/// How long the answer waits for a killed tree to be confirmed gone.
const KILL_CONFIRM: Duration = Duration::from_millis(50);

/// Everything the host holds of one process.
pub(crate) struct Pump {
    pub(crate) shared: Arc<Shared>,
    pub(crate) control: Arc<ControlSocket>,
    pub(crate) nursery: Arc<Nursery>,
    /// The supervisor's name in the nursery.
    pub(crate) id: u64,
    pub(crate) registration: Registration,
    pub(crate) output: Output,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) limits: Limits,
    pub(crate) started: Instant,
}

/// What the caller is told of the start.
type Started = Result<(), NotStarted>;

/// How the command's own process ended, as far as it is known.
#[derive(Clone, Copy, Default)]
struct Outcome {
    /// Why we ended it; `None` when it ended by itself.
    reason: Option<Ending>,
    exited: Option<(i32, u64, u64)>,
    /// The supervisor is gone without a word.
    lost: bool,
    /// By when a killed process is answered for.
    answer_by: Option<Instant>,
    wall_time: Duration,
}

impl Pump {
    pub(crate) async fn run(mut self, ready: oneshot::Sender<Started>) {
        match self.start(ready).await {
            Ok(()) => {}
            Err(Some((ready, error))) => {
                self.bury().await;
                // A caller that is gone does not need the answer.
                let _ = ready.send(Err(error));
                return;
            }
            Err(None) => return self.bury().await,
        }
        let outcome = self.watch().await;
        self.shared.set_ended();
        let Pump { nursery: _nursery, control, registration, output, events, limits, .. } = self;
        let (gone_in, gone) = watch::channel(outcome.lost);
        let confirm = confirm(control, registration, gone_in, outcome.lost);
        let deliver = deliver(output, events, limits.drain_grace, outcome, gone);
        tokio::join!(confirm, deliver);
    }

    /// Waits until the command runs. The error is `None` when nobody waits for it.
    async fn start(
        &mut self,
        mut ready: oneshot::Sender<Started>,
    ) -> Result<(), Option<(oneshot::Sender<Started>, NotStarted)>> {
        let deadline = self.limits.timeout.map(|timeout| self.started + timeout);
        let control = self.control.clone();
        let error = tokio::select! {
            biased;
            report = control.report() => match report {
                Some(Report::Started { pid }) => {
                    self.shared.set_pid(pid);
                    return ready.send(Ok(())).map_err(|_| { self.shared.kill_now(); None });
                }
                Some(Report::Failed { stage, errno }) => StartError::from_errno(stage, Errno(errno)).into(),
                None if !self.nursery.may_have_started(self.id) && !self.shared.kill_requested() => {
                    NotStarted::NeverBegun(self.nursery.clone())
                }
                _ => StartError::lost().into(),
            },
            () = ready.closed() => { self.stop_start(); return Err(None) }
            () = until(deadline) => { self.stop_start(); StartError::timed_out().into() }
        };
        Err(Some((ready, error)))
    }

    /// Ends a start that hangs (in a file system, say): the supervisor cannot listen then, so it is killed, and the
    /// command's process with it.
    fn stop_start(&self) {
        self.shared.kill_now();
        self.nursery.kill(self.id);
    }

    /// Waits until the supervisor is gone.
    async fn bury(self) {
        while self.control.report().await.is_some() {}
    }

    /// Pumps output until the command's own process has ended, and its tree if we end it.
    async fn watch(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut permit: Option<mpsc::OwnedPermit<Event>> = None;
        let mut discard = false;
        let mut escalate_at: Option<Instant> = None;
        let mut active_at = self.started;
        let timeout_at = self.limits.timeout.map(|timeout| self.started + timeout);
        loop {
            let idle_at = self.limits.idle_timeout.filter(|_| permit.is_some()).map(|idle| active_at + idle);
            let end_at = match outcome.reason {
                None => earliest(timeout_at, idle_at),
                Some(_) => escalate_at,
            };
            tokio::select! {
                biased;
                report = self.control.report() => match report {
                    Some(Report::Exited { status, cpu_us, peak_kib }) => {
                        outcome.exited = Some((status, cpu_us, peak_kib));
                        outcome.wall_time = self.started.elapsed();
                        // The death may be faster here than the news that it was asked for.
                        if outcome.reason.is_none() && self.shared.kill_requested() {
                            outcome.reason = Some(Ending::Killed);
                        }
                        if outcome.reason.is_some() {
                            // The rest of the tree has no business any more.
                            self.shared.kill_now();
                            outcome.answer_by.get_or_insert(Instant::now() + KILL_CONFIRM);
                        }
                        return outcome;
                    }
                    Some(_) => {}
                    None => {
                        outcome.lost = true;
                        outcome.wall_time = self.started.elapsed();
                        sys::kill_group(self.shared.pid());
                        return outcome;
                    }
                },
                () = self.shared.kill.notified(), if outcome.reason.is_none() => {
                    escalate_at = self.end(&mut outcome, Ending::Killed);
                }
                () = until(end_at) => match outcome.reason {
                    None if timeout_at.is_some_and(|at| at <= Instant::now()) => {
                        escalate_at = self.end(&mut outcome, Ending::TimedOut);
                    }
                    None => escalate_at = self.end(&mut outcome, Ending::IdleTimedOut),
                    Some(_) => {
                        self.shared.kill_now();
                        escalate_at = None;
                        outcome.answer_by = Some(Instant::now() + KILL_CONFIRM);
                    }
                },
                () = until(outcome.answer_by) => {
                    outcome.wall_time = self.started.elapsed();
                    return outcome;
                }
                reserved = self.events.clone().reserve_owned(), if permit.is_none() && !discard => {
                    match reserved {
                        Ok(reserved) => permit = Some(reserved),
                        Err(_) => discard = true,
                    }
                    active_at = Instant::now();
                }
                chunk = self.output.next(), if permit.is_some() || discard => {
                    active_at = Instant::now();
                    if let Chunk::Data(stream, bytes) = chunk
                        && let Some(permit) = permit.take()
                    {
                        permit.send(event(stream, bytes));
                    }
                }
            }
        }
    }

    /// Begins to end the tree. Returns when the grace is over, if there is one.
    fn end(&self, outcome: &mut Outcome, reason: Ending) -> Option<Instant> {
        outcome.reason = Some(reason);
        debug!(pid = self.shared.pid(), ?reason, "ending a process tree");
        if !self.limits.kill_grace.is_zero() && self.shared.signal_command(self.shared.end_signal()).is_ok() {
            // A stopped process acts on SIGTERM only when it goes on.
            let _ = self.shared.signal_command(libc::SIGCONT);
            return Some(Instant::now() + self.limits.kill_grace);
        }
        self.shared.kill_now();
        outcome.answer_by = Some(Instant::now() + KILL_CONFIRM);
        None
    }
}

impl Outcome {
    fn ending(&self) -> Ending {
        match (self.reason, self.exited) {
            (Some(reason), _) => reason,
            (None, Some((status, _, _))) if libc::WIFSIGNALED(status) => Ending::Signalled(libc::WTERMSIG(status)),
            (None, Some((status, _, _))) => Ending::Exited(libc::WEXITSTATUS(status)),
            (None, None) => Ending::Lost,
        }
    }

    fn exit(&self, output_open: bool) -> Exit {
        let (_, cpu_us, peak_kib) = self.exited.unwrap_or_default();
        Exit {
            ending: self.ending(),
            cpu_time: Duration::from_micros(cpu_us),
            peak_memory_bytes: peak_kib.saturating_mul(1024),
            wall_time: self.wall_time,
            output_open,
        }
    }
}

/// Waits for the tree's end and only then gives up the place in the set.
async fn confirm(control: Arc<ControlSocket>, registration: Registration, gone: watch::Sender<bool>, lost: bool) {
    let mut empty = lost;
    while let Some(report) = control.report().await {
        if report == Report::Empty {
            empty = true;
            gone.send_replace(true);
        }
    }
    if !empty {
        debug!("a supervisor vanished");
    }
    drop(registration);
    gone.send_replace(true);
}

/// Delivers what the command itself wrote, then the exit; afterwards keeps the pipes empty while the tree lives.
async fn deliver(
    mut output: Output,
    events: mpsc::Sender<Event>,
    drain_grace: Duration,
    outcome: Outcome,
    mut gone: watch::Receiver<bool>,
) {
    let killed = outcome.reason.is_some() || outcome.lost;
    if killed {
        // When the tree is confirmed gone or time is up, whichever is first.
        let gone = gone.wait_for(|gone| *gone);
        tokio::select! { _ = gone => {} () = until(outcome.answer_by) => {} }
    }
    let mut waiting = output.waiting();
    while let Ok(permit) = events.reserve().await {
        match output.next_waiting(&mut waiting) {
            Some(Chunk::Data(stream, bytes)) => permit.send(event(stream, bytes)),
            Some(Chunk::End) => {}
            None => break,
        }
    }
    output.close_ended();
    if output.is_open() && !killed {
        drain(&mut output, &events, Instant::now() + drain_grace).await;
    }
    if let Ok(permit) = events.reserve().await {
        permit.send(Event::Exit(outcome.exit(output.is_open())));
    }
    drop(events);
    let mut gone = pin!(gone.wait_for(|gone| *gone));
    while output.is_open() {
        tokio::select! { biased; _ = &mut gone => return, _ = output.next() => {} }
    }
}

/// Delivers output of children that still hold the pipes, until they let go or `deadline`.
async fn drain(output: &mut Output, events: &mpsc::Sender<Event>, deadline: Instant) {
    let work = async {
        while output.is_open() {
            let Ok(permit) = events.reserve().await else { return };
            if let Chunk::Data(stream, bytes) = output.next().await {
                permit.send(event(stream, bytes));
            }
        }
    };
    // The grace is over or not: both are fine.
    let _ = tokio::time::timeout_at(deadline, work).await;
}

fn event(stream: Stream, bytes: bytes::Bytes) -> Event {
    match stream {
        Stream::Stdout => Event::Stdout(bytes),
        Stream::Stderr => Event::Stderr(bytes),
    }
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => future::pending().await,
    }
}
