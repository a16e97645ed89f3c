//! Where ports of another place are led from: an address, or another sandbox.

use std::{net::IpAddr, sync::PoisonError};

use sandbox_agent_client::{ForwardTarget, forward_ports};
use sandbox_core::{PortStream, Result, SandboxError};

use crate::{error::NAME, isolated::inside::Inside, provider::Shared, sandbox::Sandbox};

/// Lets programs inside reach the ports of `target`, an address or the id of another sandbox, on their own loopback.
pub(crate) async fn forward(
    shared: &Shared,
    sandbox: &Sandbox,
    inside: &Inside,
    target: &str,
    ports: &[u16],
) -> Result<PortStream> {
    forward_ports(&inside.client, find(shared, sandbox, target)?, ports).await
}

fn find(shared: &Shared, sandbox: &Sandbox, target: &str) -> Result<ForwardTarget> {
    let address = target.parse::<IpAddr>().ok();
    let networks = |sandbox: &Sandbox| sandbox.record.lock().unwrap_or_else(PoisonError::into_inner).networks.clone();
    let own = networks(sandbox);
    let found = shared.sandboxes().values().find_map(|other| {
        let theirs = networks(other);
        let attachment = theirs.iter().find(|attachment| address == Some(attachment.address.into()));
        let is_near = attachment.is_some_and(|there| own.iter().any(|here| here.network == there.network));
        let is_meant = other.is_open() && (other.id == target || attachment.is_some());
        is_meant.then(|| (is_near, other.inside.clone()))
    });
    match (found, address) {
        (Some((false, Some(inside))), _) => Ok(ForwardTarget::Sandbox(inside.client.clone())),
        (_, Some(address)) => Ok(ForwardTarget::Address(address)),
        _ => Err(SandboxError::invalid_input("target", "must be an address, or the id of a sandbox that is open here")
            .with_provider(NAME)),
    }
}
