use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sandbox_core::{
    BackgroundServices, ByteString, Capability, CapabilitySet, Connect, Endpoint, ExecRequest, ExecStream, Field,
    Files, Jobs, ListSweep, Metrics, PauseResume, ProviderInfo, Pty, PtyAttach, Renew, Result, SandboxError,
    SandboxHandle, SandboxProvider, SandboxSpec, SandboxStatus,
};
use tokio::sync::watch;

use super::{
    exec::exec,
    path::resolve,
    transfer::{download, give, upload},
    world::{FakeBox, NAME, World},
};
use crate::fault::Fault;

pub(crate) struct Fake {
    pub(super) world: Arc<World>,
}

impl Fake {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world }
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.world.has(fault)
    }

    pub(super) fn handle(id: &str) -> SandboxHandle {
        let mut handle = SandboxHandle::new(id, NAME);
        handle.generation = 1;
        handle
    }

    fn make(&self, spec: SandboxSpec) -> Result<Arc<FakeBox>> {
        let id = self.world.next_id();
        let home = self.world.root().join(if self.has(Fault::WorkspaceShared) { "shared" } else { &id });
        let workdir = match &spec.workdir {
            Some(workdir) if !self.has(Fault::WorkdirNotMade) => workdir.into(),
            _ => home.join("work"),
        };
        std::fs::create_dir_all(&home).map_err(|error| SandboxError::io("the home", error))?;
        std::fs::create_dir_all(&workdir).map_err(|error| SandboxError::io("the workdir", error))?;
        let made = Instant::now();
        let sandbox = Arc::new(FakeBox {
            id: id.clone(),
            home,
            workdir,
            made,
            expiry: watch::Sender::new(spec.ttl().map(|ttl| made + ttl)),
            is_paused: AtomicBool::new(false),
            closed: watch::Sender::new(false),
            execs: AtomicU64::new(0),
            jobs: Mutex::default(),
            sessions: Mutex::default(),
            spec,
        });
        give(&sandbox, &sandbox.workdir);
        self.world.boxes.lock().unwrap().insert(id, sandbox.clone());
        Ok(sandbox)
    }
}

/// Removes a sandbox whose create did not come to its end.
struct Unfinished(Option<(Arc<World>, String)>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some((world, id)) = self.0.take() {
            tokio::spawn(async move { world.close(&id).await });
        }
    }
}

/// Ends a sandbox at its expiry, wherever that has moved to.
async fn watch_expiry(world: std::sync::Weak<World>, id: String, mut expiry: watch::Receiver<Option<Instant>>) {
    loop {
        let at = *expiry.borrow_and_update();
        let far = Instant::now() + Duration::from_secs(86_400);
        tokio::select! {
            _ = tokio::time::sleep_until(at.unwrap_or(far).into()) => break,
            changed = expiry.changed() => if changed.is_err() { return },
        }
    }
    if let Some(world) = world.upgrade() {
        world.close(&id).await;
    }
}

#[sandbox_core::async_trait]
impl SandboxProvider for Fake {
    fn name(&self) -> &str {
        NAME
    }

    fn info(&self) -> ProviderInfo {
        let name = if self.has(Fault::InfoHasAnotherName) { "other" } else { NAME };
        ProviderInfo::new(name).with_isolation("none").emulates(Field::TtlS, "a timer of this process").honours([
            Field::Name,
            Field::Workdir,
            Field::Env,
            Field::Metadata,
            Field::ProviderOptions,
            Field::Ports,
            Field::User,
            Field::ExecEnv,
            Field::ExecCwd,
            Field::ExecUser,
            Field::ExecTimeoutS,
            Field::ExecIdleTimeoutS,
            Field::ExecKillGraceS,
            Field::ExecStdinBytes,
            Field::ExecStdinStream,
            Field::ExecSignal,
        ])
    }

    async fn create(&self, spec: SandboxSpec) -> Result<SandboxHandle> {
        if let Some(option) = spec.provider_options.keys().next().filter(|_| !self.has(Fault::OptionsIgnored)) {
            return Err(SandboxError::invalid_input(format!("provider_options.{option}"), "unknown option"));
        }
        let sandbox = self.make(spec)?;
        let mut unfinished = Unfinished(Some((self.world.clone(), sandbox.id.clone())));
        if self.has(Fault::DroppedCreateLeaks) {
            unfinished.0.take();
        }
        // A backend takes its time; a caller may go away meanwhile.
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if !self.has(Fault::TtlIgnored) {
            let world = Arc::downgrade(&self.world);
            tokio::spawn(watch_expiry(world, sandbox.id.clone(), sandbox.expiry.subscribe()));
        }
        unfinished.0.take();
        Ok(Self::handle(&sandbox.id))
    }

    async fn exec(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        if self.has(Fault::ExecAfterClose) && self.world.find(handle).is_err() {
            return Ok(ExecStream::finished("", "", sandbox_core::ExecExit::new(sandbox_core::ExecOutcome::Exited(0))));
        }
        exec(&self.world, self.world.find(handle)?, request).await
    }

    async fn upload_file(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        upload(&self.world, &*self.world.find(handle)?, local, remote)
    }

    async fn download_file(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        let sandbox = self.world.find(handle)?;
        let is_special = |path: &Path| path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
        if self.has(Fault::SpecialFileRead) && is_special(&resolve(&self.world, &sandbox, remote)?) {
            // As a read of a pipe that nobody writes to.
            std::future::pending::<()>().await;
        }
        let (world, remote, local) = (self.world.clone(), remote.clone(), local.to_owned());
        let work = tokio::task::spawn_blocking(move || download(&world, &sandbox, &remote, &local));
        work.await.map_err(|_| SandboxError::internal("the download panicked"))?
    }

    async fn status(&self, handle: &SandboxHandle) -> Result<SandboxStatus> {
        self.world.is_ours(handle)?;
        Ok(match self.world.get(&handle.sandbox_id) {
            _ if self.has(Fault::StatusInvented) => SandboxStatus::Running,
            None => SandboxStatus::Stopped,
            Some(sandbox) if sandbox.is_paused.load(Ordering::SeqCst) => SandboxStatus::Paused,
            Some(_) => SandboxStatus::Running,
        })
    }

    async fn close(&self, handle: &SandboxHandle) -> Result<()> {
        self.world.is_ours(handle)?;
        if self.has(Fault::CloseNotIdempotent) && self.world.get(&handle.sandbox_id).is_none() {
            return Err(SandboxError::not_found("the sandbox is gone already"));
        }
        if self.has(Fault::ParallelCloseFails) {
            let mut closing = self.world.closing.lock().unwrap();
            let is_running = self.world.get(&handle.sandbox_id).is_some();
            if closing.contains(&handle.sandbox_id) && is_running {
                return Err(SandboxError::invalid_state("the removal is already in progress"));
            }
            closing.push(handle.sandbox_id.clone());
        }
        if self.has(Fault::ParallelCloseFails) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.world.close(&handle.sandbox_id).await;
        Ok(())
    }

    async fn aclose(&self) -> Result<()> {
        if self.has(Fault::AcloseEndsSandboxes) {
            let ids: Vec<_> = self.world.boxes.lock().unwrap().keys().cloned().collect();
            for id in ids {
                self.world.close(&id).await;
            }
        }
        Ok(())
    }

    fn as_endpoint(&self) -> Option<&dyn Endpoint> {
        Some(self)
    }

    fn as_pause_resume(&self) -> Option<&dyn PauseResume> {
        Some(self)
    }

    fn as_pty(&self) -> Option<&dyn Pty> {
        Some(self)
    }

    fn as_pty_attach(&self) -> Option<&dyn PtyAttach> {
        Some(self)
    }

    fn as_connect(&self) -> Option<&dyn Connect> {
        Some(self)
    }

    fn as_background_services(&self) -> Option<&dyn BackgroundServices> {
        Some(self)
    }

    fn as_files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn as_jobs(&self) -> Option<&dyn Jobs> {
        Some(self)
    }

    fn as_list_sweep(&self) -> Option<&dyn ListSweep> {
        Some(self)
    }

    fn as_renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn as_metrics(&self) -> Option<&dyn Metrics> {
        Some(self)
    }

    fn capabilities(&self) -> CapabilitySet {
        use Capability as Has;
        let mut all = vec![Has::Endpoint, Has::PauseResume, Has::Pty, Has::Connect, Has::BackgroundServices];
        all.extend([Has::Files, Has::ListSweep, Has::Renew, Has::Jobs, Has::PtyAttach]);
        if !self.has(Fault::CapabilityNotDeclared) {
            all.push(Has::Metrics);
        }
        if self.has(Fault::CapabilityWithoutAccessor) {
            all.push(Has::Snapshots);
        }
        all.into_iter().collect()
    }
}
