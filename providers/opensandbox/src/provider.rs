//! The provider: every call finds its sandbox and passes the work on.

use std::{path::Path, sync::Arc};

use sandbox_core::{
    BackgroundServices, ByteString, Connect, Endpoint, ExecRequest, ExecStream, Files, Jobs, ListSweep, Metrics,
    Network, NetworkPolicies, PauseResume, PortForwarding, ProviderInfo, Pty, PtyAttach, Renew, Result,
    RuntimeRequirements, SandboxHandle, SandboxProvider, SandboxSpec, SandboxStatus, SharedStorage, Snapshots,
    async_trait,
};

use crate::{
    config::{NativeSetting, OpenSandboxConfig},
    create, exec,
    shared::{Shared, check_provider},
    transfer,
};

/// Sandboxes of an OpenSandbox server.
#[derive(Debug)]
pub struct OpenSandboxProvider {
    pub(crate) shared: Arc<Shared>,
}

impl OpenSandboxProvider {
    /// A provider with these settings. Asks nobody for anything yet.
    ///
    /// # Errors
    /// `InvalidInput`, naming the setting.
    pub fn new(config: OpenSandboxConfig) -> Result<Self> {
        Ok(Self { shared: Arc::new(Shared::new(config)?) })
    }

    /// Whether every sandbox must have our daemon: only then it is known what all of them can do.
    fn has_agent(&self) -> bool {
        self.shared.config.operations.native == NativeSetting::Required
    }
}

#[async_trait]
impl SandboxProvider for OpenSandboxProvider {
    fn name(&self) -> &str {
        crate::error::NAME
    }

    fn info(&self) -> ProviderInfo {
        crate::info::info(&self.shared.config)
    }

    async fn create(&self, spec: SandboxSpec) -> Result<SandboxHandle> {
        spec.validate()?;
        self.info().check_spec(&spec)?;
        let handle = create::create(&self.shared, spec).await?;
        tracing::debug!(sandbox_id = handle.sandbox_id, "sandbox was made");
        Ok(handle)
    }

    async fn exec(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        exec::exec(&self.shared, handle, request).await
    }

    async fn upload_file(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        let state = self.shared.open(handle)?;
        match self.shared.native(&handle.sandbox_id).await? {
            Some(agent) => agent.upload(&state, local, remote).await,
            None => transfer::upload(&self.shared, handle, local, remote).await,
        }
    }

    async fn download_file(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        let state = self.shared.open(handle)?;
        match self.shared.native(&handle.sandbox_id).await? {
            Some(agent) => agent.download(&state, remote, local).await,
            None => transfer::download(&self.shared, handle, remote, local).await,
        }
    }

    async fn status(&self, handle: &SandboxHandle) -> Result<SandboxStatus> {
        check_provider(handle)?;
        Ok(match self.shared.look(&handle.sandbox_id).await {
            Ok(seen) => seen.status,
            Err(failure) => {
                tracing::debug!(sandbox_id = handle.sandbox_id, status = failure.status(), "its state is not known");
                SandboxStatus::Unknown
            }
        })
    }

    async fn close(&self, handle: &SandboxHandle) -> Result<()> {
        check_provider(handle)?;
        self.shared.stop_renewal(Some(&handle.sandbox_id));
        self.shared.remove(&handle.sandbox_id).await?;
        self.shared.forget(&handle.sandbox_id);
        Ok(())
    }

    async fn aclose(&self) -> Result<()> {
        self.shared.stop_renewal(None);
        Ok(())
    }

    fn as_background_services(&self) -> Option<&dyn BackgroundServices> {
        Some(self)
    }

    fn as_connect(&self) -> Option<&dyn Connect> {
        Some(self)
    }

    fn as_endpoint(&self) -> Option<&dyn Endpoint> {
        Some(self)
    }

    fn as_list_sweep(&self) -> Option<&dyn ListSweep> {
        Some(self)
    }

    fn as_metrics(&self) -> Option<&dyn Metrics> {
        Some(self)
    }

    fn as_network(&self) -> Option<&dyn Network> {
        self.shared.config.networking.enabled.then_some(self as _)
    }

    fn as_network_policy(&self) -> Option<&dyn NetworkPolicies> {
        Some(self)
    }

    fn as_pause_resume(&self) -> Option<&dyn PauseResume> {
        Some(self)
    }

    fn as_port_forwarding(&self) -> Option<&dyn PortForwarding> {
        (self.has_agent() || self.shared.config.networking.loopback_forwarding).then_some(self as _)
    }

    fn as_files(&self) -> Option<&dyn Files> {
        self.has_agent().then_some(self as _)
    }

    fn as_jobs(&self) -> Option<&dyn Jobs> {
        self.has_agent().then_some(self as _)
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

    fn as_runtime_requirements(&self) -> Option<&dyn RuntimeRequirements> {
        let config = &self.shared.config.runtime_requirements;
        (!config.capability_probes.is_empty() || config.shm_size_metadata_key.is_some()).then_some(self as _)
    }

    fn as_shared_storage(&self) -> Option<&dyn SharedStorage> {
        self.shared.config.shared_storage.host_path.as_ref().map(|_| self as _)
    }

    fn as_snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }
}

/// What a command leaves in the background lives until the sandbox closes: the daemon ends it with nothing else.
#[async_trait]
impl BackgroundServices for OpenSandboxProvider {
    async fn exec_with_background_services(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        self.exec(handle, request).await
    }
}
