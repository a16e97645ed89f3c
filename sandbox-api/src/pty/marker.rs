//! How the output of one command is found in the output of a shell that runs many.
//!
//! The command is sent as data for `printf`, so that nothing in it can end the lines around it: a quote that is not
//! closed is an error of that command and of nothing else. Its output lies between two markers with a token that nobody
//! can guess. The typed text holds each marker in two halves only, so its echo never matches.

use std::{fmt::Write as _, fs::File, io::Read};

use sandbox_core::{Result, SandboxError, bytes::Bytes};

/// Characters on one typed line. A terminal takes 4095 in its line mode.
const LINE_CHARS: usize = 1024;

/// The longest command that is typed. What is longer belongs into a file.
const MAX_COMMAND_BYTES: usize = 1024 * 1024;

/// What becomes of the command's standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stderr {
    /// It goes where the shell's goes.
    Inherited,
    /// The same, between a marker of its own before it and one behind it.
    Marked,
    /// It goes where standard output goes.
    Merged,
}

/// The token of one run.
pub(crate) struct Marker {
    halves: [String; 2],
}

impl Marker {
    /// A token that was never used.
    pub(crate) fn new() -> Result<Self> {
        let mut random = [0u8; 16];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(|error| SandboxError::io("/dev/urandom", error))?;
        let hex = random.iter().fold(String::new(), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        let (first, second) = hex.split_at(16);
        Ok(Self { halves: [format!("<{first}"), second.to_owned()] })
    }

    /// Its two halves, as they may be typed.
    pub(crate) fn halves(&self) -> [&str; 2] {
        [&self.halves[0], &self.halves[1]]
    }

    fn text(&self, end: &str) -> Vec<u8> {
        [&self.halves[0], &self.halves[1], end].concat().into_bytes()
    }

    /// Finds the command's standard output.
    pub(super) fn scanner(&self) -> Scanner {
        Scanner::new(self.text(">"), self.text(":"))
    }

    /// Finds the command's standard error between its marks: a shell's prompt lies before them.
    pub(super) fn marked_stderr_scanner(&self) -> Scanner {
        Scanner::new(self.text("|"), self.text(":"))
    }

    /// Finds the end of the command's standard error where nothing else writes to it.
    pub(crate) fn stderr_scanner(&self) -> Scanner {
        let mut scanner = Scanner::new(self.text(">"), self.text(":"));
        scanner.state = State::Content;
        scanner
    }

    /// What is typed to run a command, line by line.
    pub(super) fn typed(&self, command: &[u8], stderr: Stderr) -> Result<Vec<Bytes>> {
        if command.contains(&0) {
            return Err(SandboxError::invalid_input("command", "must not contain a NUL byte"));
        }
        if command.len() > MAX_COMMAND_BYTES {
            let message = format!("has {} bytes; a session takes at most {MAX_COMMAND_BYTES}", command.len());
            return Err(SandboxError::invalid_input("command", message)
                .with_help("upload it as a file and run that, or use exec()"));
        }
        let encoded = encode(command);
        let mut lines = Vec::new();
        let text = if encoded.len() <= LINE_CHARS {
            format!("'{encoded}'")
        } else {
            lines.push(Bytes::from_static(b" :; __sandbox_text=\n"));
            for chunk in encoded.as_bytes().chunks(LINE_CHARS) {
                // Encoded text is ASCII.
                let chunk = String::from_utf8_lossy(chunk);
                lines.push(Bytes::from(format!(" __sandbox_text=\"$__sandbox_text\"'{chunk}'\n")));
            }
            "\"$__sandbox_text\"".to_owned()
        };
        let [first, second] = &self.halves;
        // The mark before standard error is another one, and comes before that of standard output, so that it is nobody's
        // output in a shell whose streams are one.
        let (merge, before, behind) = match stderr {
            Stderr::Inherited => ("", String::new(), String::new()),
            Stderr::Merged => (" 2>&1", String::new(), String::new()),
            Stderr::Marked => (
                "",
                format!("printf '%s%s|\\n' '{first}' '{second}' >&2; "),
                format!(" printf '%s%s:0\\n' '{first}' '{second}' >&2;"),
            ),
        };
        // `command` keeps a syntax error in the text from ending the line, and the shell, in every shell. After a quote
        // that was not closed bash does not take a brace as the first word.
        lines.push(Bytes::from(format!(
            " :; {{ {before}printf '%s%s>\\n' '{first}' '{second}'; command eval \"$(printf %b {text})\" </dev/null{merge}; \
             printf '%s%s:%d\\n' '{first}' '{second}' \"$?\";{behind} }}\n"
        )));
        Ok(lines)
    }
}

/// The text as `printf %b` takes it, out of characters that mean nothing to a terminal, to a line editor, or between
/// single quotes.
fn encode(text: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len() + text.len() / 8);
    for &byte in text {
        match byte {
            b'\\' | b'\'' | b'!' | 0..=0x1f | 0x7f.. => {
                // Writing to a String cannot fail.
                let _ = write!(encoded, "\\0{byte:03o}");
            }
            plain => encoded.push(char::from(plain)),
        }
    }
    encoded
}

/// Finds what lies between the markers, however it is cut into pieces.
pub(crate) struct Scanner {
    start: Vec<u8>,
    end: Vec<u8>,
    state: State,
    held: Vec<u8>,
}

enum State {
    Before,
    StartLine,
    Content,
    Status,
}

impl Scanner {
    fn new(start: Vec<u8>, end: Vec<u8>) -> Self {
        Self { start, end, state: State::Before, held: Vec::new() }
    }

    /// Whether the command has begun.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.state, State::Before)
    }

    /// Takes the next piece. `output` gets what is the command's own; the result is its status, once it is there.
    ///
    /// # Errors
    /// `Pty` when the end came without a beginning, or with something that is no number.
    pub(crate) fn push(&mut self, piece: &[u8], output: &mut impl FnMut(&[u8])) -> Result<Option<i32>> {
        self.held.extend_from_slice(piece);
        loop {
            match self.state {
                State::Before => {
                    let Some(at) = find(&self.held, &self.start) else {
                        if find(&self.held, &self.end).is_some() {
                            return Err(SandboxError::pty("the beginning of the command's output is no longer kept"));
                        }
                        self.keep_last(self.start.len() - 1, &mut |_| {});
                        return Ok(None);
                    };
                    self.held.drain(..at + self.start.len());
                    self.state = State::StartLine;
                }
                State::StartLine => {
                    let Some(at) = find(&self.held, b"\n") else { return Ok(None) };
                    self.held.drain(..=at);
                    self.state = State::Content;
                }
                State::Content => {
                    let Some(at) = find(&self.held, &self.end) else {
                        self.keep_last(partial(&self.held, &self.end), output);
                        return Ok(None);
                    };
                    output(&self.held[..at]);
                    self.held.drain(..at + self.end.len());
                    self.state = State::Status;
                }
                State::Status => {
                    let Some(at) = find(&self.held, b"\n") else { return Ok(None) };
                    let digits = String::from_utf8_lossy(&self.held[..at]);
                    return digits.trim_end_matches('\r').parse().map(Some).map_err(|_| {
                        SandboxError::pty("the shell of the session gave something that is no exit status")
                    });
                }
            }
        }
    }

    fn keep_last(&mut self, keep: usize, output: &mut impl FnMut(&[u8])) {
        let done = self.held.len().saturating_sub(keep);
        output(&self.held[..done]);
        self.held.drain(..done);
    }
}

/// How many bytes at the end may be the beginning of the needle.
fn partial(held: &[u8], needle: &[u8]) -> usize {
    let most = held.len().min(needle.len() - 1);
    (1..=most).rev().find(|length| held.ends_with(&needle[..*length])).unwrap_or(0)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = haystack[from..].iter().position(|byte| *byte == needle[0]) {
        if haystack[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    use super::{Marker, Stderr};

    fn joined(lines: &[sandbox_core::bytes::Bytes]) -> Vec<u8> {
        lines.concat()
    }

    #[test]
    fn the_typed_text_never_holds_a_marker_and_no_line_is_too_long() {
        let long = "x'\\!\n\u{e9}".repeat(20_000);
        for command in ["", "echo hi", "echo 'a", "}", long.as_str()] {
            let marker = Marker::new().unwrap();
            let lines = marker.typed(command.as_bytes(), Stderr::Marked).unwrap();
            let typed = joined(&lines);
            for end in [">", ":"] {
                assert!(super::find(&typed, &marker.text(end)).is_none());
            }
            assert!(
                lines.iter().all(|line| line.len() < 4095 && line.iter().filter(|byte| **byte == b'\n').count() == 1)
            );
        }
    }

    #[test]
    fn a_prompt_on_standard_error_is_not_the_commands_own() {
        let marker = Marker::new().unwrap();
        let (mut scanner, mut output) = (marker.marked_stderr_scanner(), Vec::new());
        let whole = [&b"# "[..], &marker.text("|"), b"\nerr\n", &marker.text(":"), b"0\n# "].concat();
        let ended = whole
            .chunks(3)
            .any(|piece| scanner.push(piece, &mut |bytes| output.extend_from_slice(bytes)).unwrap().is_some());
        assert!(ended);
        assert_eq!(output, b"err\n");
    }

    #[test]
    fn what_lies_between_the_markers_is_found_however_it_is_cut() {
        let marker = Marker::new().unwrap();
        let [first, second] = &marker.halves;
        let whole = format!(
            "$ echo '{first}' '{second}'\r\n{first}{second}>\r\n<out {first}{second}put\r\n{first}{second}:17\r\n$ "
        );
        for size in 1..whole.len() {
            let (mut scanner, mut output, mut status) = (marker.scanner(), Vec::new(), None);
            for piece in whole.as_bytes().chunks(size) {
                status = status.or(scanner.push(piece, &mut |bytes| output.extend_from_slice(bytes)).unwrap());
                if status.is_some() {
                    break;
                }
            }
            assert_eq!(
                (String::from_utf8(output).unwrap(), status),
                (format!("<out {first}{second}put\r\n"), Some(17))
            );
        }
    }

    #[test]
    fn an_end_without_a_beginning_and_a_status_that_is_no_number_are_errors() {
        let marker = Marker::new().unwrap();
        let ignore = &mut |_: &[u8]| {};
        marker.scanner().push(&[marker.text(":"), b"0\n".to_vec()].concat(), ignore).unwrap_err();
        let bad = [marker.text(">"), b"\n".to_vec(), marker.text(":"), b"zero\n".to_vec()].concat();
        marker.scanner().push(&bad, ignore).unwrap_err();
    }

    #[test]
    fn a10_every_text_runs_as_it_is_in_every_shell_and_ends_with_its_status() {
        let cases: [(&str, &str, i32); 12] = [
            ("printf 'no newline'", "no newline", 0),
            ("echo \"it's 100% \\\"fine\\\"!\"", "it's 100% \"fine\"!\n", 0),
            ("cat <<'EOF'\na $b\nEOF", "a $b\n", 0),
            ("cat <<'EOF'\na $b\nEOF\n", "a $b\n", 0),
            ("false", "", 1),
            ("(exit 42)", "", 42),
            ("echo 'unclosed", "", 2),
            ("}", "", 2),
            ("echo trailing \\", "trailing \\\n", 0),
            ("echo x # a comment", "x\n", 0),
            ("cat; echo end", "end\n", 0),
            ("printf '\u{e9}\\001\\377' | od -An -tx1 | tr -d ' \\n'", "c3a901ff", 0),
        ];
        for shell in ["sh", "bash"] {
            for (command, output, status) in cases {
                let marker = Marker::new().unwrap();
                let mut child = Command::new(shell)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap();
                child
                    .stdin
                    .take()
                    .unwrap()
                    .write_all(&joined(&marker.typed(command.as_bytes(), Stderr::Marked).unwrap()))
                    .unwrap();
                let done = child.wait_with_output().unwrap();
                let mut found = Vec::new();
                let code = marker.scanner().push(&done.stdout, &mut |bytes| found.extend_from_slice(bytes)).unwrap();
                let shown = format!("{shell}: {command:?}: {done:?}");
                let code = code.unwrap_or_else(|| panic!("no end: {shown}"));
                assert_eq!(String::from_utf8_lossy(&found), output, "{shown}");
                // Shells differ in the status of a syntax error.
                assert!(code == status || status == 2 && code > 0, "{shown}");
                assert!(marker.marked_stderr_scanner().push(&done.stderr, &mut |_| {}).unwrap().is_some(), "{shown}");
            }
        }
    }
}
