//! Connections to ports of a sandbox, and ports of others on its own loopback.

use std::net::IpAddr;

use sandbox_agent_client::{ForwardTarget, forward_ports, open_port};
use sandbox_core::{PortStream, Result};

use super::Native;

impl Native {
    pub(crate) async fn open_port(&self, port: u16) -> Result<PortStream> {
        self.ask(async |client| open_port(&client, port).await).await
    }

    /// To an address, or to another sandbox of this server by its id.
    pub(crate) async fn forward_ports(&self, target: &str, ports: &[u16]) -> Result<PortStream> {
        let target = match target.parse::<IpAddr>() {
            Ok(address) => ForwardTarget::Address(address),
            Err(_) => {
                let other = self.shared.agent(target).await?;
                ForwardTarget::Sandbox(other.ask(async |client| Ok(client)).await?)
            }
        };
        self.ask(async |client| forward_ports(&client, target, ports).await).await
    }
}
