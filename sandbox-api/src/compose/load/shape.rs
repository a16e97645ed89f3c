//! The shapes that values of a document may have, and the check against them.

use sandbox_core::near_match;

use super::node::{Kind, Map, MergeTag, Node, Value};
use crate::compose::report::{FindingClass, Log};

/// What a value may look like.
#[derive(Debug)]
pub(crate) enum Shape {
    /// Text; a number or boolean needs quotes.
    Text,
    /// A boolean, or text that says one.
    Flag,
    /// A boolean and nothing else.
    Bool,
    /// A whole number, or text that holds one.
    Whole,
    /// A number, or text that holds one.
    Number,
    /// A number or text.
    Amount,
    /// Text, a number or a boolean.
    Scalar,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A list of one shape.
    List(&'static Shape),
    /// A list of different texts.
    Texts,
    /// A mapping with any keys.
    MapOf(&'static Shape),
    /// A mapping with these keys, and those that must be there.
    Object(&'static Fields),
    /// Any of these; the last word is how people call it.
    OneOf(&'static [Shape], &'static str),
    /// This, or nothing.
    Maybe(&'static Shape),
    /// Nothing.
    Null,
    /// Whatever.
    Any,
}

/// The keys of a mapping.
#[derive(Debug)]
pub(crate) struct Fields {
    pub(crate) keys: &'static [(&'static str, Shape)],
    pub(crate) required: &'static [&'static str],
}

/// Checks a value, and says everything that is wrong with it.
pub(crate) fn check(shape: &Shape, node: &Node, key: &str, log: &mut Log) {
    // What is reset has no value that counts.
    if node.tag == Some(MergeTag::Reset) {
        return;
    }
    if fits(shape, node.kind()) {
        inside(shape, node, key, log);
        return;
    }
    let mut message = format!("must be {}, not {}", words(shape), node.kind().name());
    if node.is_null() {
        message = format!("must be {}; there is no value", words(shape));
    }
    let is_number = matches!(node.kind(), Kind::Int | Kind::Float | Kind::Bool);
    if is_number && fits(shape, Kind::Text) {
        log.error_with_help(node.place, FindingClass::Invalid, key, message, "put it in quotes");
    } else {
        log.error(node.place, FindingClass::Invalid, key, message);
    }
}

fn fits(shape: &Shape, kind: Kind) -> bool {
    match shape {
        Shape::Text | Shape::Word(_) => kind == Kind::Text,
        Shape::Flag => matches!(kind, Kind::Bool | Kind::Text),
        Shape::Bool => kind == Kind::Bool,
        Shape::Whole => matches!(kind, Kind::Int | Kind::Text),
        Shape::Number | Shape::Amount => matches!(kind, Kind::Int | Kind::Float | Kind::Text),
        Shape::Scalar => matches!(kind, Kind::Int | Kind::Float | Kind::Text | Kind::Bool),
        Shape::List(_) | Shape::Texts => kind == Kind::List,
        Shape::MapOf(_) | Shape::Object(_) => kind == Kind::Map,
        Shape::OneOf(shapes, _) => shapes.iter().any(|shape| fits(shape, kind)),
        Shape::Maybe(shape) => kind == Kind::Null || fits(shape, kind),
        Shape::Null => kind == Kind::Null,
        Shape::Any => true,
    }
}

fn words(shape: &Shape) -> String {
    match shape {
        Shape::Text => "text".to_owned(),
        Shape::Flag | Shape::Bool => "true or false".to_owned(),
        Shape::Whole => "a whole number".to_owned(),
        Shape::Number => "a number".to_owned(),
        Shape::Amount => "a number or text".to_owned(),
        Shape::Scalar => "text, a number or a boolean".to_owned(),
        Shape::Word(list) => format!("one of {}", list.join(", ")),
        Shape::List(_) => "a list".to_owned(),
        Shape::Texts => "a list of texts".to_owned(),
        Shape::MapOf(_) | Shape::Object(_) => "a mapping".to_owned(),
        Shape::OneOf(_, words) => (*words).to_owned(),
        Shape::Maybe(shape) => words(shape),
        Shape::Null => "empty".to_owned(),
        Shape::Any => "anything".to_owned(),
    }
}

/// Checks what a value that fits by its kind has in it.
fn inside(shape: &Shape, node: &Node, key: &str, log: &mut Log) {
    let text = node.as_text().unwrap_or_default();
    let invalid = FindingClass::Invalid;
    match shape {
        Shape::Flag if flag(text).is_none() => {
            log.error(node.place, invalid, key, "must be true or false");
        }
        Shape::Whole if whole(text).is_none() => {
            log.error(node.place, invalid, key, "must be a whole number");
        }
        Shape::Number if text.parse::<f64>().is_err() && whole(text).is_none() => {
            log.error(node.place, invalid, key, "must be a number");
        }
        Shape::Word(list) if !list.contains(&text) => {
            let near = near_match(text, list.iter().copied());
            let message = format!("must be one of {}", list.join(", "));
            match near {
                Some(near) => log.error_with_help(node.place, invalid, key, message, format!("did you mean {near:?}?")),
                None => log.error(node.place, invalid, key, message),
            }
        }
        Shape::List(item) => {
            for (index, node) in node.as_list().unwrap_or_default().iter().enumerate() {
                check(item, node, &format!("{key}[{index}]"), log);
            }
        }
        Shape::Texts => {
            for (index, node) in node.as_list().unwrap_or_default().iter().enumerate() {
                check(&Shape::Text, node, &format!("{key}[{index}]"), log);
            }
        }
        Shape::MapOf(item) => {
            for (name, entry) in node.as_map().into_iter().flat_map(Map::iter) {
                check(item, &entry.node, &join(key, name), log);
            }
        }
        Shape::Object(fields) => {
            if let Value::Map(map) = &node.value {
                object(fields, map, node, key, log);
            }
        }
        Shape::OneOf(shapes, _) => {
            if let Some(shape) = shapes.iter().find(|shape| fits(shape, node.kind())) {
                inside(shape, node, key, log);
            }
        }
        Shape::Maybe(shape) if !node.is_null() => inside(shape, node, key, log),
        _ => {}
    }
}

fn object(fields: &Fields, map: &Map, node: &Node, key: &str, log: &mut Log) {
    for (name, entry) in map.iter() {
        let path = join(key, name);
        match fields.keys.iter().find(|(known, _)| *known == name) {
            Some((_, shape)) => check(shape, &entry.node, &path, log),
            None if name.starts_with("x-") => {}
            None => {
                let names = fields.keys.iter().map(|(name, _)| *name);
                let help = near_match(name, names.clone()).map_or_else(
                    || format!("there is: {}", names.collect::<Vec<_>>().join(", ")),
                    |near| format!("did you mean {near:?}?"),
                );
                let message = "is no key of the Compose Specification";
                log.error_with_help(entry.key_place, FindingClass::Invalid, &path, message, help);
            }
        }
    }
    for name in fields.required {
        if map.get(name).is_none() {
            log.error(node.place, FindingClass::Invalid, key, format!("{name} is missing"));
        }
    }
}

pub(crate) fn join(key: &str, name: &str) -> String {
    if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") }
}

/// A boolean, as text that came out of a variable may say it.
pub(crate) fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" | "1" => Some(true),
        "false" | "no" | "off" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// A whole number in the forms of YAML 1.2.
pub(crate) fn whole(text: &str) -> Option<i64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return i64::from_str_radix(hex, 16).ok();
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return i64::from_str_radix(octal, 8).ok();
    }
    text.parse().ok()
}
