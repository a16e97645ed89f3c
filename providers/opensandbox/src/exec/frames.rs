//! The events of a command, out of the bytes of an answer.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use sandbox_core::ExecExit;
use serde::Deserialize;

use crate::daemon::Dialect;

/// An event that is longer than this is none.
const FRAME_BYTES: usize = 32 * 1024 * 1024;

/// Takes the stream apart: objects with an empty line behind each, alone or as `data:` of a standard event.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    rest: BytesMut,
    /// So much of the rest holds no end for certain.
    searched: usize,
}

/// What an answer that is no stream of events is refused with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Garbage(pub(crate) &'static str);

/// One event as it is sent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Frame {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: String,
    /// Exact bytes, from a daemon of ours.
    data: Option<String>,
    pub(crate) error: Option<FrameError>,
    /// How it ended, exactly, from a daemon of ours.
    pub(crate) exit: Option<ExecExit>,
    /// A failure after the stream had begun has no type.
    pub(crate) code: Option<String>,
}

/// How a command ended, in the words of the daemon.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FrameError {
    pub(crate) evalue: String,
    pub(crate) traceback: Vec<String>,
}

impl Frames {
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.rest.extend_from_slice(data);
    }

    /// The next whole event; none until more bytes come.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Garbage> {
        loop {
            let Some((end, gap)) = end_of_first(&self.rest, self.searched) else {
                if self.rest.len() > FRAME_BYTES {
                    return Err(Garbage("an event is longer than 32 MiB"));
                }
                self.searched = self.rest.len().saturating_sub(3);
                return Ok(None);
            };
            let frame = self.rest.split_to(end + gap);
            self.searched = 0;
            if let Some(event) = read(&frame[..end])? {
                return Ok(Some(event));
            }
        }
    }

    /// Whether there are bytes that are no whole event.
    pub(crate) fn has_rest(&self) -> bool {
        self.rest.iter().any(|byte| !byte.is_ascii_whitespace())
    }
}

/// Where the first event ends, and how long its empty line is. Line ends are of either kind, on bytes: text of an event may
/// hold what Unicode calls a line end.
fn end_of_first(bytes: &[u8], mut from: usize) -> Option<(usize, usize)> {
    loop {
        let at = from + bytes.get(from..)?.iter().position(|byte| *byte == b'\n')?;
        if bytes.get(at + 1) == Some(&b'\n') {
            return Some((at, 2));
        }
        if at > 0 && bytes[at - 1] == b'\r' && bytes.get(at + 1..at + 3) == Some(&b"\r\n"[..]) {
            return Some((at - 1, 4));
        }
        from = at + 1;
    }
}

fn read(frame: &[u8]) -> Result<Option<Frame>, Garbage> {
    let start = frame.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(frame.len());
    let frame = &frame[start..];
    let json = match frame.first() {
        None => return Ok(None),
        Some(b'{') => frame.to_vec(),
        Some(_) => {
            let mut data = Vec::new();
            for line in frame.split(|byte| *byte == b'\n') {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                if let Some(value) = line.strip_prefix(b"data:") {
                    if !data.is_empty() {
                        data.push(b'\n');
                    }
                    data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
                } else if !is_standard(line) {
                    return Err(Garbage("the answer is no stream of events"));
                }
            }
            if data.is_empty() {
                return Ok(None);
            }
            data
        }
    };
    serde_json::from_slice(&json).map(Some).map_err(|_| Garbage("an event cannot be read"))
}

/// Whether a line may be in a standard event beside its data.
fn is_standard(line: &[u8]) -> bool {
    line.is_empty()
        || line.starts_with(b":")
        || [&b"event:"[..], b"id:", b"retry:"].iter().any(|start| line.starts_with(start))
}

impl Frame {
    /// The bytes of output that it holds, as they go out: `lines` counts those of its stream before it.
    pub(crate) fn bytes(&self, dialect: Dialect, lines: &mut u64) -> Result<Bytes, Garbage> {
        if let Some(data) = &self.data {
            return STANDARD.decode(data).map(Into::into).map_err(|_| Garbage("the bytes of an event cannot be read"));
        }
        if dialect == Dialect::Exact {
            return Ok(self.text.clone().into());
        }
        // Between lines, not behind them: whether the last one had an end is not told.
        let text = if self.text == "\n" { "" } else { self.text.as_str() };
        let line = if *lines == 0 { text.to_owned() } else { format!("\n{text}") };
        *lines += 1;
        Ok(line.into())
    }
}

/// The dialect that two lines (`a`, `b`) came in.
pub(crate) fn dialect_of(texts: &[String]) -> Dialect {
    if texts.iter().any(|text| text.len() > 1 && text.contains(['\n', '\r'])) { Dialect::Exact } else { Dialect::Lines }
}

#[cfg(test)]
mod tests {
    use super::{Dialect, Frame, Frames, Garbage, dialect_of};

    const STREAM: &str = "{\"type\":\"init\",\"text\":\"id\"}\n\n{\"type\":\"stdout\",\"text\":\"a\u{2028}b\u{85}\"}\n\n\
                          data: {\"type\":\"stdout\",\ndata: \"text\":\"x\\n\\n\"}\n\n: comment\n\n\r\n\
                          {\"type\":\"execution_complete\"}\r\n\r\n";

    fn kinds_and_texts(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let (mut frames, mut all) = (Frames::default(), Vec::new());
        for piece in pieces {
            frames.push(piece);
            while let Some(frame) = frames.next().unwrap() {
                all.push((frame.kind, frame.text));
            }
        }
        assert!(!frames.has_rest());
        all
    }

    #[test]
    fn a_stream_cut_into_pieces_at_every_byte_reads_the_same() {
        let whole = kinds_and_texts(&[STREAM.as_bytes()]);
        let expected =
            [("init", "id"), ("stdout", "a\u{2028}b\u{85}"), ("stdout", "x\n\n"), ("execution_complete", "")];
        assert_eq!(whole, expected.map(|(kind, text)| (kind.to_owned(), text.to_owned())));
        for at in 0..STREAM.len() {
            let (head, tail) = STREAM.as_bytes().split_at(at);
            assert_eq!(kinds_and_texts(&[head, tail]), whole, "cut at {at}");
        }
        let bytes: Vec<&[u8]> = STREAM.as_bytes().chunks(1).collect();
        assert_eq!(kinds_and_texts(&bytes), whole);
    }

    #[test]
    fn a_page_of_somebody_else_is_no_stream() {
        let mut frames = Frames::default();
        frames.push(b"<html><body>hello</body></html>\n\n");
        assert_eq!(frames.next().unwrap_err(), Garbage("the answer is no stream of events"));
        let mut frames = Frames::default();
        frames.push(b"{\"type\":\n\n");
        assert_eq!(frames.next().unwrap_err(), Garbage("an event cannot be read"));
    }

    fn output(dialect: Dialect, texts: &[&str]) -> String {
        let mut lines = 0;
        let frames = texts.iter().map(|text| Frame { text: (*text).to_owned(), ..Frame::default() });
        let pieces = frames.map(|frame| frame.bytes(dialect, &mut lines).unwrap());
        String::from_utf8(pieces.collect::<Vec<_>>().concat()).unwrap()
    }

    #[test]
    fn both_dialects_give_what_was_written() {
        // Written: "a\n\nb".
        assert_eq!(output(Dialect::Lines, &["a", "\n", "b"]), "a\n\nb");
        assert_eq!(output(Dialect::Exact, &["a\n", "\n", "b"]), "a\n\nb");
        assert_eq!(output(Dialect::Exact, &["fir", "st"]), "first");
        assert_eq!(dialect_of(&["a".to_owned(), "b".to_owned()]), Dialect::Lines);
        assert_eq!(dialect_of(&["a\nb\n".to_owned()]), Dialect::Exact);
        assert_eq!(dialect_of(&["a\n".to_owned(), "b\n".to_owned()]), Dialect::Exact);
    }
}
