//! Addresses, names, endpoints and named networks.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use bollard::{
    models::{
        EndpointIpamConfig, EndpointSettings, Ipam, IpamConfig, NetworkConnectRequest, NetworkCreateRequest,
        NetworkDisconnectRequest,
    },
    query_parameters::ListNetworksOptionsBuilder,
};
use sandbox_core::{
    Endpoint, NamedNetwork, Network, NetworkRequest, Networks, Result, SandboxEndpoint, SandboxError, SandboxHandle,
    async_trait,
};
use sandbox_protocol::{
    Client,
    methods::{self, HostsSet, Nothing},
};

use crate::{
    error::{self, NAME},
    found::{self, Found},
    labels::{KIND, is_reserved},
    provider::{DockerProvider, not_found},
};

impl DockerProvider {
    async fn inspected(&self, handle: &SandboxHandle) -> Result<Found> {
        let sandbox = self.open(handle).await?;
        let found = found::find(&self.shared.engine, sandbox.network_container()).await?;
        found.ok_or_else(|| not_found(sandbox.id(), "is closed, or was removed by somebody else"))
    }
}

#[async_trait]
impl Endpoint for DockerProvider {
    async fn endpoint(&self, handle: &SandboxHandle, port: u16) -> Result<SandboxEndpoint> {
        let sandbox = self.open(handle).await?;
        if !sandbox.labels.traits.ports.contains(&port) {
            let message = format!("port {port} was not declared; declared: {:?}", sandbox.labels.traits.ports);
            return Err(SandboxError::invalid_input("port", message).with_provider(NAME));
        }
        let found = self.inspected(handle).await?;
        let bindings = found.published.get(&port).map(Vec::as_slice).unwrap_or_default();
        let wanted = self.shared.engine.config.publish_host;
        let (host, outside) = choose(bindings, wanted).ok_or_else(|| {
            SandboxError::unavailable(format!("port {port} is not published yet")).with_provider(NAME)
        })?;
        let host = match host {
            IpAddr::V6(address) => format!("[{address}]"),
            IpAddr::V4(address) => address.to_string(),
        };
        SandboxEndpoint::new(format!("http://{host}:{outside}"), BTreeMap::new())
    }
}

/// The best of the bindings: that on the wanted address, else the first. A wildcard is reached by the loopback.
fn choose(bindings: &[(String, u16)], wanted: IpAddr) -> Option<(IpAddr, u16)> {
    let parsed = |(host, port): &(String, u16)| Some((host.parse::<IpAddr>().ok()?, *port));
    let all: Vec<_> = bindings.iter().filter_map(parsed).collect();
    let (host, port) = all.iter().find(|(host, _)| *host == wanted).or(all.first()).copied()?;
    let host = match host {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        host => host,
    };
    Some((host, port))
}

#[async_trait]
impl Network for DockerProvider {
    async fn validate_networking(&self) -> Result<()> {
        if self.shared.engine.config.network == "none" {
            let message = "sandboxes without a network cannot reach each other";
            return Err(SandboxError::invalid_input("network", message)
                .with_provider(NAME)
                .with_help("set network to bridge, or to a network's name"));
        }
        Ok(())
    }

    async fn network_address(&self, handle: &SandboxHandle) -> Result<String> {
        let found = self.inspected(handle).await?;
        // A named network is there for this very purpose.
        let named = found.addresses.iter().find(|(name, _)| name != "bridge");
        let address = named.or(found.addresses.first());
        address.map(|(_, address)| address.to_string()).ok_or_else(|| {
            SandboxError::invalid_state("the sandbox has no address: it has no network of its own").with_provider(NAME)
        })
    }

    async fn set_hosts(&self, handle: &SandboxHandle, hosts: BTreeMap<String, String>) -> Result<()> {
        let sandbox = self.open(handle).await?;
        let work =
            async |client: Client| client.call::<Nothing>(methods::HOSTS_SET, &HostsSet { hosts }).await.map(drop);
        sandbox.ask(&self.shared.engine, "setting names", work).await
    }
}

/// How a sandbox is attached to a network.
pub(crate) fn endpoint(aliases: Vec<String>, address: Option<&std::net::Ipv4Addr>) -> EndpointSettings {
    let ipam_config =
        address.map(|address| EndpointIpamConfig { ipv4_address: Some(address.to_string()), ..Default::default() });
    EndpointSettings { aliases: Some(aliases), ipam_config, ..EndpointSettings::default() }
}

/// Labels of a network or volume of ours.
pub(crate) fn labels_of(kind: &str, metadata: &BTreeMap<String, String>) -> Result<HashMap<String, String>> {
    if metadata.keys().any(|key| is_reserved(key)) {
        let message = "a label must not be blank or begin with \"sandbox.\"";
        return Err(SandboxError::invalid_input("metadata", message).with_provider(NAME));
    }
    let mut labels: HashMap<_, _> = metadata.clone().into_iter().collect();
    labels.insert(KIND.to_owned(), kind.to_owned());
    Ok(labels)
}

/// The labels without ours.
pub(crate) fn metadata_of(labels: HashMap<String, String>) -> BTreeMap<String, String> {
    labels.into_iter().filter(|(key, _)| !is_reserved(key)).collect()
}

/// The filter for what is ours of a kind.
pub(crate) fn ours(kind: &str) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), vec![format!("{KIND}={kind}")])])
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && name.len() <= 63 && name.chars().all(is_plain) {
        return Ok(());
    }
    let message = "must be 1 to 63 of a-z A-Z 0-9 . _ - and start with a letter or a digit";
    Err(SandboxError::invalid_input("name", message).with_provider(NAME))
}

#[async_trait]
impl Networks for DockerProvider {
    async fn create_network(&self, request: NetworkRequest) -> Result<NamedNetwork> {
        check_name(&request.name)?;
        let docker = self.shared.engine.docker().await?;
        let failed = |error| error::engine("making the network", error);
        // The engine would make a second one of the same name.
        if self.list_networks().await?.iter().any(|network| network.name == request.name)
            || docker.inspect_network(&request.name, None).await.is_ok()
        {
            let message = format!("there is a network {:?} already", request.name);
            return Err(SandboxError::already_exists(message).with_provider(NAME));
        }
        let ipam = request.subnet.clone().map(|subnet| Ipam {
            config: Some(vec![IpamConfig { subnet: Some(subnet), ..IpamConfig::default() }]),
            ..Ipam::default()
        });
        let config = NetworkCreateRequest {
            name: request.name.clone(),
            internal: Some(request.internal),
            labels: Some(labels_of("network", &request.metadata)?),
            ipam,
            ..NetworkCreateRequest::default()
        };
        let made = docker.create_network(config).await.map_err(|error| {
            let error = failed(error);
            let is_full = ["overlap", "address pools"].iter().any(|why| error.message().contains(why));
            if !is_full {
                return error;
            }
            // Others may have it, or nothing is left: another range may be free.
            error.with_kind(sandbox_core::ErrorKind::Exhausted).with_help("name another subnet, or remove networks")
        })?;
        Ok(NamedNetwork { name: request.name, id: made.id, subnet: request.subnet, metadata: request.metadata })
    }

    async fn list_networks(&self) -> Result<Vec<NamedNetwork>> {
        let options = ListNetworksOptionsBuilder::default().filters(&ours("network")).build();
        let all = self.shared.engine.docker().await?.list_networks(Some(options)).await;
        let all = all.map_err(|error| error::engine("listing networks", error))?;
        let describe = |network: bollard::models::Network| {
            let subnet = network.ipam.and_then(|ipam| ipam.config).and_then(|config| config.into_iter().next());
            NamedNetwork {
                name: network.name.unwrap_or_default(),
                id: network.id.unwrap_or_default(),
                subnet: subnet.and_then(|config| config.subnet),
                metadata: metadata_of(network.labels.unwrap_or_default()),
            }
        };
        Ok(all.into_iter().map(describe).collect())
    }

    async fn remove_network(&self, name: String) -> Result<()> {
        check_name(&name)?;
        let Some(network) = self.list_networks().await?.into_iter().find(|network| network.name == name) else {
            return Ok(());
        };
        match self.shared.engine.docker().await?.remove_network(&network.id).await {
            Err(error) if !error::is_missing(&error) => {
                let error = error::engine("removing the network", error);
                let is_used = error.message().contains("active endpoints");
                Err(if is_used { error.with_kind(sandbox_core::ErrorKind::InvalidState) } else { error })
            }
            _ => Ok(()),
        }
    }

    async fn attach_network(&self, handle: &SandboxHandle, name: String, aliases: Vec<String>) -> Result<()> {
        let sandbox = self.open(handle).await?;
        let request = NetworkConnectRequest {
            container: sandbox.network_container().to_owned(),
            endpoint_config: Some(endpoint(aliases, sandbox.labels.traits.network_addresses.get(&name))),
        };
        let done = self.shared.engine.docker().await?.connect_network(&name, request).await;
        done.map_err(|error| error::engine("attaching the network", error))
    }

    async fn detach_network(&self, handle: &SandboxHandle, name: String) -> Result<()> {
        let sandbox = self.open(handle).await?;
        let request =
            NetworkDisconnectRequest { container: sandbox.network_container().to_owned(), force: Some(false) };
        let done = self.shared.engine.docker().await?.disconnect_network(&name, request).await;
        done.map_err(|error| error::engine("detaching the network", error))
    }
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn a_wildcard_is_reached_by_the_loopback_and_the_wanted_address_goes_first() {
        let bindings =
            |list: &[(&str, u16)]| list.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect::<Vec<_>>();
        let chosen = |list: &[(&str, u16)], wanted: &str| {
            choose(&bindings(list), wanted.parse().unwrap()).map(|(host, port)| format!("{host} {port}"))
        };
        assert_eq!(chosen(&[("0.0.0.0", 7)], "0.0.0.0").as_deref(), Some("127.0.0.1 7"));
        assert_eq!(chosen(&[("::", 7)], "::").as_deref(), Some("::1 7"));
        assert_eq!(chosen(&[("::1", 6), ("127.0.0.1", 7)], "127.0.0.1").as_deref(), Some("127.0.0.1 7"));
        assert_eq!(chosen(&[], "127.0.0.1"), None);
    }
}
