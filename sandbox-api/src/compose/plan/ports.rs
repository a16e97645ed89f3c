//! Published ports.

use std::net::{IpAddr, Ipv4Addr};

use sandbox_core::{Capability, Field};
use serde_json::json;

use super::{ComposeAllow, PlannedPort, PlannedService, PublishPolicy, PublishedBy, support::Planner};
use crate::compose::{
    load::{HostPort, Protocol},
    model::{ComposeNetworkMode, ComposeService},
};

impl Planner<'_> {
    /// Plans the ports of a service.
    pub(super) fn ports(&mut self, service: &ComposeService, planned: &mut PlannedService) {
        let exposed = service.expose.iter().filter(|(_, protocol)| *protocol == Protocol::Tcp).map(|(port, _)| *port);
        let published = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp).map(|port| port.target);
        // Without a network of its own nothing of it is reached.
        let has_network = !matches!(service.network_mode, Some(ComposeNetworkMode::None | ComposeNetworkMode::Host));
        if has_network && self.takes(Field::Ports) {
            let mut declared: Vec<u16> = published.chain(exposed).chain(planned.spec.ports.iter().copied()).collect();
            declared.sort_unstable();
            declared.dedup();
            planned.spec.ports = declared;
        }
        if self.options.publish == PublishPolicy::Nothing {
            return;
        }
        if matches!(service.network_mode, Some(ComposeNetworkMode::Host)) {
            if !service.ports.is_empty() {
                self.log.note(service.place("ports"), &service.key("ports"), "has no effect with the host's network");
            }
            return;
        }
        let mut is_told = false;
        for (index, port) in service.ports.iter().enumerate() {
            let key = format!("ports[{index}]");
            let mut port = port.clone();
            if self.options.publish == PublishPolicy::Dynamic {
                port.published = HostPort::Any;
            }
            match port.host_ip {
                None if self.options.allows(ComposeAllow::PublicPorts) => {
                    port.host_ip = Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
                }
                None => {
                    port.host_ip = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
                    if !is_told {
                        let message =
                            "is published on this machine's loopback only; every address with --allow public-ports";
                        self.log.note(service.place(&key), &service.key(&key), message);
                    }
                    is_told = true;
                }
                Some(_) => {}
            }
            if let Some(by) = self.publisher(service, &key, &port) {
                planned.ports.push(PlannedPort { port, by });
            }
        }
        let native: Vec<_> = planned.ports.iter().filter(|port| port.by == PublishedBy::Provider).collect();
        if !native.is_empty() {
            let list: Vec<_> = native.iter().map(|planned| option(planned)).collect();
            planned.spec.provider_options.insert("published_ports".to_owned(), json!(list));
        }
    }

    fn publisher(
        &mut self,
        service: &ComposeService,
        key: &str,
        port: &crate::compose::ComposePort,
    ) -> Option<PublishedBy> {
        if self.takes_option("published_ports") {
            return Some(PublishedBy::Provider);
        }
        if port.protocol == Protocol::Udp {
            let message = format!("provider {:?} cannot publish UDP ports", self.info.name);
            self.unsupported(service.place(key), &service.key(key), message);
            return None;
        }
        if self.has(Capability::PortForwarding) {
            return Some(PublishedBy::Relay);
        }
        if self.has(Capability::Endpoint) && self.takes(Field::Ports) {
            if port.published == HostPort::Any {
                return Some(PublishedBy::Endpoint);
            }
            let message =
                format!("provider {:?} chooses the address itself; see: sandboxctl compose port", self.info.name);
            self.log.warning(service.place(key), &service.key(key), message);
            return Some(PublishedBy::Endpoint);
        }
        let message = format!(
            "provider {:?} cannot publish ports: it lacks capability port_forwarding and endpoint",
            self.info.name
        );
        let help = "leave them unpublished with --publish nothing, or choose another provider";
        self.unsupported_with(service.place(key), &service.key(key), message, help);
        None
    }
}

/// A port as the provider's option has it.
fn option(planned: &PlannedPort) -> serde_json::Value {
    let (first, last) = match planned.port.published {
        HostPort::Any => (0, 0),
        HostPort::Fixed(port) => (port, port),
        HostPort::Range(first, last) => (first, last),
    };
    let published = if first == last { first.to_string() } else { format!("{first}-{last}") };
    json!({
        "target": planned.port.target,
        "published": published,
        "host_ip": planned.port.host_ip.map(|address| address.to_string()),
        "protocol": planned.port.protocol.as_str(),
    })
}
