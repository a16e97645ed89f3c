//! The provider: every call finds its sandbox and passes the work on.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sandbox_core::{
    BackgroundServices, ByteString, Connect, Endpoint, ExecRequest, ExecStream, Files, Jobs, ListSweep, Metrics,
    PauseResume, PortForwarding, ProviderInfo, Pty, PtyAttach, Renew, Result, SandboxHandle, SandboxProvider,
    SandboxSpec, SandboxStatus, async_trait, tracing,
};
use tokio::{sync::Semaphore, task::AbortHandle};

use crate::{
    agent::Agents,
    client::Client,
    config::{Access, DaytonaConfig, seconds},
    create::{check_env, create},
    error::NAME,
    exec::exec,
    info::info,
    labels::PAUSED,
    lifecycle::delete,
    toolbox::check,
    transfer,
};

/// So many commands are remembered whose output was delivered; what they left goes with the next command.
const DELIVERED_KEPT: usize = 64;

/// Sandboxes of which such commands are remembered.
const SANDBOXES_KEPT: usize = 1024;

/// The Daytona provider. Dropping it leaves sandboxes alone; a time to live is then the service's business.
pub struct DaytonaProvider {
    pub(crate) shared: Arc<Shared>,
}

/// What calls need beside their sandbox.
pub(crate) struct Shared {
    pub(crate) config: DaytonaConfig,
    pub(crate) access: Access,
    pub(crate) client: Arc<Client>,
    /// Turns for creations.
    pub(crate) creating: Semaphore,
    expiries: Mutex<HashMap<String, AbortHandle>>,
    delivered: Mutex<HashMap<String, Vec<String>>>,
    pub(crate) agents: Agents,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DaytonaProvider {
    /// A provider with these settings. Sends nothing.
    ///
    /// # Errors
    /// `InvalidInput`, naming the setting; `Unauthorized` without a credential.
    pub fn new(config: DaytonaConfig) -> Result<Self> {
        config.validate()?;
        let access = config.connection.access()?;
        let client = Arc::new(Client::new(&config, &access)?);
        let creating = Semaphore::new(config.batch.concurrency.min(Semaphore::MAX_PERMITS));
        let (expiries, delivered) = (Mutex::default(), Mutex::default());
        let agents = Agents::default();
        Ok(Self { shared: Arc::new(Shared { config, access, client, creating, expiries, delivered, agents }) })
    }
}

impl Shared {
    /// Lets a sandbox go at a moment. The service's own clock counts whole minutes, and ends it when we do not.
    pub(crate) fn expire(&self, handle: &SandboxHandle, at: Instant) {
        let id = handle.sandbox_id.clone();
        let (client, close) = (self.client.clone(), seconds(self.config.operations.close_timeout_s));
        let task = tokio::spawn({
            let id = id.clone();
            async move {
                tokio::time::sleep_until(at.into()).await;
                if let Err(error) = delete(&client, &id, close).await {
                    tracing::warn!(sandbox_id = id, kind = %error.kind(), "an expired sandbox could not be removed");
                }
            }
        });
        let mut expiries = lock(&self.expiries);
        expiries.retain(|_, task| !task.is_finished());
        if let Some(before) = expiries.insert(id, task.abort_handle()) {
            before.abort();
        }
    }

    /// Forgets the end of a sandbox.
    pub(crate) fn stop_clock(&self, id: &str) {
        if let Some(task) = lock(&self.expiries).remove(id) {
            task.abort();
        }
    }

    pub(crate) fn note_delivered(&self, sandbox: &str, job: &str) {
        let mut all = lock(&self.delivered);
        if all.len() >= SANDBOXES_KEPT {
            all.clear();
        }
        let jobs = all.entry(sandbox.to_owned()).or_default();
        if jobs.len() < DELIVERED_KEPT {
            jobs.push(job.to_owned());
        }
    }

    /// Commands of a sandbox whose output was delivered since this was asked last.
    pub(crate) fn delivered(&self, sandbox: &str) -> Vec<String> {
        lock(&self.delivered).remove(sandbox).unwrap_or_default()
    }
}

#[async_trait]
impl SandboxProvider for DaytonaProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn info(&self) -> ProviderInfo {
        info(&self.shared.config)
    }

    async fn create(&self, spec: SandboxSpec) -> Result<SandboxHandle> {
        spec.validate()?;
        self.info().check_spec(&spec)?;
        check_env(&spec.env)?;
        create(&self.shared, spec).await.map_err(|error| error.with_provider(NAME))
    }

    async fn exec(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        exec(&self.shared, handle, request).await.map_err(|error| error.with_provider(NAME))
    }

    async fn upload_file(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        check(handle)?;
        transfer::upload(&self.shared, handle, local, remote).await.map_err(|error| error.with_provider(NAME))
    }

    async fn download_file(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        check(handle)?;
        transfer::download(&self.shared, handle, remote, local).await.map_err(|error| error.with_provider(NAME))
    }

    async fn status(&self, handle: &SandboxHandle) -> Result<SandboxStatus> {
        if handle.provider_name != NAME {
            check(handle)?;
        }
        if check(handle).is_err() {
            return Ok(SandboxStatus::Stopped);
        }
        let within = seconds(self.shared.config.operations.close_timeout_s).min(Duration::from_secs(30));
        Ok(match self.shared.look(&handle.sandbox_id, within).await {
            Ok(dto) => dto.status(dto.label(PAUSED).is_some()),
            Err(failure) if failure.status() == Some(404) => SandboxStatus::Stopped,
            Err(_) => SandboxStatus::Unknown,
        })
    }

    async fn close(&self, handle: &SandboxHandle) -> Result<()> {
        if handle.provider_name != NAME {
            check(handle)?;
        }
        if check(handle).is_err() {
            return Ok(());
        }
        self.shared.stop_clock(&handle.sandbox_id);
        drop(self.shared.delivered(&handle.sandbox_id));
        self.shared.agents.forget(&handle.sandbox_id);
        self.shared.delete(&handle.sandbox_id, seconds(self.shared.config.operations.close_timeout_s)).await
    }

    async fn aclose(&self) -> Result<()> {
        for (_, task) in lock(&self.shared.expiries).drain() {
            task.abort();
        }
        self.shared.agents.clear();
        Ok(())
    }

    fn as_background_services(&self) -> Option<&dyn BackgroundServices> {
        self.is_exact().then_some(self as _)
    }

    fn as_connect(&self) -> Option<&dyn Connect> {
        Some(self)
    }

    fn as_endpoint(&self) -> Option<&dyn Endpoint> {
        Some(self)
    }

    fn as_files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn as_jobs(&self) -> Option<&dyn Jobs> {
        self.is_exact().then_some(self as _)
    }

    fn as_list_sweep(&self) -> Option<&dyn ListSweep> {
        Some(self)
    }

    fn as_metrics(&self) -> Option<&dyn Metrics> {
        Some(self)
    }

    fn as_pause_resume(&self) -> Option<&dyn PauseResume> {
        Some(self)
    }

    fn as_port_forwarding(&self) -> Option<&dyn PortForwarding> {
        Some(self)
    }

    fn as_pty(&self) -> Option<&dyn Pty> {
        Some(self)
    }

    fn as_pty_attach(&self) -> Option<&dyn PtyAttach> {
        Some(self)
    }

    fn as_renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }
}

impl DaytonaProvider {
    fn is_exact(&self) -> bool {
        self.shared.config.operations.exec_mode == crate::config::ExecMode::Job
    }
}

/// What a command leaves in the background lives until the sandbox closes: an ordinary exec does all of it.
#[async_trait]
impl BackgroundServices for DaytonaProvider {
    async fn exec_with_background_services(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        self.exec(handle, request).await
    }
}
