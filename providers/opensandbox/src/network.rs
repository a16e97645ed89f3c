//! Traffic between sandboxes. Works where their addresses are reachable for each other: on Kubernetes.

use std::{collections::BTreeMap, net::IpAddr};

use sandbox_core::{ErrorKind, Network, Result, SandboxError, SandboxHandle, async_trait};

use crate::{daemon::PORT, error::NAME, exec::quote, provider::OpenSandboxProvider, shared::check_provider};

/// What is around the names that are set, so that the next call finds them.
const MARK: &str = "# sandbox: names";

#[async_trait]
impl Network for OpenSandboxProvider {
    async fn validate_networking(&self) -> Result<()> {
        // Not declared without it.
        Ok(())
    }

    async fn network_address(&self, handle: &SandboxHandle) -> Result<String> {
        check_provider(handle)?;
        let id = &handle.sandbox_id;
        // Directly, however commands go: what the server's proxy is called is no address of the sandbox.
        let endpoint = self.shared.endpoint_of(id, PORT, false).await?;
        let rest = endpoint.endpoint.split_once("://").map_or("", |(_, rest)| rest);
        let address = rest.strip_suffix(&format!(":{PORT}")).map(|host| host.trim_matches(['[', ']']));
        let address = address.and_then(|host| host.parse::<IpAddr>().ok());
        match address.filter(|address| !address.is_loopback() && !address.is_unspecified()) {
            Some(address) if endpoint.headers.is_empty() => Ok(address.to_string()),
            _ => {
                let text = format!("sandbox {id} has no address of its own that others could reach");
                let help = "networking needs a server whose sandboxes have addresses: Kubernetes without a gateway";
                Err(SandboxError::new(ErrorKind::Unsupported, text).with_help(help).with_provider(NAME))
            }
        }
    }

    async fn set_hosts(&self, handle: &SandboxHandle, hosts: BTreeMap<String, String>) -> Result<()> {
        self.shared.open(handle)?;
        let mut lines = String::new();
        for (name, address) in &hosts {
            let is_name = !name.is_empty()
                && name.len() <= 253
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
                && !name.starts_with(['-', '.']);
            if !is_name {
                return Err(SandboxError::invalid_input(format!("hosts.{name}"), "is no host name").with_provider(NAME));
            }
            let Ok(address) = address.parse::<IpAddr>() else {
                let error = SandboxError::invalid_input(format!("hosts.{name}"), "must be an IP address");
                return Err(error.with_provider(NAME));
            };
            lines += &format!("{address} {name} {MARK}\n");
        }
        // The file is written in place: it may be a mount.
        let script = format!(
            "kept=$(grep -v -F -- {mark} /etc/hosts); printf '%s\\n%s' \"$kept\" {lines} >/etc/hosts",
            mark = quote(MARK),
            lines = quote(&lines)
        );
        let daemon = self.shared.daemon(&handle.sandbox_id).await?;
        daemon.script(&self.shared, script, "making names resolve").await.map(drop)
    }
}
