//! A process that waits for the next sandbox, so that making that one does not wait for its namespaces, its root and its
//! cgroup. One for each provider, from its first sandbox on, for one of the kind of the last; it ends with this
//! process, and removes what it has made.

use std::{
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use sandbox_agent::{Basis, Launcher, Prepared};
use sandbox_core::{Result, SandboxError};

use crate::{
    folder::random_hex,
    isolated::{door, error::launch as launch_error},
    provider::Shared,
};

/// It is started when the sandbox before it has had the time to run its first command.
const START_AFTER: Duration = Duration::from_millis(10);

/// The process, and the socket that it hands to its sandbox, still without a place.
pub(crate) struct Waiting {
    /// The id of the sandbox to come.
    pub(crate) id: String,
    pub(crate) socket: OwnedFd,
    pub(crate) launcher: Prepared,
}

impl Waiting {
    /// Starts one. It makes ahead what sandboxes with this basis need.
    fn start(launcher: &Launcher, basis: Option<&Basis>) -> Result<Self> {
        let id = format!("local-{}", random_hex(6)?);
        let socket = door::socket()?;
        let theirs = socket.try_clone().map_err(|error| SandboxError::io("the agent's socket", error))?;
        let launcher = match basis {
            Some(basis) => launcher.prepare_ahead(&basis.clone().with_cgroup_name(&id), theirs),
            None => launcher.prepare(theirs),
        };
        Ok(Self { id, socket, launcher: launcher.map_err(launch_error)? })
    }
}

/// The place for the launcher that waits.
#[derive(Default)]
pub(crate) struct Standby(Mutex<State>);

#[derive(Default)]
struct State {
    /// Of the agent file that was used last.
    launcher: Option<(AgentFile, Launcher)>,
    /// Of that launcher.
    waiting: Option<Waiting>,
    /// Of the last sandbox: the next one is likely to be of its kind.
    basis: Option<Basis>,
    /// Held by the task that starts the next one.
    coming: Weak<()>,
    is_over: bool,
}

impl Standby {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process that waits, if it runs this very agent file, else a new one. Blocks.
    pub(crate) fn take(&self, agent: &Path) -> Result<Waiting> {
        let file = AgentFile::find(agent).ok_or_else(|| {
            let path = agent.display();
            SandboxError::create(format!("the agent file {path} is gone")).with_help("set agent_path, or put it there")
        })?;
        let (launcher, waiting, _old) = {
            let mut state = self.lock();
            match &state.launcher {
                Some((known, launcher)) if *known == file => (launcher.clone(), state.waiting.take(), None),
                _ => {
                    let launcher = Launcher::new(agent);
                    // What runs another file ends when the lock is free again.
                    let old = (state.launcher.replace((file, launcher.clone())), state.waiting.take());
                    (launcher, None, Some(old))
                }
            }
        };
        match waiting {
            Some(waiting) if waiting.launcher.is_waiting() => Ok(waiting),
            _ => Waiting::start(&launcher, None),
        }
    }

    /// Takes note of what a sandbox needs.
    pub(crate) fn learn(&self, basis: Basis) {
        self.lock().basis = Some(basis);
    }

    /// Sees to it that there will be one soon. Within a runtime.
    pub(crate) fn refill(shared: &Arc<Shared>) {
        let mut state = shared.standby.lock();
        if state.is_over || state.waiting.is_some() || state.coming.strong_count() > 0 {
            return;
        }
        let Some(launcher) = state.launcher.as_ref().map(|(_, launcher)| launcher.clone()) else { return };
        let basis = state.basis.clone();
        let coming = Arc::new(());
        state.coming = Arc::downgrade(&coming);
        drop(state);
        let shared = Arc::downgrade(shared);
        tokio::spawn(async move {
            tokio::time::sleep(START_AFTER).await;
            let start = move || {
                // Its end, or its failure, is the next creation's to see: that starts one of its own.
                if let (Some(shared), Ok(waiting)) = (shared.upgrade(), Waiting::start(&launcher, basis.as_ref())) {
                    let mut state = shared.standby.lock();
                    let is_current = state.launcher.as_ref().is_some_and(|(_, current)| current.is_same(&launcher));
                    if !state.is_over && is_current {
                        state.waiting = Some(waiting);
                    }
                }
                drop(coming);
            };
            // A runtime that ends takes no more work.
            let _ = tokio::task::spawn_blocking(start).await;
        });
    }

    /// Ends it; there will be no other one. Blocks for a moment.
    pub(crate) fn end(&self) {
        let waiting = {
            let mut state = self.lock();
            state.is_over = true;
            (state.waiting.take(), state.launcher.take())
        };
        drop(waiting);
    }
}

/// One agent file, whatever has its path later.
#[derive(PartialEq, Eq)]
struct AgentFile {
    path: PathBuf,
    inode: (u64, u64),
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl AgentFile {
    fn find(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        let (inode, changed) = ((found.dev(), found.ino()), (found.ctime(), found.ctime_nsec()));
        Some(Self { path: path.to_owned(), inode, changed })
    }
}
