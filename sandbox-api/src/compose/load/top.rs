//! The sections of a document beside its services.

use std::collections::BTreeMap;

use super::{
    files::{Loader, Variables},
    node::{Entry, Map, Node},
    service::{self, pairs, path_of},
    shape::flag,
};
use crate::compose::{
    model::{ComposeFile, ComposeNetwork, ComposeProject, ComposeVolume, FileSource},
    report::{FindingClass, Place},
};

/// Reads all sections of a merged document.
pub(crate) fn read(loader: &mut Loader<'_>, document: &Node, outside: &Variables) -> ComposeProject {
    let section = |name: &str| document.get(name).and_then(Node::as_map).cloned().unwrap_or_default();
    if let Some(models) = document.get("models").filter(|models| !models.is_null()) {
        let message = "AI models as parts of a stack are not supported";
        loader.log.error(models.place, FindingClass::Unsupported, "models", message);
    }
    if let Some(Map(map)) = document.as_map()
        && let Some(version) = map.get("version")
    {
        loader.log.note(version.key_place, "version", "has no meaning any more and can be removed");
    }
    let mut services = BTreeMap::new();
    let mut profiles = BTreeMap::new();
    for (name, entry) in section("services").iter() {
        let key = format!("services.{name}");
        if !is_name(name) {
            let message =
                "the name of a service has only letters, digits, . _ and -, and starts with a letter or digit";
            loader.log.error(entry.key_place, FindingClass::Invalid, &key, message);
        }
        if entry.node.as_map().is_none() {
            continue;
        }
        let names = entry.node.get("profiles").and_then(Node::as_list).unwrap_or_default();
        let names: Vec<String> = names.iter().filter_map(|name| name.as_text().map(str::to_owned)).collect();
        profiles.insert(name.to_owned(), names);
        services.insert(name.to_owned(), service::read(loader, name, &entry.node, entry.key_place, outside));
    }
    ComposeProject {
        name: String::new(),
        directory: Default::default(),
        services,
        networks: section("networks")
            .iter()
            .map(|(name, entry)| (name.to_owned(), network(loader, name, entry)))
            .collect(),
        volumes: section("volumes").iter().map(|(name, entry)| (name.to_owned(), volume(name, entry))).collect(),
        secrets: files(loader, "secrets", &section("secrets"), outside),
        configs: files(loader, "configs", &section("configs"), outside),
        inactive: profiles,
        document: Node::null(Place::default()),
        log: Default::default(),
    }
}

/// What names of services and resources look like.
fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= 63
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Whether something is external, and its name outside.
fn external(node: &Node, key: &str) -> (bool, Option<String>) {
    let text = |node: &Node| node.as_text().map(str::to_owned);
    let name = node.get("name").and_then(text);
    match node.get("external") {
        None => (false, name),
        Some(external) => {
            let is_external =
                external.as_text().map_or(external.as_map().is_some(), |text| flag(text).unwrap_or(false));
            let old_form = external.get("name").and_then(text);
            let name = name.or(old_form).or_else(|| is_external.then(|| key.to_owned()));
            (is_external, name)
        }
    }
}

fn network(loader: &mut Loader<'_>, name: &str, entry: &Entry) -> ComposeNetwork {
    let node = &entry.node;
    let text = |key: &str| node.get(key).and_then(Node::as_text).map(str::to_owned);
    let (is_external, outside_name) = external(node, name);
    let configs = node.get("ipam").and_then(|ipam| ipam.get("config")).and_then(Node::as_list).unwrap_or_default();
    let subnet = configs.iter().find_map(|config| config.get("subnet").and_then(Node::as_text)).map(str::to_owned);
    if let Some(subnet) = &subnet
        && !is_subnet(subnet)
    {
        let place = configs[0].place;
        let key = format!("networks.{name}.ipam.config[0].subnet");
        loader.log.error(place, FindingClass::Invalid, &key, "must be an address range such as 10.10.0.0/24");
    }
    let mut other_keys = Vec::new();
    for key in ["driver_opts", "enable_ipv6"] {
        let is_meant = node.get(key).is_some_and(|node| {
            node.as_text()
                .map_or_else(|| node.as_map().is_some_and(|map| !map.0.is_empty()), |text| flag(text) == Some(true))
        });
        if is_meant {
            other_keys.push(key.to_owned());
        }
    }
    if configs.len() > 1 {
        other_keys.push("ipam.config".to_owned());
    }
    ComposeNetwork {
        name: outside_name,
        external: is_external,
        internal: text("internal").and_then(|text| flag(&text)).unwrap_or(false),
        driver: text("driver"),
        subnet,
        labels: pairs(node.get("labels")),
        other_keys,
        place: entry.key_place,
    }
}

fn is_subnet(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let Ok(address) = address.parse::<std::net::IpAddr>() else { return false };
    bits.parse::<u8>().is_ok_and(|bits| bits <= if address.is_ipv4() { 32 } else { 128 })
}

fn volume(name: &str, entry: &Entry) -> ComposeVolume {
    let (is_external, outside_name) = external(&entry.node, name);
    ComposeVolume {
        name: outside_name,
        external: is_external,
        driver: entry.node.get("driver").and_then(Node::as_text).map(str::to_owned),
        driver_opts: pairs(entry.node.get("driver_opts")),
        labels: pairs(entry.node.get("labels")),
        place: entry.key_place,
    }
}

fn files(loader: &mut Loader<'_>, section: &str, map: &Map, outside: &Variables) -> BTreeMap<String, ComposeFile> {
    let mut files = BTreeMap::new();
    for (name, entry) in map.iter() {
        let node = &entry.node;
        let key = format!("{section}.{name}");
        let (is_external, outside_name) = external(node, name);
        let found: Vec<&str> =
            ["file", "environment", "content"].into_iter().filter(|key| node.get(key).is_some()).collect();
        let source = match (is_external, &found[..]) {
            (true, []) => Some(FileSource::External(outside_name.unwrap_or_default())),
            (false, ["file"]) => node.get("file").map(|file| FileSource::File(path_of(loader, file))),
            (false, ["content"]) => {
                let content = node.get("content").and_then(Node::as_text).unwrap_or_default();
                Some(FileSource::Value(content.to_owned()))
            }
            (false, ["environment"]) => {
                let variable = node.get("environment").and_then(Node::as_text).unwrap_or_default();
                let value = outside.get(variable).cloned();
                if value.is_none() {
                    let message = format!("variable {variable} is not set");
                    loader.log.error(node.place, FindingClass::Interpolation, &key, message);
                }
                value.map(FileSource::Value)
            }
            _ => {
                let message = "must have exactly one of file, environment, content or external: true";
                loader.log.error(entry.key_place, FindingClass::Invalid, &key, message);
                None
            }
        };
        if let Some(source) = source {
            files.insert(name.to_owned(), ComposeFile { source, place: entry.key_place });
        }
    }
    files
}
