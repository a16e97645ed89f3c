//! Short forms become long ones, so that documents can be merged by key.

use std::collections::BTreeMap;

use super::node::{Entry, Map, Node, Value};

/// How one key of a service is written out.
#[derive(Clone, Copy)]
enum Form {
    /// `K=V` in a list becomes a mapping.
    Pairs,
    /// One text becomes a list.
    List,
    /// A list of names becomes a mapping to nothing.
    Names,
    /// A mapping of names to addresses becomes a list of `name=address`.
    Hosts,
}

const SERVICE_FORMS: &[(&str, Form)] = &[
    ("annotations", Form::Pairs),
    ("environment", Form::Pairs),
    ("labels", Form::Pairs),
    ("sysctls", Form::Pairs),
    ("dns", Form::List),
    ("dns_search", Form::List),
    ("env_file", Form::List),
    ("label_file", Form::List),
    ("tmpfs", Form::List),
    ("depends_on", Form::Names),
    ("networks", Form::Names),
    ("models", Form::Names),
    ("extra_hosts", Form::Hosts),
];

const BUILD_FORMS: &[(&str, Form)] = &[
    ("args", Form::Pairs),
    ("labels", Form::Pairs),
    ("ssh", Form::Pairs),
    ("additional_contexts", Form::Pairs),
    ("extra_hosts", Form::Hosts),
];

/// Writes the short forms of a document out.
pub(crate) fn normalise(document: &mut Node) {
    let Value::Map(document) = &mut document.value else { return };
    for section in ["networks", "volumes", "secrets", "configs"] {
        each(document, section, |resource| apply(resource, &[("labels", Form::Pairs)]));
    }
    each(document, "services", service);
}

fn each(document: &mut Map, section: &str, mut change: impl FnMut(&mut Map)) {
    let Some(Entry { node: Node { value: Value::Map(section), .. }, .. }) = document.0.get_mut(section) else { return };
    for entry in section.0.values_mut() {
        if let Value::Map(map) = &mut entry.node.value {
            change(map);
        }
    }
}

fn service(service: &mut Map) {
    apply(service, SERVICE_FORMS);
    if let Some(entry) = service.0.get_mut("build") {
        one_key(&mut entry.node, "context");
        if let Value::Map(build) = &mut entry.node.value {
            apply(build, BUILD_FORMS);
        }
    }
    if let Some(Entry { node: Node { value: Value::Map(deploy), .. }, .. }) = service.0.get_mut("deploy") {
        apply(deploy, &[("labels", Form::Pairs)]);
    }
    if let Some(entry) = service.0.get_mut("extends") {
        one_key(&mut entry.node, "service");
    }
}

/// A text becomes a mapping with this one key.
fn one_key(node: &mut Node, key: &str) {
    if node.as_text().is_none() {
        return;
    }
    let place = node.place;
    let value = std::mem::replace(&mut node.value, Value::Null);
    let entry = Entry { key_place: place, node: Node { value, place, tag: None } };
    node.value = Value::Map(Map(BTreeMap::from([(key.to_owned(), entry)])));
}

fn apply(map: &mut Map, forms: &[(&str, Form)]) {
    for (key, form) in forms {
        if let Some(entry) = map.0.get_mut(*key) {
            write_out(&mut entry.node, *form);
        }
    }
}

fn write_out(node: &mut Node, form: Form) {
    let place = node.place;
    let value = std::mem::replace(&mut node.value, Value::Null);
    node.value = match (form, value) {
        (Form::Pairs, Value::List(list)) => Value::Map(Map(list.into_iter().filter_map(pair).collect())),
        (Form::List, value @ Value::Scalar { .. }) => Value::List(vec![Node { value, place, tag: None }]),
        (Form::Names, Value::List(list)) => Value::Map(Map(list.into_iter().filter_map(name).collect())),
        (Form::Hosts, Value::Map(map)) => Value::List(map.0.into_iter().flat_map(hosts).collect()),
        (_, value) => value,
    };
}

/// `K=V`, or `K` for a value from outside.
fn pair(node: Node) -> Option<(String, Entry)> {
    let text = node.as_text()?;
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name.to_owned(), Node::text(value, node.place)),
        None => (text.to_owned(), Node::null(node.place)),
    };
    Some((name, Entry { key_place: node.place, node: value }))
}

fn name(node: Node) -> Option<(String, Entry)> {
    let name = node.as_text()?.to_owned();
    Some((name, Entry { key_place: node.place, node: Node::null(node.place) }))
}

fn hosts((name, entry): (String, Entry)) -> Vec<Node> {
    let addresses = match entry.node.value {
        Value::List(list) => list,
        _ => vec![entry.node],
    };
    let line = |node: &Node| Some(Node::text(format!("{name}={}", node.as_text()?), node.place));
    addresses.iter().filter_map(line).collect()
}
