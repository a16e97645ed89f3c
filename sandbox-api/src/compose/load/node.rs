//! A YAML tree in which every node knows its place, and a scalar keeps its text until somebody knows its type.

use std::collections::BTreeMap;

use crate::compose::report::Place;

/// What a tag of the Compose Specification asks for when files are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeTag {
    /// Forget what was there.
    Reset,
    /// Replace what was there.
    Override,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: Place,
    pub(crate) tag: Option<MergeTag>,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    /// Text, and whether it stood there without quotes.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Map),
}

/// A mapping, sorted by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map(pub(crate) BTreeMap<String, Entry>);

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key_place: Place,
    pub(crate) node: Node,
}

impl Map {
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.0.get(key).map(|entry| &entry.node)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(key, entry)| (key.as_str(), entry))
    }
}

/// What a node is by the core schema of YAML 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Bool,
    Int,
    Float,
    Text,
    List,
    Map,
}

impl Kind {
    /// For messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool => "a boolean",
            Self::Int | Self::Float => "a number",
            Self::Text => "text",
            Self::List => "a list",
            Self::Map => "a mapping",
        }
    }
}

impl Node {
    pub(crate) fn null(place: Place) -> Self {
        Self { value: Value::Null, place, tag: None }
    }

    pub(crate) fn text(text: impl Into<String>, place: Place) -> Self {
        Self { value: Value::Scalar { text: text.into(), plain: false }, place, tag: None }
    }

    pub(crate) fn map(map: Map, place: Place) -> Self {
        Self { value: Value::Map(map), place, tag: None }
    }

    pub(crate) fn kind(&self) -> Kind {
        match &self.value {
            Value::Null => Kind::Null,
            Value::List(_) => Kind::List,
            Value::Map(_) => Kind::Map,
            Value::Scalar { plain: false, .. } => Kind::Text,
            Value::Scalar { text, plain: true } => plain_kind(text),
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    pub(crate) fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    pub(crate) fn as_list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    /// The text of a scalar as it was written, whatever its type.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.as_map()?.get(key)
    }

    /// Marks this node and all below as never to be shown.
    pub(crate) fn hide(&mut self) {
        self.place.hidden = true;
        match &mut self.value {
            Value::List(list) => list.iter_mut().for_each(Node::hide),
            Value::Map(map) => map.0.values_mut().for_each(|entry| {
                entry.node.hide();
            }),
            Value::Null | Value::Scalar { .. } => {}
        }
    }
}

/// The type of a scalar without quotes.
pub(crate) fn plain_kind(text: &str) -> Kind {
    if matches!(text, "true" | "True" | "TRUE" | "false" | "False" | "FALSE") {
        return Kind::Bool;
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let all = |text: &str, is: fn(&u8) -> bool| !text.is_empty() && text.bytes().all(|byte| is(&byte));
    if all(digits, u8::is_ascii_digit)
        || digits.strip_prefix("0x").is_some_and(|hex| all(hex, u8::is_ascii_hexdigit))
        || digits.strip_prefix("0o").is_some_and(|octal| all(octal, |byte| (b'0'..=b'7').contains(byte)))
    {
        return Kind::Int;
    }
    if matches!(digits, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Kind::Float;
    }
    let starts_as_number = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let only_number = digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    if starts_as_number && only_number && digits.parse::<f64>().is_ok() { Kind::Float } else { Kind::Text }
}

#[cfg(test)]
mod tests {
    use super::{Kind, plain_kind};

    #[test]
    fn plain_scalars_have_the_types_of_yaml_1_2() {
        let cases = [
            ("no", Kind::Text),
            ("yes", Kind::Text),
            ("22:22", Kind::Text),
            ("2024-01-01", Kind::Text),
            ("1.2.3", Kind::Text),
            ("1e3", Kind::Float),
            ("1.10", Kind::Float),
            (".5", Kind::Float),
            (".", Kind::Text),
            ("010", Kind::Int),
            ("0x1F", Kind::Int),
            ("0o17", Kind::Int),
            ("-3", Kind::Int),
            ("-", Kind::Text),
            ("true", Kind::Bool),
            ("TRUE", Kind::Bool),
            ("tRUE", Kind::Text),
        ];
        for (text, kind) in cases {
            assert_eq!(plain_kind(text), kind, "{text}");
        }
    }
}
