//! Events of the product's daemon in the forms of other ones.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{ExecdOptions, OutputDialect};

/// Rewrites a stream of events.
pub(super) struct Adapter {
    dialect: OutputDialect,
    standard: bool,
    extensions: bool,
    /// The start of an event.
    rest: Vec<u8>,
    /// The start of a line of each stream.
    held: [String; 2],
}

const STREAMS: [&str; 2] = ["stdout", "stderr"];

impl Adapter {
    pub(super) fn new(options: &ExecdOptions) -> Self {
        Self {
            dialect: options.dialect,
            standard: options.standard_events,
            extensions: options.extensions,
            rest: Vec::new(),
            held: Default::default(),
        }
    }

    /// What is to be sent for some bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Bytes {
        self.rest.extend_from_slice(bytes);
        let mut sent = String::new();
        while let Some(at) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
            let frame: Vec<u8> = self.rest.drain(..at + 2).collect();
            let event: Value = serde_json::from_slice(&frame).expect("an event of the product's daemon");
            for event in self.adapt(event) {
                sent += &if self.standard { format!("data: {event}\n\n") } else { format!("{event}\n\n") };
            }
        }
        sent.into()
    }

    fn adapt(&mut self, mut event: Value) -> Vec<Value> {
        if let Some(event) = event.as_object_mut().filter(|_| !self.extensions) {
            event.remove("exit");
        }
        let kind = event["type"].as_str().unwrap_or_default().to_owned();
        let stream = STREAMS.iter().position(|name| *name == kind).filter(|_| self.dialect == OutputDialect::Lines);
        match (stream, kind.as_str()) {
            (Some(stream), _) => {
                self.held[stream] += event["text"].as_str().unwrap_or_default();
                let whole = self.held[stream].rfind(['\n', '\r']).map_or(0, |at| at + 1);
                let lines: String = self.held[stream].drain(..whole).collect();
                let line = |line: &str| {
                    let line = &line[..line.len() - 1];
                    text(STREAMS[stream], if line.is_empty() { "\n" } else { line }, &event)
                };
                lines.split_inclusive(['\n', '\r']).map(line).collect()
            }
            (None, "execution_complete" | "error") => {
                let mut all: Vec<Value> = Vec::new();
                for (held, name) in self.held.iter_mut().zip(STREAMS) {
                    let held = std::mem::take(held);
                    all.extend((!held.is_empty()).then(|| text(name, &held, &event)));
                }
                all.push(event);
                all
            }
            _ => vec![event],
        }
    }
}

fn text(kind: &str, text: &str, like: &Value) -> Value {
    json!({ "type": kind, "text": text, "timestamp": like["timestamp"] })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Adapter;
    use crate::{ExecdOptions, OutputDialect};

    #[test]
    fn output_comes_a_line_at_a_time_and_what_is_ours_is_left_out() {
        let options = ExecdOptions {
            dialect: OutputDialect::Lines,
            extensions: false,
            standard_events: true,
            ..Default::default()
        };
        let mut adapter = Adapter::new(&options);
        let events = [
            json!({ "type": "stdout", "text": "a\n\nb\rc" }),
            json!({ "type": "stderr", "text": "e" }),
            json!({ "type": "execution_complete", "exit": {} }),
        ];
        let all: String = events.iter().map(|event| format!("{event}\n\n")).collect();
        let sent: Vec<u8> = all.as_bytes().chunks(3).flat_map(|piece| adapter.push(piece)).collect();
        let sent = String::from_utf8(sent).unwrap();
        let told: Vec<(String, Value)> = sent
            .split_terminator("\n\n")
            .map(|frame| serde_json::from_str::<Value>(frame.strip_prefix("data: ").unwrap()).unwrap())
            .map(|event| (event["type"].as_str().unwrap().to_owned(), event["text"].clone()))
            .collect();
        let line = |kind: &str, text: &str| (kind.to_owned(), json!(text));
        let end = ("execution_complete".to_owned(), Value::Null);
        assert_eq!(
            told,
            [
                line("stdout", "a"),
                line("stdout", "\n"),
                line("stdout", "b"),
                line("stdout", "c"),
                line("stderr", "e"),
                end
            ]
        );
        assert!(!sent.contains("exit\":"));
    }
}
