use std::{
    collections::HashMap,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sandbox_core::{Env, ExecEvent, Result, SandboxError, SandboxHandle, SandboxSpec, SessionSink};
use tokio::sync::watch;

use super::{jobs::Job, processes, sessions::Session};
use crate::fault::Fault;

pub(super) const NAME: &str = "fake";

/// Everything that the providers of one factory share.
pub(super) struct World {
    pub(super) fault: Option<Fault>,
    root: tempfile::TempDir,
    count: AtomicU64,
    pub(super) boxes: Mutex<HashMap<String, Arc<FakeBox>>>,
    pub(super) closing: Mutex<Vec<String>>,
    /// Held by a command, for the fault that lets only one run.
    pub(super) one_at_a_time: Arc<tokio::sync::Mutex<()>>,
    /// For the fault that mixes outputs up.
    pub(super) other_sink: Mutex<Option<SessionSink<ExecEvent>>>,
    /// For the fault that keeps variables.
    pub(super) kept_env: Mutex<Env>,
}

/// One sandbox.
pub(super) struct FakeBox {
    pub(super) id: String,
    pub(super) spec: SandboxSpec,
    pub(super) home: PathBuf,
    pub(super) workdir: PathBuf,
    pub(super) made: Instant,
    pub(super) expiry: watch::Sender<Option<Instant>>,
    pub(super) is_paused: AtomicBool,
    pub(super) closed: watch::Sender<bool>,
    pub(super) execs: AtomicU64,
    /// Oldest first.
    pub(super) jobs: Mutex<Vec<Arc<Job>>>,
    pub(super) sessions: Mutex<Vec<Arc<Session>>>,
}

impl World {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        processes::reap_orphans(fault != Some(Fault::OrphansNotReaped));
        let root = tempfile::Builder::new().prefix("fake-provider-").tempdir().expect("a folder for the fake");
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).expect("an open folder");
        Self {
            fault,
            root,
            count: AtomicU64::new(0),
            boxes: Mutex::default(),
            closing: Mutex::default(),
            one_at_a_time: Arc::default(),
            other_sink: Mutex::default(),
            kept_env: Mutex::default(),
        }
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(super) fn next_id(&self) -> String {
        let root = self.root.path().file_name().unwrap_or_default().to_string_lossy();
        format!("{root}-{}", self.count.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<FakeBox>> {
        self.boxes.lock().unwrap().get(id).cloned()
    }

    pub(super) fn is_ours(&self, handle: &SandboxHandle) -> Result<()> {
        if handle.provider_name != NAME && !self.has(Fault::ForeignHandleAccepted) {
            return Err(SandboxError::invalid_input("handle", "is another provider's"));
        }
        Ok(())
    }

    /// The sandbox of a handle, if it can be worked with.
    pub(super) fn find(&self, handle: &SandboxHandle) -> Result<Arc<FakeBox>> {
        self.is_ours(handle)?;
        let found = self.get(&handle.sandbox_id).ok_or_else(|| SandboxError::not_found("the sandbox is gone"))?;
        if self.has(Fault::CreateReturnsEarly) && found.made.elapsed() < Duration::from_millis(300) {
            return Err(SandboxError::unavailable("the sandbox is not ready"));
        }
        if handle.generation != 1 && !self.has(Fault::GenerationIgnored) {
            return Err(SandboxError::not_found("the sandbox was replaced"));
        }
        if found.is_paused.load(Ordering::SeqCst) && !self.has(Fault::ExecWhilePaused) {
            return Err(SandboxError::invalid_state("the sandbox is paused"));
        }
        Ok(found)
    }

    /// Ends a sandbox. What is gone stays gone.
    pub(super) async fn close(&self, id: &str) {
        let Some(sandbox) = self.get(id) else { return };
        if !self.has(Fault::CloseLeavesExec) {
            sandbox.closed.send_replace(true);
        }
        if !self.has(Fault::BackgroundSurvivesClose) && !self.has(Fault::CloseLeavesExec) {
            processes::kill_all(processes::SANDBOX, id).await;
        }
        if !self.has(Fault::FilesStayAfterClose) && !self.has(Fault::WorkspaceShared) {
            let _ = std::fs::remove_dir_all(&sandbox.home);
        }
        self.boxes.lock().unwrap().remove(id);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // What a faulty provider has left, and what a test that ended early has.
        let all = processes::with_prefix(&self.root.path().file_name().unwrap_or_default().to_string_lossy());
        all.into_iter().for_each(|pid| processes::kill(pid, 9));
    }
}
