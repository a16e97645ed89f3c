//! The provider: every call finds its sandbox and passes the work on.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sandbox_core::{
    BackgroundServices, BuildImage, ByteString, Connect, Endpoint, ErrorKind, ExecRequest, ExecStream, Files,
    ImageConfigs, Jobs, ListSweep, Metrics, Network, Networks, PauseResume, PortForwarding, ProviderInfo, Pty,
    PtyAttach, Renew, Result, RuntimeRequirements, SandboxError, SandboxHandle, SandboxProvider, SandboxSpec,
    SandboxStatus, SharedStorage, Sidecars, Snapshots, Volumes, async_trait, tracing,
};
use tokio::sync::Semaphore;

use crate::{
    bare,
    config::{AgentMode, DockerConfig},
    create::create,
    engine::Engine,
    error::NAME,
    found,
    info::info,
    pool::Pools,
    sandbox::{GENERATION, Sandbox, incarnation},
};

/// How long `status` waits for the engine before it says that it does not know.
const STATUS_LIMIT: Duration = Duration::from_secs(10);

/// The docker provider. Dropping it ends its connections; sandboxes stay, and are swept when their owner is gone.
pub struct DockerProvider {
    pub(crate) shared: Arc<Shared>,
}

/// What calls need beside their sandbox.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    /// Of sandboxes whose spec does not say whose they are.
    pub(crate) run_id: String,
    /// Whether the engine has shown that it does not see this machine's folders.
    pub(crate) cannot_share: AtomicBool,
    pub(crate) pools: Pools,
    turns: Option<Arc<Semaphore>>,
    sandboxes: Mutex<HashMap<String, Arc<Sandbox>>>,
}

impl DockerProvider {
    /// A provider with these settings. Reaches nothing yet.
    ///
    /// # Errors
    /// `InvalidInput`, naming the setting.
    pub fn new(config: DockerConfig) -> Result<Self> {
        config.validate()?;
        let turns = config.concurrency.map(|count| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))));
        let shared = Shared {
            engine: Arc::new(Engine::new(Arc::new(config))),
            run_id: sandbox_agent_client::random_hex(8)?,
            cannot_share: AtomicBool::new(false),
            pools: Pools::default(),
            turns,
            sandboxes: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    fn has_agent(&self) -> bool {
        self.shared.engine.config.agent != AgentMode::Off
    }

    /// The sandbox of a handle, which runs or is paused.
    pub(crate) async fn open(&self, handle: &SandboxHandle) -> Result<Arc<Sandbox>> {
        self.shared.open(handle).await
    }
}

impl Drop for DockerProvider {
    /// What was made ahead is removed in the background, if nobody has closed the provider.
    fn drop(&mut self) {
        let pool = self.shared.engine.config.pool;
        if (pool.network > 0 || pool.ready > 0)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let shared = self.shared.clone();
            runtime.spawn(async move { Pools::close(&shared).await });
        }
    }
}

/// Refuses a handle that another provider made.
pub(crate) fn check_provider(handle: &SandboxHandle) -> Result<()> {
    if handle.provider_name == NAME {
        return Ok(());
    }
    let message = format!("sandbox {} belongs to provider {:?}", handle.sandbox_id, handle.provider_name);
    Err(SandboxError::not_found(message).with_provider(NAME))
}

pub(crate) fn not_found(id: &str, why: &str) -> SandboxError {
    SandboxError::not_found(format!("sandbox {id} {why}")).with_provider(NAME)
}

impl Shared {
    pub(crate) fn sandboxes(&self) -> MutexGuard<'_, HashMap<String, Arc<Sandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, handle: &SandboxHandle) -> Option<Arc<Sandbox>> {
        self.sandboxes().get(&handle.sandbox_id).filter(|sandbox| sandbox.is_meant_by(handle)).cloned()
    }

    pub(crate) async fn open(&self, handle: &SandboxHandle) -> Result<Arc<Sandbox>> {
        check_provider(handle)?;
        let id = &handle.sandbox_id;
        if handle.generation != GENERATION {
            return Err(not_found(id, "was replaced: the handle is of another generation"));
        }
        if let Some(sandbox) = self.known(handle) {
            return Ok(sandbox);
        }
        let found = found::find(&self.engine, id).await?;
        let found = found.ok_or_else(|| not_found(id, "is closed or was never made by this provider"))?;
        let labels = found.labels.clone().filter(|labels| labels.id == *id);
        let labels = labels.ok_or_else(|| not_found(id, "is a container that this system has not made"))?;
        if incarnation(handle) != Some(labels.incarnation.as_str()) {
            return Err(not_found(id, "was replaced by another one"));
        }
        match found.status {
            SandboxStatus::Running | SandboxStatus::Paused => {}
            SandboxStatus::Starting => {
                return Err(
                    SandboxError::invalid_state(format!("sandbox {id} is still being made")).with_provider(NAME)
                );
            }
            _ => return Err(not_found(id, &format!("is gone: {}", found.ending()))),
        }
        let sandbox = Arc::new(Sandbox::new(&found, labels));
        Ok(self.sandboxes().entry(id.clone()).or_insert(sandbox).clone())
    }

    pub(crate) fn target(&self, sandbox: &Sandbox) -> bare::Target {
        bare::Target {
            engine: self.engine.clone(),
            container: sandbox.container.clone(),
            workdir: sandbox.labels.traits.workdir.clone(),
            shell: self.engine.config.shell.clone(),
        }
    }

    /// Removes the sandbox of a handle.
    pub(crate) async fn close(&self, handle: &SandboxHandle) -> Result<()> {
        check_provider(handle)?;
        let id = &handle.sandbox_id;
        let sandbox = match self.known(handle) {
            Some(sandbox) => sandbox,
            None => match found::find(&self.engine, id).await? {
                None => return Ok(()),
                Some(found) => match found.labels.clone().filter(|labels| labels.id == *id) {
                    // Another one has its place: what was meant is gone.
                    Some(labels) if incarnation(handle) != Some(labels.incarnation.as_str()) => return Ok(()),
                    Some(labels) => Arc::new(Sandbox::new(&found, labels)),
                    None => return Err(not_found(id, "is a container that this system has not made")),
                },
            },
        };
        sandbox.remove(&self.engine).await?;
        self.sandboxes().remove(id);
        tracing::debug!(sandbox_id = %id, "sandbox was closed");
        Ok(())
    }
}

#[async_trait]
impl SandboxProvider for DockerProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn info(&self) -> ProviderInfo {
        info(&self.shared.engine.config)
    }

    async fn create(&self, spec: SandboxSpec) -> Result<SandboxHandle> {
        spec.validate()?;
        self.info().check_spec(&spec)?;
        let sandbox = create(&self.shared, spec).await.map_err(|error| error.with_provider(NAME))?;
        tracing::debug!(sandbox_id = sandbox.id(), via = ?sandbox.labels.traits.via, "sandbox was made");
        let handle = sandbox.handle();
        self.shared.sandboxes().insert(handle.sandbox_id.clone(), sandbox);
        Ok(handle)
    }

    async fn exec(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        request.validate()?;
        let sandbox = self.open(handle).await?;
        sandbox.check_not_paused()?;
        let permit = match &self.shared.turns {
            Some(turns) => Some(turns.clone().acquire_owned().await.map_err(|_| SandboxError::internal("no turns"))?),
            None => None,
        };
        let engine = &self.shared.engine;
        let stream = match &sandbox.link {
            Some(_) => sandbox.ask(engine, "a command", async |client| client.exec(request).await).await?,
            None => match bare::exec(self.shared.target(&sandbox), &sandbox.shell, request).await {
                Ok(stream) => stream,
                Err(error) => return Err(sandbox.explain(engine, error).await),
            },
        };
        let stream = sandbox.explained(engine, stream);
        Ok(match permit {
            Some(permit) => stream.with_guard(permit),
            None => stream,
        })
    }

    async fn upload_file(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        self.upload(handle, local, remote).await
    }

    async fn download_file(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        self.download(handle, remote, local).await
    }

    async fn status(&self, handle: &SandboxHandle) -> Result<SandboxStatus> {
        check_provider(handle)?;
        let looked = tokio::time::timeout(STATUS_LIMIT, found::find(&self.shared.engine, &handle.sandbox_id)).await;
        let found = match looked {
            Ok(Ok(found)) => found,
            // A name that no container can have; not a setting, of which nothing follows for the sandbox.
            Ok(Err(error)) if error.kind() == ErrorKind::InvalidInput && error.field().is_none() => None,
            _ => return Ok(SandboxStatus::Unknown),
        };
        let found = found.filter(|found| {
            found.labels.as_ref().is_some_and(|labels| Some(labels.incarnation.as_str()) == incarnation(handle))
        });
        if let (Some(found), Some(sandbox)) = (&found, self.shared.known(handle)) {
            sandbox.is_paused.store(found.status == SandboxStatus::Paused, Ordering::Release);
        }
        Ok(found.map_or(SandboxStatus::Stopped, |found| found.status))
    }

    async fn close(&self, handle: &SandboxHandle) -> Result<()> {
        self.shared.close(handle).await
    }

    async fn aclose(&self) -> Result<()> {
        Pools::close(&self.shared).await;
        let all: Vec<_> = self.shared.sandboxes().drain().map(|(_, sandbox)| sandbox).collect();
        for sandbox in all {
            if let Some(link) = &sandbox.link {
                // Commands under way are the sandbox's: they wait for a client for a while.
                let _ = tokio::time::timeout(Duration::from_secs(1), link.close()).await;
            }
        }
        Ok(())
    }

    fn as_background_services(&self) -> Option<&dyn BackgroundServices> {
        self.has_agent().then_some(self as _)
    }

    fn as_build_image(&self) -> Option<&dyn BuildImage> {
        Some(self)
    }

    fn as_connect(&self) -> Option<&dyn Connect> {
        Some(self)
    }

    fn as_endpoint(&self) -> Option<&dyn Endpoint> {
        Some(self)
    }

    fn as_files(&self) -> Option<&dyn Files> {
        self.has_agent().then_some(self as _)
    }

    fn as_image_config(&self) -> Option<&dyn ImageConfigs> {
        Some(self)
    }

    fn as_jobs(&self) -> Option<&dyn Jobs> {
        self.has_agent().then_some(self as _)
    }

    fn as_list_sweep(&self) -> Option<&dyn ListSweep> {
        Some(self)
    }

    fn as_metrics(&self) -> Option<&dyn Metrics> {
        Some(self)
    }

    fn as_network(&self) -> Option<&dyn Network> {
        Some(self)
    }

    fn as_networks(&self) -> Option<&dyn Networks> {
        Some(self)
    }

    fn as_pause_resume(&self) -> Option<&dyn PauseResume> {
        Some(self)
    }

    fn as_port_forwarding(&self) -> Option<&dyn PortForwarding> {
        self.has_agent().then_some(self as _)
    }

    fn as_pty(&self) -> Option<&dyn Pty> {
        self.has_agent().then_some(self as _)
    }

    fn as_pty_attach(&self) -> Option<&dyn PtyAttach> {
        self.has_agent().then_some(self as _)
    }

    fn as_renew(&self) -> Option<&dyn Renew> {
        self.has_agent().then_some(self as _)
    }

    fn as_runtime_requirements(&self) -> Option<&dyn RuntimeRequirements> {
        Some(self)
    }

    fn as_shared_storage(&self) -> Option<&dyn SharedStorage> {
        self.shared.engine.config.shared_storage.as_ref().map(|_| self as _)
    }

    fn as_sidecars(&self) -> Option<&dyn Sidecars> {
        Some(self)
    }

    fn as_snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn as_volumes(&self) -> Option<&dyn Volumes> {
        Some(self)
    }
}
