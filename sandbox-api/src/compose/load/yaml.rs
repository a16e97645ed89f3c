//! From text to trees: YAML 1.2 with anchors and merge keys, within fixed limits.

use std::collections::{BTreeMap, HashMap};

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::node::{Entry, Map, MergeTag, Node, Value};
use crate::compose::report::{FindingClass, Log, Place};

/// Nodes of one file, aliases counted each time they are used. Real documents have some hundreds.
const MAX_NODES: usize = 100_000;

/// How deep collections may be nested.
const MAX_DEPTH: usize = 64;

/// The documents of a file, as far as they could be read. Every problem is in the log.
pub(crate) fn parse(log: &mut Log, file: u32) -> Vec<Node> {
    let text = log.source(file).text.clone();
    let mut builder =
        Builder { log, file, anchors: HashMap::new(), open_anchors: Vec::new(), nodes: 0, has_given_up: false };
    let mut documents = Vec::new();
    let mut events = Vec::new();
    let parser = Parser::new_from_str(&text);
    for event in parser {
        match event {
            Ok((Event::DocumentStart(..), _)) => events.clear(),
            Ok((Event::DocumentEnd, _)) => {
                let mut stream = std::mem::take(&mut events).into_iter();
                if let Some(node) = builder.node(&mut stream, 0) {
                    documents.push(node);
                }
                builder.anchors.clear();
            }
            Ok((Event::StreamStart | Event::StreamEnd, _)) => {}
            Ok(event) if is_content(&event.0) => events.push(event),
            Ok(_) => {}
            Err(error) => {
                let marker = error.marker();
                let place = Place {
                    file,
                    line: marker.line() as u32,
                    column: marker.col() as u32 + 1,
                    length: 1,
                    // What stands at a broken place may be anything.
                    hidden: false,
                };
                builder.log.error(place, FindingClass::Syntax, "", format!("no YAML: {}", error.info()));
                break;
            }
        }
        if builder.has_given_up {
            break;
        }
    }
    documents
}

fn is_content(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::Alias(_)
            | Event::Scalar(..)
            | Event::SequenceStart(..)
            | Event::SequenceEnd
            | Event::MappingStart(..)
            | Event::MappingEnd
    )
}

struct Anchored {
    node: Node,
    nodes: usize,
}

struct Builder<'l> {
    log: &'l mut Log,
    file: u32,
    anchors: HashMap<usize, Anchored>,
    open_anchors: Vec<usize>,
    nodes: usize,
    has_given_up: bool,
}

type Events<'e> = std::vec::IntoIter<(Event<'e>, Span)>;

impl Builder<'_> {
    fn place(&self, span: &Span) -> Place {
        let (start, end) = (&span.start, &span.end);
        let length = if end.line() == start.line() { end.col().saturating_sub(start.col()) } else { 1 };
        Place {
            file: self.file,
            line: start.line() as u32,
            column: start.col() as u32 + 1,
            length: length.max(1) as u32,
            hidden: false,
        }
    }

    fn error(&mut self, place: Place, message: impl Into<String>) {
        self.log.error(place, FindingClass::Syntax, "", message);
    }

    fn give_up(&mut self, place: Place, message: String) -> Option<Node> {
        if !self.has_given_up {
            self.error(place, message);
        }
        self.has_given_up = true;
        None
    }

    fn node(&mut self, events: &mut Events<'_>, depth: usize) -> Option<Node> {
        let (event, span) = events.next()?;
        self.node_of(event, &span, events, depth)
    }

    fn node_of(&mut self, event: Event<'_>, span: &Span, events: &mut Events<'_>, depth: usize) -> Option<Node> {
        let place = self.place(span);
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return self.give_up(place, format!("the document has more than {MAX_NODES} nodes, aliases expanded"));
        }
        if depth > MAX_DEPTH {
            return self.give_up(place, format!("nested deeper than {MAX_DEPTH} levels"));
        }
        let before = self.nodes;
        let (value, anchor, tag) = match event {
            Event::Alias(id) => return self.alias(id, place),
            Event::Scalar(text, style, anchor, tag) => (scalar(&text, style, tag.as_deref()), anchor, tag),
            Event::SequenceStart(_, anchor, tag) => {
                self.open_anchors.push(anchor);
                let value = self.list(events, depth)?;
                self.open_anchors.pop();
                (value, anchor, tag)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.open_anchors.push(anchor);
                let value = self.mapping(events, depth)?;
                self.open_anchors.pop();
                (value, anchor, tag)
            }
            _ => return Some(Node::null(place)),
        };
        let tag = tag.as_deref().and_then(|tag| self.merge_tag(tag, place));
        let node = Node { value, place, tag };
        if anchor != 0 {
            let nodes = self.nodes - before + 1;
            self.anchors.insert(anchor, Anchored { node: node.clone(), nodes });
        }
        Some(node)
    }

    fn alias(&mut self, id: usize, place: Place) -> Option<Node> {
        if self.open_anchors.contains(&id) {
            return self.give_up(place, "an alias to a node that contains it".to_owned());
        }
        let Some(anchored) = self.anchors.get(&id) else {
            self.error(place, "an alias to an anchor that is not there");
            return Some(Node::null(place));
        };
        self.nodes += anchored.nodes;
        if self.nodes > MAX_NODES {
            return self.give_up(place, format!("the document has more than {MAX_NODES} nodes, aliases expanded"));
        }
        Some(anchored.node.clone())
    }

    fn list(&mut self, events: &mut Events<'_>, depth: usize) -> Option<Value> {
        let mut list = Vec::new();
        loop {
            let (event, span) = events.next()?;
            if matches!(event, Event::SequenceEnd) {
                return Some(Value::List(list));
            }
            list.push(self.node_of(event, &span, events, depth + 1)?);
        }
    }

    fn mapping(&mut self, events: &mut Events<'_>, depth: usize) -> Option<Value> {
        let mut map = BTreeMap::new();
        let mut merged: Option<Vec<Node>> = None;
        loop {
            let (event, span) = events.next()?;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.node_of(event, &span, events, depth + 1)?;
            let node = self.node(events, depth + 1)?;
            if is_merge {
                self.merge_key(&mut merged, node, key.place);
                continue;
            }
            let Some(text) = key_text(&key) else {
                self.error(key.place, format!("a key must be text, not {}", key.kind().name()));
                continue;
            };
            if map.contains_key(&text) {
                self.error(key.place, format!("key {text:?} is there twice"));
                continue;
            }
            map.insert(text, Entry { key_place: key.place, node });
        }
        // What is written in the mapping itself wins, then the first of the merged ones.
        for source in merged.into_iter().flatten() {
            if let Value::Map(source) = source.value {
                for (key, entry) in source.0 {
                    map.entry(key).or_insert(entry);
                }
            }
        }
        Some(Value::Map(Map(map)))
    }

    fn merge_key(&mut self, merged: &mut Option<Vec<Node>>, node: Node, place: Place) {
        if merged.is_some() {
            self.log.error_with_help(
                place,
                FindingClass::Syntax,
                "",
                "key \"<<\" is there twice",
                "merge several with one list: <<: [*a, *b]",
            );
            return;
        }
        let sources = match node.value {
            Value::List(list) => list,
            _ => vec![node],
        };
        for source in &sources {
            if !matches!(source.value, Value::Map(_)) {
                self.error(source.place, format!("only a mapping can be merged, not {}", source.kind().name()));
            }
        }
        *merged = Some(sources);
    }

    fn merge_tag(&mut self, tag: &Tag, place: Place) -> Option<MergeTag> {
        if tag.is_yaml_core_schema() {
            return None;
        }
        match tag.parts() {
            ("!", "reset") => Some(MergeTag::Reset),
            ("!", "override") => Some(MergeTag::Override),
            // The non-specific tag: text.
            ("", "!") | ("!", "") => None,
            _ => {
                self.error(place, "a tag that compose files do not have; there are !reset and !override");
                None
            }
        }
    }
}

fn key_text(key: &Node) -> Option<String> {
    match &key.value {
        Value::Scalar { text, .. } => Some(text.clone()),
        _ => None,
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = tag.is_some_and(|tag| tag.core_suffix() == Some("str") || tag.parts().1 == "!");
    let plain = style == ScalarStyle::Plain && !is_text;
    if plain && matches!(text, "" | "~" | "null" | "Null" | "NULL") {
        return Value::Null;
    }
    Value::Scalar { text: text.to_owned(), plain }
}
