use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    task::{Context, Poll, Waker},
};

use sandbox_core::{ErrorKind, ExecExit, PtyEvent, PtyStream, Result, SandboxError, bytes::Bytes};
use tokio::sync::watch;

/// How much output of one stream waits for its reader while something else is waited for. What is older then makes
/// room, and is told as a gap.
pub const PTY_BUFFER_BYTES: usize = 16 * 1024 * 1024;

/// A piece of a session's output.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PtyChunk {
    /// Bytes as the program wrote them (a terminal turns `\n` into `\r\n`).
    Data(Bytes),
    /// So many bytes are missing here: they are older than what is kept.
    Gap(u64),
}

impl PtyChunk {
    /// The bytes; none for a gap.
    pub fn data(&self) -> Option<&Bytes> {
        match self {
            Self::Data(bytes) => Some(bytes),
            Self::Gap(_) => None,
        }
    }
}

impl fmt::Debug for PtyChunk {
    // Output is never shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(bytes) => write!(f, "Data({} bytes)", bytes.len()),
            Self::Gap(bytes) => write!(f, "Gap({bytes} bytes)"),
        }
    }
}

/// Output of one stream that nobody has read yet.
#[derive(Default)]
pub(super) struct Waiting {
    chunks: VecDeque<PtyChunk>,
    bytes: usize,
    /// Bytes in front of them that were given up.
    lost: u64,
}

impl Waiting {
    fn push(&mut self, chunk: PtyChunk) {
        match &chunk {
            PtyChunk::Data(bytes) if bytes.is_empty() => return,
            PtyChunk::Data(bytes) => self.bytes += bytes.len(),
            PtyChunk::Gap(_) => {}
        }
        self.chunks.push_back(chunk);
        while self.bytes > PTY_BUFFER_BYTES {
            match self.chunks.pop_front() {
                Some(PtyChunk::Data(oldest)) => {
                    self.bytes -= oldest.len();
                    self.lost += oldest.len() as u64;
                }
                Some(PtyChunk::Gap(bytes)) => self.lost += bytes,
                None => break,
            }
        }
    }

    pub(super) fn pop(&mut self) -> Option<PtyChunk> {
        if self.lost > 0 {
            return Some(PtyChunk::Gap(std::mem::take(&mut self.lost)));
        }
        let chunk = self.chunks.pop_front()?;
        self.bytes -= chunk.data().map_or(0, Bytes::len);
        Some(chunk)
    }
}

/// What happens in a session.
pub(super) enum Happening {
    Output(Bytes),
    Stderr(Bytes),
    Gap(u64),
    Exit,
}

/// The reading side of a session. Whoever waits for something reads on for everybody.
pub(super) struct Source {
    /// None while the session is detached.
    pub(super) stream: Option<PtyStream>,
    /// Whether dropping the stream ends the session.
    pub(super) ends_on_drop: bool,
    pub(super) output: Waiting,
    pub(super) stderr: Waiting,
    /// Offset behind the last byte that came; none where it is not known.
    pub(super) offset: Option<u64>,
    pub(super) exit: Option<ExecExit>,
    broken: Option<(ErrorKind, String)>,
    closing: watch::Receiver<bool>,
}

impl Source {
    pub(super) fn new(
        stream: PtyStream,
        ends_on_drop: bool,
        offset: Option<u64>,
        closing: watch::Receiver<bool>,
    ) -> Self {
        Self {
            stream: Some(stream),
            ends_on_drop,
            output: Waiting::default(),
            stderr: Waiting::default(),
            offset,
            exit: None,
            broken: None,
            closing,
        }
    }

    /// Whether nothing more can be run in it.
    pub(super) fn is_over(&self) -> bool {
        self.exit.is_some() || self.broken.is_some() || *self.closing.borrow()
    }

    /// Goes on with another stream of the same session, from that offset on.
    pub(super) fn take_up(&mut self, stream: PtyStream, since: Option<u64>) {
        self.stream = Some(stream);
        self.ends_on_drop = false;
        self.broken = None;
        self.offset = since;
    }

    /// Forgets what nobody has read.
    pub(super) fn discard(&mut self) {
        (self.output, self.stderr) = (Waiting::default(), Waiting::default());
    }

    /// The next thing that happens. After the exit that again and again. Dropping the future loses nothing.
    ///
    /// # Errors
    /// `InvalidState` when it is closed or detached; `Pty` when it broke for another reason than its program's end.
    pub(super) async fn happening(&mut self) -> Result<Happening> {
        if self.exit.is_some() {
            return Ok(Happening::Exit);
        }
        if let Some((kind, message)) = &self.broken {
            return Err(broken(*kind, message));
        }
        if *self.closing.borrow() {
            return Err(closed());
        }
        let Some(stream) = &mut self.stream else {
            return Err(SandboxError::invalid_state("the terminal session is detached")
                .with_help("take it up again with reattach()"));
        };
        let event = tokio::select! {
            event = stream.next() => event,
            _ = self.closing.wait_for(|closing| *closing) => return Err(closed()),
        };
        let happening = match event {
            Ok(Some(PtyEvent::Output(bytes))) => Happening::Output(bytes),
            Ok(Some(PtyEvent::Stderr(bytes))) => Happening::Stderr(bytes),
            Ok(Some(PtyEvent::Gap(bytes))) => Happening::Gap(bytes),
            Ok(Some(PtyEvent::Exit(exit))) => {
                self.exit = Some(exit);
                self.stream = None;
                return Ok(Happening::Exit);
            }
            // Events of later versions.
            Ok(Some(_)) => Happening::Output(Bytes::new()),
            Ok(None) => return Err(self.breaks(ErrorKind::Lost, "it ended without an exit".to_owned())),
            Err(error) => return Err(self.breaks(error.kind(), error.message().to_owned())),
        };
        let length = match &happening {
            Happening::Output(bytes) | Happening::Stderr(bytes) => bytes.len() as u64,
            Happening::Gap(bytes) => *bytes,
            Happening::Exit => 0,
        };
        self.offset = self.offset.map(|offset| offset + length);
        Ok(happening)
    }

    /// Waits for the next thing and keeps it for its reader.
    pub(super) async fn advance(&mut self) -> Result<()> {
        match self.happening().await? {
            Happening::Output(bytes) => self.output.push(PtyChunk::Data(bytes)),
            Happening::Stderr(bytes) => self.stderr.push(PtyChunk::Data(bytes)),
            Happening::Gap(bytes) => self.output.push(PtyChunk::Gap(bytes)),
            Happening::Exit => {}
        }
        Ok(())
    }

    /// Keeps what is there already, without waiting.
    pub(super) fn look(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        while self.exit.is_none() {
            let advance = std::pin::pin!(self.advance());
            match advance.poll(&mut context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
    }

    fn breaks(&mut self, kind: ErrorKind, message: String) -> SandboxError {
        self.stream = None;
        let error = broken(kind, &message);
        self.broken = Some((kind, message));
        error
    }
}

fn broken(kind: ErrorKind, message: &str) -> SandboxError {
    SandboxError::pty(format!("the terminal session broke ({kind}): {message}"))
}

pub(super) fn closed() -> SandboxError {
    SandboxError::invalid_state("the terminal session is closed")
}

#[cfg(test)]
mod tests {
    use sandbox_core::bytes::Bytes;

    use super::{PTY_BUFFER_BYTES, PtyChunk, Waiting};

    #[test]
    fn what_no_longer_fits_is_told_as_a_gap_of_its_size_before_the_rest() {
        let mut waiting = Waiting::default();
        let piece = vec![7u8; 1024 * 1024];
        for _ in 0..20 {
            waiting.push(PtyChunk::Data(Bytes::from(piece.clone())));
        }
        assert!(waiting.bytes <= PTY_BUFFER_BYTES);
        assert_eq!(waiting.pop(), Some(PtyChunk::Gap(4 * 1024 * 1024)));
        let mut rest = 0;
        while let Some(PtyChunk::Data(bytes)) = waiting.pop() {
            rest += bytes.len();
        }
        assert_eq!((rest, waiting.bytes), (PTY_BUFFER_BYTES, 0));
    }
}
