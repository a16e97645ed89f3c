use std::collections::VecDeque;

use bytes::Bytes;

use super::{ExecEvent, ExecExit, SandboxExecResult};

/// How much of each output stream is kept by default: 16 MiB.
pub const DEFAULT_CAPTURE_BYTES: usize = 16 * 1024 * 1024;

/// How much output of a command is kept in memory, in bytes for each stream. The first and the last half are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureLimits {
    /// For standard output.
    pub stdout_bytes: usize,
    /// For standard error.
    pub stderr_bytes: usize,
}

impl CaptureLimits {
    /// The same limit for both streams.
    pub const fn each(bytes: usize) -> Self {
        Self { stdout_bytes: bytes, stderr_bytes: bytes }
    }
}

impl Default for CaptureLimits {
    fn default() -> Self {
        Self::each(DEFAULT_CAPTURE_BYTES)
    }
}

/// Keeps the head and the tail of a stream within a limit, and counts everything.
struct Capture {
    head_limit: usize,
    tail_limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Capture {
    fn new(limit: usize) -> Self {
        let head_limit = limit - limit / 2;
        Self { head_limit, tail_limit: limit / 2, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    fn push(&mut self, bytes: &Bytes) {
        self.total += bytes.len() as u64;
        let (head, mut rest) = bytes.split_at(bytes.len().min(self.head_limit - self.head.len()));
        self.head.extend_from_slice(head);
        if rest.len() > self.tail_limit {
            rest = &rest[rest.len() - self.tail_limit..];
        }
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// Counts what cannot be kept.
    fn miss(&mut self, bytes: u64) {
        self.total = self.total.saturating_add(bytes);
    }

    fn finish(mut self) -> (Vec<u8>, u64, bool) {
        let truncated = self.total > (self.head.len() + self.tail.len()) as u64;
        let (front, back) = self.tail.as_slices();
        self.head.extend_from_slice(front);
        self.head.extend_from_slice(back);
        (self.head, self.total, truncated)
    }
}

/// Turns the events of a command into its result.
pub struct ExecCollector {
    stdout: Capture,
    stderr: Capture,
}

impl ExecCollector {
    /// One that keeps so much.
    pub fn new(limits: CaptureLimits) -> Self {
        Self { stdout: Capture::new(limits.stdout_bytes), stderr: Capture::new(limits.stderr_bytes) }
    }

    /// Takes one event; the last one gives the result.
    pub fn push(&mut self, event: ExecEvent) -> Option<SandboxExecResult> {
        match event {
            ExecEvent::Stdout(bytes) => self.stdout.push(&bytes),
            ExecEvent::Stderr(bytes) => self.stderr.push(&bytes),
            ExecEvent::Gap { stdout_bytes, stderr_bytes } => {
                self.stdout.miss(stdout_bytes);
                self.stderr.miss(stderr_bytes);
            }
            ExecEvent::Exit(exit) => return Some(self.finish(exit)),
        }
        None
    }

    /// The result of a command that ended like this. What was kept is in it, and no longer here.
    pub fn finish(&mut self, exit: ExecExit) -> SandboxExecResult {
        let (stdout, stdout_bytes, stdout_truncated) = std::mem::replace(&mut self.stdout, Capture::new(0)).finish();
        let (stderr, stderr_bytes, stderr_truncated) = std::mem::replace(&mut self.stderr, Capture::new(0)).finish();
        SandboxExecResult { stdout, stderr, stdout_bytes, stderr_bytes, stdout_truncated, stderr_truncated, exit }
    }
}

impl std::fmt::Debug for ExecCollector {
    // Output is never shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExecCollector({} + {} bytes)", self.stdout.total, self.stderr.total)
    }
}

/// Decodes a stream of UTF-8 chunk by chunk: a character that straddles two chunks stays whole.
#[derive(Debug, Default)]
pub struct TextDecoder {
    pending: Vec<u8>,
}

impl TextDecoder {
    /// The text that is complete after this chunk. What is not UTF-8 becomes a replacement character.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let keep = incomplete_suffix(&self.pending);
        let rest = self.pending.split_off(self.pending.len() - keep);
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending = rest;
        text
    }

    /// What is left at the end of the stream: nothing, or one replacement character.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// How many bytes at the end are the start of a character that may still be completed.
fn incomplete_suffix(bytes: &[u8]) -> usize {
    for length in 1..=bytes.len().min(3) {
        let tail = &bytes[bytes.len() - length..];
        if tail[0] & 0xc0 == 0x80 {
            continue;
        }
        return match std::str::from_utf8(tail) {
            Err(error) if error.error_len().is_none() => length,
            _ => 0,
        };
    }
    0
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{Capture, CaptureLimits, ExecCollector, TextDecoder};
    use crate::{ExecEvent, ExecExit, ExecOutcome, SessionEvent};

    #[test]
    fn head_and_tail_are_kept_whatever_the_chunks_are() {
        let all: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        for chunk in [1, 7, 64, 999, 20_000] {
            for limit in [0, 1, 2, 100, 9_999, 10_000, 50_000] {
                let mut capture = Capture::new(limit);
                for part in all.chunks(chunk) {
                    capture.push(&Bytes::copy_from_slice(part));
                }
                let (kept, total, truncated) = capture.finish();
                assert_eq!(total, 10_000);
                assert_eq!(truncated, limit < 10_000);
                let expected = if limit >= 10_000 {
                    all.clone()
                } else {
                    let head = limit - limit / 2;
                    [&all[..head], &all[10_000 - limit / 2..]].concat()
                };
                assert!(kept == expected, "chunk {chunk} limit {limit}");
            }
        }
    }

    #[test]
    fn a_gap_counts_and_is_told_as_truncated() {
        let mut collector = ExecCollector::new(CaptureLimits::default());
        for event in [
            ExecEvent::Stdout("head".into()),
            ExecEvent::Gap { stdout_bytes: 90, stderr_bytes: 0 },
            ExecEvent::Stdout("tail".into()),
        ] {
            let (channel, data) = event.clone().into_frame();
            let event = ExecEvent::from_frame(channel, data).unwrap().unwrap();
            assert!(collector.push(event).is_none());
        }
        let result = collector.push(ExecEvent::Exit(ExecExit::new(ExecOutcome::Exited(0)))).unwrap();
        assert_eq!((result.stdout.as_ref(), result.stdout_bytes), (&b"headtail"[..], 98));
        assert!(result.stdout_truncated && !result.stderr_truncated);
    }

    #[test]
    fn a_character_split_over_chunks_stays_whole() {
        let text = "aé€😀z";
        for cut in 0..=text.len() {
            let mut decoder = TextDecoder::default();
            let mut got = decoder.push(&text.as_bytes()[..cut]);
            got += &decoder.push(&text.as_bytes()[cut..]);
            got += &decoder.finish();
            assert_eq!(got, text, "cut at {cut}");
        }
        let mut decoder = TextDecoder::default();
        assert_eq!(decoder.push(b"\xe2"), "");
        assert_eq!(decoder.finish(), "\u{fffd}");
        let mut decoder = TextDecoder::default();
        assert_eq!(decoder.push(b"a\xffb"), "a\u{fffd}b");
    }
}
