//! Events on their way to the client.

use std::io;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{ExecdOptions, OutputDialect, now_ms};

/// Which stream bytes came from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Writes events into the body of a response. A client that is gone is not missed.
pub(crate) struct Events {
    sender: mpsc::Sender<io::Result<Bytes>>,
    dialect: OutputDialect,
    standard: bool,
    bytes: bool,
    /// What is held back of each stream: the start of a line, or of a character.
    held: [Vec<u8>; 2],
}

impl Events {
    /// `bytes`: the client takes exact bytes.
    pub(crate) fn new(sender: mpsc::Sender<io::Result<Bytes>>, options: &ExecdOptions, bytes: bool) -> Self {
        let bytes = bytes && options.extensions;
        Self { sender, dialect: options.dialect, standard: options.standard_events, bytes, held: Default::default() }
    }

    pub(crate) async fn event(&self, mut event: Value) {
        event["timestamp"] = json!(now_ms());
        let text = if self.standard { format!("data: {event}\n\n") } else { format!("{event}\n\n") };
        let _ = self.sender.send(Ok(text.into())).await;
    }

    pub(crate) async fn output(&mut self, stream: Stream, data: &[u8]) {
        if self.bytes {
            let escapes = data.iter().filter(|byte| **byte < 0x20 && **byte != b'\n').count();
            match std::str::from_utf8(data) {
                Ok(text) if escapes * 8 <= data.len() => self.text(stream, text).await,
                _ => self.event(json!({ "type": stream.name(), "data": STANDARD.encode(data) })).await,
            }
            return;
        }
        let held = &mut self.held[stream as usize];
        held.extend_from_slice(data);
        match self.dialect {
            OutputDialect::Lines => {
                let whole = held.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')).map_or(0, |at| at + 1);
                let lines: Vec<u8> = held.drain(..whole).collect();
                for line in lines.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
                    let line = String::from_utf8_lossy(&line[..line.len() - 1]).into_owned();
                    self.text(stream, if line.is_empty() { "\n" } else { &line }).await;
                }
            }
            OutputDialect::Exact => {
                // The start of a character waits for its end.
                let whole = match std::str::from_utf8(held) {
                    Err(error) if error.error_len().is_none() => error.valid_up_to(),
                    _ => held.len(),
                };
                let text: Vec<u8> = held.drain(..whole).collect();
                if !text.is_empty() {
                    self.text(stream, &String::from_utf8_lossy(&text)).await;
                }
            }
        }
    }

    /// What is held back goes out now.
    pub(crate) async fn flush(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let held = std::mem::take(&mut self.held[stream as usize]);
            if !held.is_empty() {
                self.text(stream, &String::from_utf8_lossy(&held)).await;
            }
        }
    }

    async fn text(&self, stream: Stream, text: &str) {
        self.event(json!({ "type": stream.name(), "text": text })).await;
    }
}
