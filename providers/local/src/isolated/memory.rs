//! Whether a command was killed for memory: told by the cgroup's counter, before and after.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use sandbox_agent::Cgroup;
use sandbox_core::{
    Admitted, ControlReply, ControlRequest, ExecEvent, ExecExit, ExecOutcome, PtyEvent, Result, SandboxError, Session,
    SessionControl, SessionEvent, async_trait,
};

/// SIGKILL, and how shells tell of it.
const KILLED: i32 = 9;
const KILLED_BELOW: i32 = 128 + KILLED;

/// Watches the memory limit of one sandbox.
#[derive(Clone)]
pub(crate) struct MemoryWatch {
    cgroup: Cgroup,
    /// How many of the kills are told of already: two commands that end at the same time do not share one.
    told: Arc<AtomicU64>,
}

impl MemoryWatch {
    /// None where nothing counts.
    pub(crate) fn new(cgroup: &Cgroup) -> Option<Self> {
        cgroup.metrics().ok()?.oom_kills?;
        Some(Self { cgroup: cgroup.clone(), told: Arc::default() })
    }

    /// Begins to watch, before a command is started.
    pub(crate) fn begin(&self) -> Watched {
        Watched { watch: self.clone(), before: self.kills().unwrap_or_default() }
    }

    fn kills(&self) -> Option<u64> {
        self.cgroup.metrics().ok()?.oom_kills
    }
}

/// One command that is watched.
pub(crate) struct Watched {
    watch: MemoryWatch,
    /// Kills until it was started.
    before: u64,
}

impl Watched {
    /// The same session, whose end says whether memory was the reason.
    pub(crate) fn through<E: ExitEvent>(self, mut session: Session<E>) -> Session<E> {
        let control = Through(session.control());
        Session::spawn(control, move |sink| async move {
            loop {
                match session.next().await? {
                    None => return Err(SandboxError::lost("the command ended without an exit", Admitted::Yes)),
                    Some(mut event) => {
                        let is_last = event.is_last();
                        if let Some(exit) = event.exit() {
                            exit.oom = self.verdict(&exit.outcome);
                        }
                        if !sink.send(event).await || is_last {
                            return Ok(());
                        }
                    }
                }
            }
        })
    }

    fn verdict(&self, outcome: &ExecOutcome) -> Option<bool> {
        if !matches!(outcome, ExecOutcome::Signalled(KILLED) | ExecOutcome::Exited(KILLED_BELOW)) {
            return Some(false);
        }
        let now = self.watch.kills()?;
        let tell = |told: u64| {
            let known = told.max(self.before);
            (now > known).then(|| known + 1)
        };
        Some(self.watch.told.fetch_update(Ordering::AcqRel, Ordering::Acquire, tell).is_ok())
    }
}

/// Events of sessions that end with an exit.
pub(crate) trait ExitEvent: SessionEvent {
    fn exit(&mut self) -> Option<&mut ExecExit>;
}

impl ExitEvent for ExecEvent {
    fn exit(&mut self) -> Option<&mut ExecExit> {
        match self {
            Self::Exit(exit) => Some(exit),
            _ => None,
        }
    }
}

impl ExitEvent for PtyEvent {
    fn exit(&mut self) -> Option<&mut ExecExit> {
        match self {
            Self::Exit(exit) => Some(exit),
            _ => None,
        }
    }
}

/// Hands everything on.
struct Through(Arc<dyn SessionControl>);

#[async_trait]
impl SessionControl for Through {
    async fn write(&self, data: Bytes) -> Result<()> {
        self.0.write(data).await
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        self.0.control(request).await
    }
}
