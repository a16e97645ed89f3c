//! Terminals, ports and services: what the agent holds for a client.

use sandbox_agent_client::{ForwardTarget, attach_pty, create_pty, forward_ports, open_port};
use sandbox_core::{
    AttachOptions, BackgroundServices, ExecRequest, ExecStream, PortForwarding, PortStream, Pty, PtyAttach, PtyStream,
    Result, SandboxError, SandboxHandle, SandboxProvider, SandboxPtySpec, async_trait,
};
use sandbox_protocol::Client;

use crate::{error::NAME, found, provider::DockerProvider, sandbox};

/// What a command leaves in the background lives until the sandbox closes: an ordinary exec does all of it.
#[async_trait]
impl BackgroundServices for DockerProvider {
    async fn exec_with_background_services(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        self.exec(handle, request).await
    }
}

#[async_trait]
impl Pty for DockerProvider {
    async fn create_pty(&self, handle: &SandboxHandle, spec: SandboxPtySpec) -> Result<PtyStream> {
        let work = async |client| create_pty(&client, spec).await;
        let (engine, sandbox) = (&self.shared.engine, self.open(handle).await?);
        Ok(sandbox.explained(engine, sandbox.ask(engine, "a terminal", work).await?))
    }
}

#[async_trait]
impl PtyAttach for DockerProvider {
    async fn attach_pty(
        &self,
        handle: &SandboxHandle,
        session_id: String,
        options: AttachOptions,
    ) -> Result<PtyStream> {
        let work = async |client| attach_pty(&client, session_id, options).await;
        let (engine, sandbox) = (&self.shared.engine, self.open(handle).await?);
        Ok(sandbox.explained(engine, sandbox.ask(engine, "a terminal", work).await?))
    }
}

#[async_trait]
impl PortForwarding for DockerProvider {
    async fn validate_port_forwarding(&self) -> Result<()> {
        Ok(())
    }

    async fn open_port(&self, handle: &SandboxHandle, port: u16) -> Result<PortStream> {
        let work = async |client| open_port(&client, port).await;
        self.open(handle).await?.ask(&self.shared.engine, "a connection to a port", work).await
    }

    async fn forward_ports(&self, handle: &SandboxHandle, target: String, ports: Vec<u16>) -> Result<PortStream> {
        let engine = &self.shared.engine;
        let sandbox = self.open(handle).await?;
        let target = match target.parse() {
            Ok(address) => ForwardTarget::Address(address),
            Err(_) => ForwardTarget::Sandbox(self.agent_of(&target).await?),
        };
        let work = async |client| forward_ports(&client, target, &ports).await;
        sandbox.ask(engine, "forwarding ports", work).await
    }
}

impl DockerProvider {
    /// The agent of a sandbox that is named by its id alone.
    async fn agent_of(&self, id: &str) -> Result<Client> {
        let engine = &self.shared.engine;
        let found = found::find(engine, id).await.ok().flatten();
        let labels = found.and_then(|found| found.labels).filter(|labels| labels.id == id);
        let labels = labels.ok_or_else(|| {
            let message = "must be an address, or the id of a sandbox of this engine";
            SandboxError::invalid_input("target", message).with_provider(NAME)
        })?;
        self.open(&sandbox::handle(&labels)).await?.ask(engine, "forwarding ports", async |client| Ok(client)).await
    }
}
