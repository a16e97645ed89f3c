//! Whether the parts of a document fit together.

use std::collections::{BTreeMap, BTreeSet};

use sandbox_core::near_match;

use super::{MountSource, ports::HostPort};
use crate::compose::{
    model::{ComposeNetworkMode, ComposeProject, ComposeService},
    order,
    report::{FindingClass, Log},
};

/// Checks every reference, and keeps only the networks that are used.
pub(crate) fn check(project: &mut ComposeProject, log: &mut Log) {
    if project.services.is_empty() && project.inactive.is_empty() && !log.has_errors() {
        log.warning(project.document.place, "services", "there are no services");
    }
    let names: BTreeSet<&str> = project.services.keys().chain(project.inactive.keys()).map(String::as_str).collect();
    for service in project.services.values() {
        references(project, service, &names, log);
        scale(service, log);
    }
    host_ports(project, log);
    if let Err(cycle) = order::start_order(&project.services) {
        let first = &project.services[&cycle[0]];
        let message = format!("services need each other in a circle: {}", cycle.join(" -> "));
        log.error(first.place("depends_on"), FindingClass::Reference, &first.key("depends_on"), message);
    }
    let used: BTreeSet<String> =
        project.services.values().flat_map(|service| service.networks.keys().cloned()).collect();
    if used.contains("default") {
        project.networks.entry("default".to_owned()).or_default();
    }
    project.networks.retain(|name, _| used.contains(name));
}

fn references(project: &ComposeProject, service: &ComposeService, names: &BTreeSet<&str>, log: &mut Log) {
    let mut unknown = |key: &str, what: &str, name: &str, known: Vec<&str>| {
        let message = format!("there is no {what} {name:?}");
        let help = near_match(name, known.iter().copied()).map_or_else(
            || format!("define it below {what}s:, or use one of: {}", list(&known)),
            |near| format!("did you mean {near:?}?"),
        );
        log.error_with_help(service.place(key), FindingClass::Reference, &service.key(key), message, help);
    };
    let services: Vec<&str> = names.iter().copied().filter(|name| *name != service.name).collect();
    for name in service.depends_on.iter().filter(|(_, needed)| needed.required).map(|(name, _)| name) {
        if !names.contains(name.as_str()) {
            unknown(&format!("depends_on.{name}"), "service", name, services.clone());
        }
    }
    if let Some(ComposeNetworkMode::Service(name)) = &service.network_mode
        && !names.contains(name.as_str())
    {
        unknown("network_mode", "service", name, services.clone());
    }
    let links = service.node.as_ref().and_then(|node| node.get("links")).and_then(|links| links.as_list());
    for link in links.unwrap_or_default().iter().filter_map(|link| link.as_text()) {
        let name = link.split(':').next().unwrap_or_default();
        if !names.contains(name) {
            unknown("links", "service", name, services.clone());
        }
    }
    for name in service.networks.keys().filter(|name| *name != "default" && !project.networks.contains_key(*name)) {
        unknown(&format!("networks.{name}"), "network", name, keys(&project.networks));
    }
    for (index, mount) in service.mounts.iter().enumerate() {
        if let MountSource::Volume { name } = &mount.source
            && !project.volumes.contains_key(name)
        {
            unknown(&service.mount_keys[index], "volume", name, keys(&project.volumes));
        }
    }
    for (kind, grants, known) in
        [("secret", &service.secrets, &project.secrets), ("config", &service.configs, &project.configs)]
    {
        for (index, grant) in grants.iter().enumerate() {
            if !known.contains_key(&grant.source) {
                unknown(&format!("{kind}s[{index}]"), kind, &grant.source, keys(known));
            }
        }
    }
}

fn keys<T>(map: &BTreeMap<String, T>) -> Vec<&str> {
    map.keys().map(String::as_str).collect()
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn scale(service: &ComposeService, log: &mut Log) {
    if service.scale <= 1 {
        return;
    }
    if service.container_name.is_some() {
        let message = format!("only one container can have the name, and scale is {}", service.scale);
        log.error(service.place("container_name"), FindingClass::Invalid, &service.key("container_name"), message);
    }
    for (index, port) in service.ports.iter().enumerate() {
        if matches!(port.published, HostPort::Fixed(_)) {
            let key = format!("ports[{index}]");
            let message = format!("only one container can have a fixed port, and scale is {}", service.scale);
            log.error(service.place(&key), FindingClass::Invalid, &service.key(&key), message);
        }
    }
}

fn host_ports(project: &ComposeProject, log: &mut Log) {
    let mut taken: Vec<(u16, &ComposeService, usize)> = Vec::new();
    for service in project.services.values() {
        for (index, port) in service.ports.iter().enumerate() {
            let HostPort::Fixed(number) = port.published else { continue };
            let other = taken.iter().find(|(taken, other, other_index)| {
                let other = &other.ports[*other_index];
                let meets = other.host_ip.is_none() || port.host_ip.is_none() || other.host_ip == port.host_ip;
                *taken == number && other.protocol == port.protocol && meets
            });
            if let Some((_, other, _)) = other {
                // The same line twice in one service is only said twice.
                if other.name == service.name && service.ports[..index].contains(port) {
                    continue;
                }
                let key = format!("ports[{index}]");
                let message = format!("port {number} of the host is taken by service {:?} already", other.name);
                log.error(service.place(&key), FindingClass::Invalid, &service.key(&key), message);
            }
            taken.push((number, service, index));
        }
    }
}
