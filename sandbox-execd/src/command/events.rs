//! Events on their way to the client: bare JSON, an empty line behind each.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use sandbox_core::ExecExit;
use serde_json::{Value, json};

use super::outcome::Told;
use crate::http::Pieces;

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

/// In which form output travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As text: what is none of it is replaced.
    Text,
    /// Ours, for clients that ask for it: what is no text as base64.
    Bytes,
}

/// Writes events into the body of an answer. A client that is gone is not missed.
pub(crate) struct Events {
    pieces: Pieces,
    form: Form,
    /// The start of a character of each stream, which waits for its end.
    held: [Vec<u8>; 2],
}

pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Events {
    pub(crate) fn new(pieces: Pieces, form: Form) -> Self {
        Self { pieces, form, held: Default::default() }
    }

    /// Tells when the client is gone. The answer ends with this, too.
    pub(crate) fn client(&self) -> Pieces {
        self.pieces.clone()
    }

    pub(crate) async fn event(&self, event: Value) {
        self.piece(line(event)).await;
    }

    async fn piece(&self, lines: String) {
        let _ = self.pieces.send(Ok(lines.into())).await;
    }

    /// The first two of every command, as one piece.
    pub(crate) async fn begin(&self, id: &str) {
        self.piece(line(json!({ "type": "init", "text": id })) + &line(pong())).await;
    }

    pub(crate) async fn ping(&self) {
        self.event(pong()).await;
    }

    pub(crate) async fn complete(&self, ms: u64) {
        self.event(json!({ "type": "execution_complete", "execution_time": ms })).await;
    }

    pub(crate) async fn output(&mut self, stream: Stream, data: Bytes) {
        if self.form == Form::Bytes {
            // Text with many escapes is longer than base64.
            let escapes = data.iter().filter(|byte| **byte < 0x20 && **byte != b'\n').count();
            return match std::str::from_utf8(&data) {
                Ok(text) if escapes * 8 <= data.len() => self.text(stream, text).await,
                _ => self.event(json!({ "type": stream.name(), "data": STANDARD.encode(&data) })).await,
            };
        }
        let mut held = std::mem::take(&mut self.held[stream as usize]);
        held.extend_from_slice(&data);
        let whole = whole_characters(&held);
        self.held[stream as usize] = held.split_off(whole);
        if !held.is_empty() {
            self.text(stream, &String::from_utf8_lossy(&held)).await;
        }
    }

    /// What is held back goes out now.
    async fn flush(&mut self) {
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

    /// The last one: how the command ended, in the words of execd and exactly.
    pub(crate) async fn end(&mut self, told: &Told, exit: &ExecExit) {
        self.flush().await;
        let mut event = match told.code {
            Some(0) => {
                let seconds = exit.usage.wall_time_s.unwrap_or_default();
                json!({ "type": "execution_complete", "execution_time": (seconds * 1000.0) as u64 })
            }
            code => {
                let value = code.map_or_else(|| told.words.clone(), |code| code.to_string());
                let trace = code.map_or_else(Vec::new, |_| vec![told.words.clone()]);
                json!({ "type": "error",
                        "error": { "ename": "CommandExecError", "evalue": value, "traceback": trace } })
            }
        };
        event["exit"] = json!(exit);
        self.event(event).await;
    }

    /// Cuts the connection: what became of the command is not known.
    pub(crate) async fn cut(&self) {
        let _ = self.pieces.send(Err(std::io::Error::other("the command is lost"))).await;
    }
}

/// An event as it is sent.
fn line(mut event: Value) -> String {
    event["timestamp"] = json!(now_ms());
    format!("{event}\n\n")
}

fn pong() -> Value {
    json!({ "type": "ping", "text": "pong" })
}

/// How many bytes from the start are no beginning of a character that is still to come.
fn whole_characters(bytes: &[u8]) -> usize {
    let mut checked = 0;
    loop {
        match std::str::from_utf8(&bytes[checked..]) {
            Ok(_) => return bytes.len(),
            Err(error) => match error.error_len() {
                None => return checked + error.valid_up_to(),
                // What is no text does not wait.
                Some(length) => checked += error.valid_up_to() + length,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::whole_characters;

    #[test]
    fn only_the_start_of_a_character_at_the_end_waits() {
        assert_eq!(whole_characters("a\u{e9}".as_bytes()), 3);
        assert_eq!(whole_characters(b"a\xc3"), 1);
        assert_eq!(whole_characters(b"\xffa\xe2\x82"), 2);
        assert_eq!(whole_characters(b"\xff\xfe"), 2);
    }
}
