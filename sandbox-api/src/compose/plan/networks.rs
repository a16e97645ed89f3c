//! How the services of a stack reach each other.

use std::collections::{BTreeMap, BTreeSet};

use sandbox_core::{Capability, Field};

use super::{ComposeAllow, Networking, PlannedNetwork, support::Planner};
use crate::compose::{
    model::{ComposeNetwork, ComposeService},
    report::FindingClass,
};

impl Planner<'_> {
    /// How they do, on this provider.
    pub(super) fn networking(&mut self) -> Networking {
        if self.has(Capability::Networks) && self.takes(Field::NetworkNamed) {
            return Networking::Networks;
        }
        if self.has(Capability::Network) {
            self.flat_networks();
            return Networking::Hosts;
        }
        let sandboxes: u32 = self
            .project
            .services
            .values()
            .filter(|service| !service.networks.is_empty())
            .map(|service| service.scale)
            .sum();
        if sandboxes > 1 {
            let service = self.project.services.values().find(|service| !service.networks.is_empty());
            let place = service.map(|service| service.place("networks")).unwrap_or_default();
            let message = format!(
                "provider {:?} cannot connect services: it has neither capability networks nor network",
                self.info.name
            );
            let help = "give each service network_mode: none, or choose another provider";
            self.unsupported_with(place, "services", message, help);
        }
        Networking::Isolated
    }

    /// Where all services share one network, several of the document must not have been meant to keep them apart.
    fn flat_networks(&mut self) {
        let services: Vec<&ComposeService> =
            self.project.services.values().filter(|service| !service.networks.is_empty()).collect();
        let mut apart = None;
        for (index, left) in services.iter().enumerate() {
            apart = apart.or_else(|| {
                services[index + 1..].iter().find(|right| !shares(left, right)).map(|right| (*left, *right))
            });
        }
        if let Some((left, right)) = apart {
            let message = format!(
                "services {} and {} share no network, but provider {:?} cannot keep them apart",
                left.name, right.name, self.info.name
            );
            self.isolation(left, "networks", message);
        }
        for (name, network) in &self.project.networks {
            if network.internal {
                let message = format!("provider {:?} cannot cut network {name:?} off from outside", self.info.name);
                self.isolation_at(network, name, message);
            }
        }
    }

    fn isolation(&mut self, service: &ComposeService, key: &str, message: String) {
        if self.options.allows(ComposeAllow::FlatNetworks) {
            self.log.warning(service.place(key), &service.key(key), message);
        } else {
            self.unsupported_with(service.place(key), &service.key(key), message, FLAT_HELP);
        }
    }

    fn isolation_at(&mut self, network: &ComposeNetwork, name: &str, message: String) {
        let key = format!("networks.{name}.internal");
        if self.options.allows(ComposeAllow::FlatNetworks) {
            self.log.warning(network.place, &key, message);
        } else {
            self.unsupported_with(network.place, &key, message, FLAT_HELP);
        }
    }

    /// The networks to make or use.
    pub(super) fn networks(&mut self, networking: Networking) -> Vec<PlannedNetwork> {
        let mut planned = Vec::new();
        for (name, network) in &self.project.networks {
            let key = format!("networks.{name}");
            if let Some(driver) = network.driver.as_deref()
                && !matches!(driver, "bridge" | "default" | "")
            {
                self.unsupported(
                    network.place,
                    &format!("{key}.driver"),
                    format!("driver {driver:?} is not supported"),
                );
            }
            for other in &network.other_keys {
                self.unsupported(network.place, &format!("{key}.{other}"), "is not supported");
            }
            if networking != Networking::Networks {
                if network.external {
                    let message = format!("provider {:?} has no networks of its own", self.info.name);
                    self.unsupported(network.place, &key, message);
                }
                continue;
            }
            planned.push(PlannedNetwork {
                key: name.clone(),
                external: network.external.then(|| network.name.clone().unwrap_or_else(|| name.clone())),
                internal: network.internal,
                subnet: network.subnet.clone(),
            });
        }
        planned
    }

    /// The networks of a service and its names there, the one of highest priority first.
    pub(super) fn attachments(&mut self, service: &ComposeService) -> Vec<(String, Vec<String>)> {
        let mut networks: Vec<_> = service.networks.iter().collect();
        networks.sort_by_key(|(name, attachment)| (-attachment.priority, (*name).clone()));
        let mut planned = Vec::new();
        for (name, attachment) in networks {
            let key = format!("networks.{name}");
            for other in &attachment.other_keys {
                let message = format!("{other} is not supported");
                self.unsupported(service.place(&key), &service.key(&key), message);
            }
            let mut aliases = self.names(service);
            aliases.extend(attachment.aliases.iter().cloned());
            for alias in &attachment.aliases {
                if !is_host_name(alias) {
                    let message = format!("alias {alias:?} is no host name");
                    self.log.error(service.place(&key), FindingClass::Invalid, &service.key(&key), message);
                }
            }
            planned.push((name.clone(), unique(aliases)));
        }
        planned
    }

    /// The names that a service has everywhere: its own, and what others call it.
    pub(super) fn names(&self, service: &ComposeService) -> Vec<String> {
        let mut names = vec![service.name.clone()];
        names.extend(service.container_name.clone());
        names.extend(service.hostname.clone().filter(|name| is_host_name(name)));
        names
    }

    /// The names of the peers of a service: what its hosts file says, by peer.
    pub(super) fn peers(&self, service: &ComposeService) -> BTreeMap<String, Vec<String>> {
        let mut peers = BTreeMap::new();
        for peer in self.project.services.values() {
            let shared: Vec<_> =
                peer.networks.iter().filter(|(name, _)| service.networks.contains_key(*name)).collect();
            if shared.is_empty() {
                continue;
            }
            let mut names = self.names(peer);
            // An alias is only known in its network.
            names.extend(shared.iter().flat_map(|(_, attachment)| attachment.aliases.iter().cloned()));
            names.extend(links(service).into_iter().filter(|(name, _)| *name == peer.name).map(|(_, alias)| alias));
            peers.insert(peer.name.clone(), unique(names));
        }
        peers
    }
}

const FLAT_HELP: &str = "if they need not be kept apart, allow it with --allow flat-networks";

/// The services that one links to, and under which names.
pub(super) fn links(service: &ComposeService) -> Vec<(String, String)> {
    let links = service.node.as_ref().and_then(|node| node.get("links")).and_then(|links| links.as_list());
    let texts = links.unwrap_or_default().iter().filter_map(|link| link.as_text());
    texts
        .map(|text| text.split_once(':').unwrap_or((text, text)))
        .map(|(name, alias)| (name.into(), alias.into()))
        .collect()
}

fn shares(left: &ComposeService, right: &ComposeService) -> bool {
    left.networks.keys().any(|name| right.networks.contains_key(name))
}

fn unique(names: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names.into_iter().filter(|name| seen.insert(name.clone())).collect()
}

/// Letters, digits, `.`, `-` and `_`.
pub(super) fn is_host_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 253 && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}
