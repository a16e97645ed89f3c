//! The merge rules of the specification: what a later document or an extending service does to an earlier one.

use super::{
    node::{Entry, Map, MergeTag, Node, Value},
    ports, volumes,
};

/// Lists that are replaced as a whole.
const REPLACED: &[&str] = &["command", "entrypoint", "test"];

/// Lays a document over another one.
pub(crate) fn merge_documents(mut base: Node, over: Node) -> Node {
    merge(&mut base, over, &mut Vec::new());
    base
}

/// Lays a service over the one that it extends.
pub(crate) fn merge_services(mut base: Node, over: Node) -> Node {
    merge(&mut base, over, &mut vec!["services".to_owned(), "*".to_owned()]);
    base
}

/// Drops what `!reset` removes in a document that is laid over nothing.
pub(crate) fn settle(node: &mut Node) {
    match &mut node.value {
        Value::Map(map) => {
            map.0.retain(|_, entry| entry.node.tag != Some(MergeTag::Reset));
            map.0.values_mut().for_each(|entry| settle(&mut entry.node));
        }
        Value::List(list) => {
            list.retain(|node| node.tag != Some(MergeTag::Reset));
            list.iter_mut().for_each(settle);
        }
        Value::Null | Value::Scalar { .. } => {}
    }
    node.tag = None;
}

fn merge(base: &mut Node, over: Node, path: &mut Vec<String>) {
    if over.tag == Some(MergeTag::Override) {
        *base = Node { tag: None, ..over };
        settle(base);
        return;
    }
    let place = over.place;
    match (&mut base.value, over.value) {
        (Value::Map(base), Value::Map(over)) => merge_maps(base, over, path),
        (Value::List(list), Value::List(over)) => merge_lists(list, over, path),
        // Nothing said keeps what was there, but for variables, where nothing means: from outside.
        (_, Value::Null) if !is_below(path, "environment") => {}
        (_, value) => {
            *base = Node { value, place, tag: None };
            settle(base);
        }
    }
}

fn is_below(path: &[String], key: &str) -> bool {
    path.len() > 1 && path[path.len() - 2] == key
}

fn merge_maps(base: &mut Map, over: Map, path: &mut Vec<String>) {
    if path.last().is_some_and(|key| key == "logging") && driver(base) != driver(&over) && over.get("driver").is_some()
    {
        *base = over;
        return;
    }
    for (key, mut entry) in over.0 {
        if entry.node.tag == Some(MergeTag::Reset) {
            base.0.remove(&key);
            continue;
        }
        match base.0.get_mut(&key) {
            None => {
                settle(&mut entry.node);
                base.0.insert(key, entry);
            }
            Some(old) => {
                path.push(key);
                merge(&mut old.node, entry.node, path);
                old.key_place = entry.key_place;
                path.pop();
            }
        }
    }
}

fn driver(map: &Map) -> Option<&str> {
    map.get("driver").and_then(Node::as_text)
}

fn merge_lists(base: &mut Vec<Node>, over: Vec<Node>, path: &[String]) {
    let key = path.last().map(String::as_str).unwrap_or_default();
    if REPLACED.contains(&key) {
        *base = over;
        return;
    }
    let in_service = path.len() == 3 && path[0] == "services";
    for mut node in over {
        if node.tag == Some(MergeTag::Reset) {
            continue;
        }
        settle(&mut node);
        let identity = if in_service { identity(key, &node) } else { None };
        let same = |old: &Node| match &identity {
            Some(identity) => self::identity(key, old).as_ref() == Some(identity),
            None => old.as_text().is_some() && old.as_text() == node.as_text(),
        };
        match base.iter().position(same) {
            Some(index) => base[index] = node,
            None => base.push(node),
        }
    }
}

/// What makes an item of a list the same as another: what it is in the container.
fn identity(key: &str, node: &Node) -> Option<String> {
    match key {
        "ports" => Some(ports::identity(node)),
        "volumes" => volumes::target(node),
        "secrets" | "configs" => grant_target(node),
        "devices" => device_target(node),
        _ => None,
    }
}

fn grant_target(node: &Node) -> Option<String> {
    let text = |key: &str| node.get(key).and_then(Node::as_text);
    text("target").or_else(|| text("source")).or_else(|| node.as_text()).map(str::to_owned)
}

fn device_target(node: &Node) -> Option<String> {
    if let Some(text) = node.as_text() {
        let mut parts = text.split(':');
        let source = parts.next()?;
        return Some(parts.next().unwrap_or(source).to_owned());
    }
    let text = |key: &str| node.get(key).and_then(Node::as_text);
    text("target").or_else(|| text("source")).map(str::to_owned)
}

/// Takes what another document defines into this one. Gives the names that both define differently.
pub(crate) fn import(into: &mut Map, from: Map) -> Vec<(String, String)> {
    let mut conflicts = Vec::new();
    for (section, entry) in from.0 {
        if !matches!(section.as_str(), "services" | "networks" | "volumes" | "secrets" | "configs") {
            continue;
        }
        let Entry { key_place, node } = entry;
        let place = node.place;
        let Value::Map(resources) = node.value else { continue };
        let known = into
            .0
            .entry(section.clone())
            .or_insert_with(|| Entry { key_place, node: Node::map(Map::default(), place) });
        if known.node.is_null() {
            known.node = Node::map(Map::default(), place);
        }
        let Value::Map(known) = &mut known.node.value else { continue };
        for (name, resource) in resources.0 {
            match known.0.get(&name) {
                Some(old) if !is_same(&old.node, &resource.node) => conflicts.push((section.clone(), name)),
                Some(_) => {}
                None => {
                    known.0.insert(name, resource);
                }
            }
        }
    }
    conflicts
}

/// Whether two nodes say the same, wherever they stand.
fn is_same(left: &Node, right: &Node) -> bool {
    match (&left.value, &right.value) {
        (Value::Null, Value::Null) => true,
        (Value::Scalar { text: left, .. }, Value::Scalar { text: right, .. }) => left == right,
        (Value::List(left), Value::List(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| is_same(left, right))
        }
        (Value::Map(left), Value::Map(right)) => {
            left.0.len() == right.0.len()
                && left.iter().all(|(key, entry)| right.get(key).is_some_and(|right| is_same(&entry.node, right)))
        }
        _ => false,
    }
}
