//! The order in which services start.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{ComposeNetworkMode, ComposeService};

/// What a service waits for before it starts, among those that are there.
pub(crate) fn needs(service: &ComposeService, services: &BTreeMap<String, ComposeService>) -> BTreeSet<String> {
    let mut needs: BTreeSet<String> = service.depends_on.keys().cloned().collect();
    if let Some(ComposeNetworkMode::Service(name)) = &service.network_mode {
        needs.insert(name.clone());
    }
    let links = service.node.as_ref().and_then(|node| node.get("links")).and_then(|links| links.as_list());
    let linked = links.unwrap_or_default().iter().filter_map(|link| link.as_text());
    needs.extend(linked.map(|link| link.split(':').next().unwrap_or_default().to_owned()));
    needs.retain(|name| services.contains_key(name));
    needs
}

/// The services, each behind what it needs; those that need the same sorted by name.
///
/// # Errors
/// The names of a circle, the first one again at its end.
pub(crate) fn start_order(services: &BTreeMap<String, ComposeService>) -> Result<Vec<String>, Vec<String>> {
    let needs: BTreeMap<&str, BTreeSet<String>> =
        services.values().map(|service| (service.name.as_str(), needs(service, services))).collect();
    let mut order: Vec<String> = Vec::new();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    while order.len() < services.len() {
        let ready: Vec<&str> = needs
            .iter()
            .filter(|(name, needs)| !done.contains(*name) && needs.iter().all(|need| done.contains(need.as_str())))
            .map(|(name, _)| *name)
            .collect();
        if ready.is_empty() {
            return Err(circle(&needs, &done));
        }
        done.extend(&ready);
        order.extend(ready.into_iter().map(str::to_owned));
    }
    Ok(order)
}

/// One circle among the services that are not done.
fn circle(needs: &BTreeMap<&str, BTreeSet<String>>, done: &BTreeSet<&str>) -> Vec<String> {
    let mut path: Vec<String> =
        needs.keys().find(|name| !done.contains(*name)).map(|name| (*name).to_owned()).into_iter().collect();
    while let Some(last) = path.last().cloned() {
        let next = needs[last.as_str()].iter().find(|need| !done.contains(need.as_str())).cloned();
        let Some(next) = next else { break };
        if let Some(start) = path.iter().position(|name| *name == next) {
            path.drain(..start);
            path.push(next);
            break;
        }
        path.push(next);
    }
    path
}
