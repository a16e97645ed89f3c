//! What isolated sandboxes can do beyond commands and files.

use std::sync::Arc;

use sandbox_agent_client::{attach_pty, create_pty, metrics, open_port};
use sandbox_core::{
    AttachOptions, Metrics, PortForwarding, PortStream, Pty, PtyAttach, PtyStream, Result, SandboxError, SandboxHandle,
    SandboxMetrics, SandboxPtySpec, async_trait,
};

use crate::{
    error::NAME,
    isolated::{disk::used_bytes, forward::forward, inside::Inside, memory::MemoryWatch},
    provider::{LocalProvider, blocking},
    sandbox::Sandbox,
};

impl LocalProvider {
    /// An open isolated sandbox.
    pub(crate) async fn isolated(&self, handle: &SandboxHandle) -> Result<(Arc<Sandbox>, Arc<Inside>)> {
        let sandbox = self.open(handle).await?;
        let inside = sandbox.inside.clone().ok_or_else(|| {
            SandboxError::unsupported_field(NAME, "isolation", "this takes an isolated sandbox")
                .with_help("set isolation = \"namespaces\"")
        })?;
        Ok((sandbox, inside))
    }

    /// Does work through the agent.
    pub(crate) async fn ask<T>(
        &self,
        handle: &SandboxHandle,
        work: impl AsyncFnOnce(&Inside) -> Result<T>,
    ) -> Result<T> {
        let (sandbox, inside) = self.isolated(handle).await?;
        let _busy = sandbox.enter()?;
        inside.check_not_paused(&sandbox.id)?;
        work(&inside).await.map_err(|error| sandbox.explain(error))
    }
}

#[async_trait]
impl Pty for LocalProvider {
    async fn create_pty(&self, handle: &SandboxHandle, mut spec: SandboxPtySpec) -> Result<PtyStream> {
        self.ask(handle, async |inside| {
            spec.user = inside.user(spec.user);
            let watched = inside.memory.as_ref().map(MemoryWatch::begin);
            let session = create_pty(&inside.client, spec).await?;
            Ok(match watched {
                Some(watched) => watched.through(session),
                None => session,
            })
        })
        .await
    }
}

#[async_trait]
impl PtyAttach for LocalProvider {
    async fn attach_pty(
        &self,
        handle: &SandboxHandle,
        session_id: String,
        options: AttachOptions,
    ) -> Result<PtyStream> {
        self.ask(handle, async |inside| attach_pty(&inside.client, session_id, options).await).await
    }
}

#[async_trait]
impl PortForwarding for LocalProvider {
    async fn validate_port_forwarding(&self) -> Result<()> {
        Ok(())
    }

    async fn open_port(&self, handle: &SandboxHandle, port: u16) -> Result<PortStream> {
        self.ask(handle, async |inside| open_port(&inside.client, port).await).await
    }

    async fn forward_ports(&self, handle: &SandboxHandle, target: String, ports: Vec<u16>) -> Result<PortStream> {
        let (sandbox, inside) = self.isolated(handle).await?;
        let _busy = sandbox.enter()?;
        inside.check_not_paused(&sandbox.id)?;
        let forwarding = forward(&self.shared, &sandbox, &inside, &target, &ports);
        forwarding.await.map_err(|error| sandbox.explain(error))
    }
}

#[async_trait]
impl Metrics for LocalProvider {
    async fn metrics(&self, handle: &SandboxHandle) -> Result<SandboxMetrics> {
        let (sandbox, _) = self.isolated(handle).await?;
        let folders = [sandbox.root.inside(&sandbox.id), sandbox.root.upper(&sandbox.id)];
        let used = blocking("counting", move || Ok(used_bytes(&folders)));
        self.ask(handle, async |inside| {
            let mut metrics = metrics(&inside.client).await?;
            metrics.disk_bytes = used.await?;
            // What has ended counts there, too.
            if let Some(found) = inside.cgroup().and_then(|cgroup| cgroup.metrics().ok()) {
                metrics.memory_bytes = found.memory_bytes.or(metrics.memory_bytes);
                metrics.cpu_time_s = found.cpu_usec.map(|micros| micros as f64 / 1e6).or(metrics.cpu_time_s);
            }
            Ok(metrics)
        })
        .await
    }
}
