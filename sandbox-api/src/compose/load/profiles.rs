//! Which services are active.

use std::collections::{BTreeMap, BTreeSet};

use super::{files::Variables, options::ComposeOptions};
use crate::compose::{
    model::{ComposeNetworkMode, ComposeProject, ComposeService},
    report::{FindingClass, Log, Place},
};

/// Leaves out what no active profile and no caller asks for. Until then `inactive` holds the profiles of every service.
pub(crate) fn select(project: &mut ComposeProject, options: &ComposeOptions, variables: &Variables, log: &mut Log) {
    let profiles = std::mem::take(&mut project.inactive);
    let mut active: BTreeSet<String> = options.profiles.iter().cloned().collect();
    if let Some(names) = variables.get("COMPOSE_PROFILES") {
        active.extend(names.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()));
    }
    let is_active = |name: &str| {
        let own = &profiles[name];
        own.is_empty() || own.iter().any(|profile| active.contains(profile)) || active.contains("*")
    };
    let mut wanted: BTreeSet<String> = match options.services.is_empty() {
        true => project.services.keys().filter(|name| is_active(name)).cloned().collect(),
        false => named(project, &options.services, log),
    };
    // What the named services need comes with them.
    if !options.services.is_empty() {
        let mut open: Vec<String> = wanted.iter().cloned().collect();
        while let Some(name) = open.pop() {
            for need in needs(&project.services[&name]) {
                if project.services.contains_key(&need) && is_active(&need) && wanted.insert(need.clone()) {
                    open.push(need);
                }
            }
        }
    }
    tell_inactive(project, &wanted, &profiles, log);
    project.inactive = profiles.into_iter().filter(|(name, _)| !wanted.contains(name)).collect();
    let inactive = &project.inactive;
    for service in project.services.values_mut() {
        service.depends_on.retain(|name, dependency| dependency.required || !inactive.contains_key(name));
    }
    project.services.retain(|name, _| wanted.contains(name));
}

fn named(project: &ComposeProject, names: &[String], log: &mut Log) -> BTreeSet<String> {
    let mut wanted = BTreeSet::new();
    for name in names {
        if project.services.contains_key(name) {
            wanted.insert(name.clone());
        } else {
            let known: Vec<_> = project.services.keys().map(String::as_str).collect();
            let message = format!("there is no service {name:?}");
            let help = format!("there is: {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") });
            log.error_with_help(Place::default(), FindingClass::Reference, "services", message, help);
        }
    }
    wanted
}

/// The services that one cannot start without.
fn needs(service: &ComposeService) -> Vec<String> {
    let mut needs: Vec<String> =
        service.depends_on.iter().filter(|(_, needed)| needed.required).map(|(name, _)| name.clone()).collect();
    if let Some(ComposeNetworkMode::Service(name)) = &service.network_mode {
        needs.push(name.clone());
    }
    needs
}

fn tell_inactive(
    project: &ComposeProject,
    wanted: &BTreeSet<String>,
    profiles: &BTreeMap<String, Vec<String>>,
    log: &mut Log,
) {
    for name in wanted {
        let service = &project.services[name];
        for need in needs(service) {
            let Some(names) = profiles.get(&need).filter(|_| !wanted.contains(&need)) else { continue };
            let key = format!("depends_on.{need}");
            let message = format!("needs service {need:?}, which is left out: none of its profiles is active");
            let help = format!("activate one of: {}", names.join(", "));
            log.error_with_help(service.place(&key), FindingClass::Reference, &service.key(&key), message, help);
        }
    }
}
