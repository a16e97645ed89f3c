//! A command or terminal that runs or has run: its process, its output, and the one client that has it.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sandbox_core::{Admitted, ErrorKind, ExecExit, ExecOutcome, ResourceUsage, SandboxError};
use sandbox_process::{Controller, Ending, Event, Exit, Process};
use tokio::sync::Notify;

use super::{
    input::Input,
    log::{Keep, Log, Stream},
};

/// Output that an attached client has not taken, at which its command has to wait.
const UNSENT_MAX: u64 = 256 * 1024;
/// The same for a command whose client lost its connection and may come back: nothing is thrown away for it.
const UNSENT_AWAY_MAX: u64 = 1024 * 1024;
/// Output of a command that is kept. What a client of a lost connection has not got of what was sent is at most 2.25
/// MiB (a queue here, the window on the way, a queue there), and [`UNSENT_AWAY_MAX`] comes on top.
pub(super) const EXEC_KEEP: Keep = Keep { head: 0, tail: 3584 * 1024 };
/// Output of a terminal that is kept for a replay.
pub(super) const TERMINAL_KEEP: Keep = Keep { head: 0, tail: 1024 * 1024 };

const SIGKILL: i32 = 9;

/// What happens to a job without a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithoutClient {
    /// It runs on, and the oldest of its output is forgotten.
    RunsOn,
    /// It runs on for this long, and waits when too much of its output is not taken; then it is ended.
    Grace(Duration),
}

/// What a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobKind {
    /// A command.
    Exec,
    /// A terminal session.
    Terminal,
    /// A terminal session without a terminal.
    Pipes,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: String,
    pub(super) without_client: WithoutClient,
    pub(super) kind: JobKind,
    pub(super) started_at_ms: u64,
    /// Which command this is, for one who asks for it again under its id.
    pub(super) fingerprint: u64,
    /// It stays known for as long as the agent lives.
    pub(super) is_permanent: bool,
    state: Mutex<State>,
    /// The log has grown, or the end is known, or the client was replaced.
    pub(super) grown: Notify,
    /// There may be room in the log.
    room: Notify,
    /// There may be room for input.
    pub(super) input_room: Notify,
    phase: Mutex<Phase>,
    /// The phase is another one.
    turned: Notify,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) log: Log,
    /// The number of the client that has it.
    pub(super) client: Option<u64>,
    /// How many clients there were.
    pub(super) clients: u64,
    /// Up to where the log was handed to a client.
    pub(super) sent: u64,
    pub(super) end: Option<End>,
    pub(super) input: Input,
    is_killed: bool,
}

/// What a job is to be.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) kind: JobKind,
    pub(super) without_client: WithoutClient,
    pub(super) keep: Keep,
    pub(super) fingerprint: u64,
    pub(super) is_permanent: bool,
}

/// How a job ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    Exit(ExecExit),
    Error(ErrorKind, String),
}

/// How far a job is.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    Starting,
    Running(Controller),
    /// Over; what it left in the background is still reached, if it ran at all.
    Over(Option<Controller>),
}

impl End {
    pub(super) fn exit(&self) -> Option<&ExecExit> {
        match self {
            End::Exit(exit) => Some(exit),
            End::Error(..) => None,
        }
    }

    pub(super) fn error(error: &SandboxError) -> End {
        End::Error(error.kind(), error.message().to_owned())
    }

    /// What a client gets instead of an exit.
    pub(super) fn to_error(kind: ErrorKind, message: &str) -> SandboxError {
        match kind {
            ErrorKind::Lost => SandboxError::lost(message, Admitted::Yes),
            kind => SandboxError::new(kind, message),
        }
    }
}

impl Job {
    pub(super) fn new(id: String, draft: &Draft) -> Arc<Self> {
        Arc::new(Self {
            id,
            without_client: draft.without_client,
            kind: draft.kind,
            started_at_ms: now_ms(),
            fingerprint: draft.fingerprint,
            is_permanent: draft.is_permanent,
            state: Mutex::new(State {
                log: Log::new(draft.keep),
                client: None,
                clients: 0,
                sent: 0,
                end: None,
                input: Input::default(),
                is_killed: false,
            }),
            grown: Notify::new(),
            room: Notify::new(),
            input_room: Notify::new(),
            phase: Mutex::new(Phase::Starting),
            turned: Notify::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, phase: Phase) {
        *self.phase() = phase;
        self.turned.notify_waiters();
    }

    /// The running process, if it runs.
    pub(super) fn controller(&self) -> Option<Controller> {
        match &*self.phase() {
            Phase::Running(controller) => Some(controller.clone()),
            _ => None,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(*self.phase(), Phase::Over(_))
    }

    /// What a process that is over has left, if it ran.
    pub(super) fn remains(&self) -> Option<Controller> {
        match &*self.phase() {
            Phase::Over(controller) => controller.clone(),
            _ => None,
        }
    }

    /// Waits until it runs or is over.
    pub(super) async fn started(&self) -> Option<Controller> {
        self.waited(|phase| !matches!(phase, Phase::Starting)).await;
        self.controller()
    }

    /// Waits until it is over.
    pub(super) async fn ended(&self) {
        self.waited(|phase| matches!(phase, Phase::Over(_))).await;
    }

    async fn waited(&self, is_there: impl Fn(&Phase) -> bool) {
        loop {
            let mut turned = pin!(self.turned.notified());
            turned.as_mut().enable();
            if is_there(&self.phase()) {
                return;
            }
            turned.await;
        }
    }

    /// Ends its whole tree, also if it is only being started.
    pub(super) fn kill(&self) {
        self.state().is_killed = true;
        if let Some(controller) = self.controller() {
            controller.kill_tree();
        }
        self.room.notify_one();
    }

    /// A client has taken output.
    pub(super) fn has_taken(&self) {
        self.room.notify_one();
    }

    /// Carries the process to its end. `oom` says whether memory was the reason of it.
    pub(super) async fn run(
        &self,
        mut process: Process,
        is_closing: impl Fn() -> bool,
        oom: impl Fn(&ExecOutcome) -> Option<bool>,
    ) {
        self.turn(Phase::Running(process.controller()));
        if self.state().is_killed {
            process.controller().kill_tree();
        }
        loop {
            self.has_room().await;
            let (stream, bytes) = match process.next_event().await {
                Some(Event::Stdout(bytes)) => (Stream::Stdout, bytes),
                Some(Event::Stderr(bytes)) => (Stream::Stderr, bytes),
                Some(Event::Exit(exit)) => {
                    let mut end = end(&exit, is_closing());
                    if let End::Exit(exit) = &mut end {
                        exit.oom = oom(&exit.outcome);
                    }
                    return self.finish(end);
                }
                Some(_) => continue,
                None => return self.finish(lost("the command's supervisor ended early")),
            };
            self.state().log.push(stream, &bytes);
            self.grown.notify_waiters();
        }
    }

    pub(super) fn finish(&self, end: End) {
        self.state().end.get_or_insert(end);
        let remains = self.controller();
        self.turn(Phase::Over(remains));
        self.grown.notify_waiters();
        self.input_room.notify_waiters();
    }

    async fn has_room(&self) {
        loop {
            {
                let state = self.state();
                let limit = match (state.client, self.without_client) {
                    _ if state.is_killed => u64::MAX,
                    (Some(_), _) => UNSENT_MAX,
                    (None, WithoutClient::RunsOn) => u64::MAX,
                    (None, WithoutClient::Grace(_)) => UNSENT_AWAY_MAX,
                };
                if state.log.end().saturating_sub(state.sent) < limit {
                    return;
                }
            }
            self.room.notified().await;
        }
    }
}

fn lost(message: &str) -> End {
    End::Error(ErrorKind::Lost, message.to_owned())
}

fn end(exit: &Exit, is_closing: bool) -> End {
    let outcome = match exit.ending {
        Ending::Exited(code) => ExecOutcome::Exited(code),
        Ending::Signalled(signal) => ExecOutcome::Signalled(signal),
        Ending::TimedOut => ExecOutcome::TimedOut { idle: false },
        Ending::IdleTimedOut => ExecOutcome::TimedOut { idle: true },
        Ending::Killed if is_closing => return lost("the sandbox was closed while the command ran"),
        Ending::Killed => ExecOutcome::Signalled(SIGKILL),
        _ => return lost("the command's supervisor ended before the command"),
    };
    let usage = ResourceUsage {
        cpu_time_s: Some(exit.cpu_time.as_secs_f64()),
        peak_memory_bytes: Some(exit.peak_memory_bytes),
        wall_time_s: Some(exit.wall_time.as_secs_f64()),
    };
    End::Exit(ExecExit::new(outcome).with_usage(usage).with_output_open(exit.output_open))
}

/// Milliseconds since the Unix epoch.
pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
