//! Forms in parts, taken apart as their bytes come.

use bytes::{Buf, Bytes, BytesMut};

/// The head of a part, and what is behind a boundary on its line.
const HEAD_BYTES: usize = 16 * 1024;

/// What a form consists of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A part begins.
    Head(Head),
    /// Some of what it holds.
    Data(Bytes),
    /// It ends.
    EndOfPart,
    /// The form ends.
    End,
}

/// What a part says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) name: String,
    pub(super) has_file_name: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Preamble,
    AfterBoundary,
    Head,
    Data,
    Over,
}

/// Takes a form apart.
pub(super) struct Splitter {
    buffer: BytesMut,
    /// A line end, and the boundary behind it.
    delimiter: Vec<u8>,
    state: State,
}

/// Where this is in those bytes for the first time.
pub(super) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut at = 0;
    while let Some(step) = bytes.get(at..)?.iter().position(|byte| *byte == first) {
        at += step;
        if bytes[at..].starts_with(wanted) {
            return Some(at);
        }
        at += 1;
    }
    None
}

impl Splitter {
    /// For forms of this content type; none where it names no boundary.
    pub(super) fn of(content_type: &str) -> Option<Self> {
        let (_, boundary) = content_type.split_once("boundary=")?;
        let boundary = match boundary.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next()?,
            None => boundary.split(';').next()?.trim(),
        };
        // The first boundary has no line end in front.
        (!boundary.is_empty()).then(|| Self {
            buffer: BytesMut::from(&b"\r\n"[..]),
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            state: State::Preamble,
        })
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// What comes next; none: more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<Token>, &'static str> {
        loop {
            match self.state {
                State::Over => return Ok(None),
                State::Preamble | State::Data => {
                    let is_data = self.state == State::Data;
                    let (length, is_whole) = match find(&self.buffer, &self.delimiter) {
                        Some(at) => (at, true),
                        // The start of a delimiter may be at the end.
                        None => ((self.buffer.len() + 1).saturating_sub(self.delimiter.len()), false),
                    };
                    if length > 0 {
                        let data = self.buffer.split_to(length).freeze();
                        if is_data {
                            return Ok(Some(Token::Data(data)));
                        }
                    }
                    if !is_whole {
                        return Ok(None);
                    }
                    self.buffer.advance(self.delimiter.len());
                    self.state = State::AfterBoundary;
                    if is_data {
                        return Ok(Some(Token::EndOfPart));
                    }
                }
                State::AfterBoundary => {
                    if self.buffer.len() < 2 {
                        return Ok(None);
                    }
                    if self.buffer.starts_with(b"--") {
                        self.state = State::Over;
                        return Ok(Some(Token::End));
                    }
                    match find(&self.buffer, b"\r\n") {
                        Some(at) => self.buffer.advance(at + 2),
                        None if self.buffer.len() > HEAD_BYTES => return Err("a boundary has no end"),
                        None => return Ok(None),
                    }
                    self.state = State::Head;
                }
                State::Head => {
                    let length = match self.buffer.starts_with(b"\r\n") {
                        true => Some(0),
                        false => find(&self.buffer, b"\r\n\r\n").map(|at| at + 2),
                    };
                    match length {
                        Some(length) => {
                            let head = self.buffer.split_to(length);
                            self.buffer.advance(2);
                            // What it holds may be nothing: its delimiter comes at once, with its own line end.
                            self.state = State::Data;
                            return Ok(Some(Token::Head(read_head(&head))));
                        }
                        None if self.buffer.len() > HEAD_BYTES => return Err("the head of a part is too long"),
                        None => return Ok(None),
                    }
                }
            }
        }
    }
}

fn read_head(head: &[u8]) -> Head {
    let text = String::from_utf8_lossy(head);
    let disposition = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let mut read = Head::default();
    for (name, value) in parameters(disposition.unwrap_or_default()) {
        match name.to_ascii_lowercase().as_str() {
            "name" => read.name = value,
            "filename" | "filename*" => read.has_file_name = true,
            _ => {}
        }
    }
    read
}

/// The parameters of a header. What is in quotes is one of them, whatever it holds.
fn parameters(header: &str) -> Vec<(String, String)> {
    let (mut found, mut rest) = (Vec::new(), header);
    while let Some((_, after)) = rest.split_once(';') {
        let Some((name, value)) = after.split_once('=') else { break };
        let value = value.trim_start();
        let (value, behind) = match value.strip_prefix('"') {
            None => value.split_at(value.find(';').unwrap_or(value.len())),
            Some(quoted) => {
                let mut is_escaped = false;
                let end = quoted.find(|c| {
                    let is_end = c == '"' && !is_escaped;
                    is_escaped = c == '\\' && !is_escaped;
                    is_end
                });
                quoted.split_at(end.unwrap_or(quoted.len()))
            }
        };
        found.push((name.trim().to_owned(), value.trim_end().to_owned()));
        rest = behind;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Head, Splitter, Token, read_head};

    const FORM: &[u8] = b"--b\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"m\"\r\nX: y\r\n\r\n{}\r\n--b\r\n\
        content-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\na\r\n--\r\n\xff\r\n--b  \r\n\r\n\r\n--b--\r\nrest";

    /// Tokens, with data that belongs together put together.
    fn tokens(pieces: &[&[u8]]) -> Vec<(Token, Vec<u8>)> {
        let mut splitter = Splitter::of("multipart/form-data; boundary=b").unwrap();
        let mut found: Vec<(Token, Vec<u8>)> = Vec::new();
        for piece in pieces {
            splitter.push(piece);
            while let Some(token) = splitter.next().unwrap() {
                match (token, found.last_mut()) {
                    (Token::Data(data), Some((_, all))) => all.extend_from_slice(&data),
                    (token, _) => found.push((token, Vec::new())),
                }
            }
        }
        found
    }

    #[test]
    fn a_form_is_the_same_wherever_its_bytes_are_cut() {
        let head = |name: &str, has_file_name| Token::Head(Head { name: name.to_owned(), has_file_name });
        let expected = vec![
            (head("metadata", true), b"{}".to_vec()),
            (Token::EndOfPart, Vec::new()),
            (head("file", true), b"a\r\n--\r\n\xff".to_vec()),
            (Token::EndOfPart, Vec::new()),
            (head("", false), Vec::new()),
            (Token::EndOfPart, Vec::new()),
            (Token::End, Vec::new()),
        ];
        for at in 0..=FORM.len() {
            assert_eq!(tokens(&[&FORM[..at], &FORM[at..]]), expected, "cut at {at}");
        }
        let bytes: Vec<&[u8]> = FORM.chunks(1).collect();
        assert_eq!(tokens(&bytes), expected);
    }

    #[test]
    fn a_file_name_is_no_parameter_whatever_it_holds() {
        let head = "Content-Disposition: form-data; name=file; filename=\"x; name=\\\"metadata; name=b\"; a=b\r\n";
        assert_eq!(read_head(head.as_bytes()), Head { name: "file".to_owned(), has_file_name: true });
    }

    #[test]
    fn a_form_without_a_boundary_or_with_an_endless_head_is_refused() {
        assert!(Splitter::of("multipart/form-data").is_none());
        assert!(Splitter::of("multipart/form-data; boundary=\"\"").is_none());
        let mut splitter = Splitter::of("multipart/form-data; boundary=\"b\"; x=y").unwrap();
        splitter.push(b"--b\r\n");
        splitter.push(&vec![b'x'; 20_000]);
        assert!(splitter.next().is_err());
    }
}
