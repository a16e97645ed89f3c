//! Terminals, ports and services: what the agent holds for a client.

use std::sync::Arc;

use sandbox_agent_client::{attach_pty, create_pty, open_port};
use sandbox_core::{
    AttachOptions, BackgroundServices, ErrorKind, ExecRequest, ExecStream, PortForwarding, PortStream, Pty, PtyAttach,
    PtyStream, Result, SandboxError, SandboxHandle, SandboxProvider, SandboxPtySpec, SandboxStatus, async_trait,
};
use tokio::time::Instant;

use crate::{
    error::NAME,
    forwarding::{Target, forward},
    provider::{CALL_LIMIT, FargateProvider},
    sandbox::{self, Sandbox},
    tags::Labels,
};

/// What a command leaves in the background lives until the sandbox closes: an ordinary exec does all of it.
#[async_trait]
impl BackgroundServices for FargateProvider {
    async fn exec_with_background_services(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        self.exec(handle, request).await
    }
}

#[async_trait]
impl Pty for FargateProvider {
    async fn create_pty(&self, handle: &SandboxHandle, spec: SandboxPtySpec) -> Result<PtyStream> {
        let work = async |client| create_pty(&client, spec).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }
}

#[async_trait]
impl PtyAttach for FargateProvider {
    async fn attach_pty(
        &self,
        handle: &SandboxHandle,
        session_id: String,
        options: AttachOptions,
    ) -> Result<PtyStream> {
        let work = async |client| attach_pty(&client, session_id, options).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }
}

#[async_trait]
impl PortForwarding for FargateProvider {
    async fn validate_port_forwarding(&self) -> Result<()> {
        Ok(())
    }

    async fn open_port(&self, handle: &SandboxHandle, port: u16) -> Result<PortStream> {
        let work = async |client| open_port(&client, port).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn forward_ports(&self, handle: &SandboxHandle, target: String, ports: Vec<u16>) -> Result<PortStream> {
        let sandbox = self.shared.open(handle).await?;
        let target = match Target::parse(&target)? {
            Some(target) => target,
            None => Target::Sandbox(self.named(&target).await?),
        };
        forward(self.shared.clone(), sandbox, target, ports).await
    }
}

impl FargateProvider {
    /// A sandbox that is named by its id alone.
    async fn named(&self, id: &str) -> Result<Arc<Sandbox>> {
        let unknown = || {
            let message = "must be an address, host, host:NAME, or the id of a sandbox of this cluster";
            SandboxError::invalid_input("target", message).with_provider(NAME)
        };
        let known = self.shared.sandboxes().get(id).cloned();
        match known {
            Some(sandbox) => Ok(sandbox),
            None => {
                let found = self.shared.describe(id, Instant::now() + CALL_LIMIT).await;
                let found = match found {
                    Err(error) if error.kind() != ErrorKind::InvalidInput => return Err(error),
                    found => found.ok().flatten().filter(|task| task.status() == SandboxStatus::Running),
                };
                let task = found.ok_or_else(unknown)?;
                let labels = Labels::read(&task.tags()).ok_or_else(unknown)?;
                self.shared.open(&sandbox::handle(&task.task_arn, &labels, None)).await
            }
        }
    }
}
