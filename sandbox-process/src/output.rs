//! The two output pipes of a command.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bytes::{Bytes, BytesMut};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// Most bytes in one output event: the capacity of a pipe.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// The first buffer, which is enough for most commands. Small outputs share one.
const FIRST_BYTES: usize = 16 * 1024;

/// Which stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// What one attempt to read gave.
pub(crate) enum Chunk {
    Data(Stream, Bytes),
    End,
}

/// The host's ends of the pipes.
pub(crate) struct Output {
    stdout: Pipe,
    stderr: Pipe,
    buffer: BytesMut,
    /// How large the next buffer is to be. A new one is made when less than a quarter of that is left of the old one.
    buffer_bytes: usize,
}

type Pipe = Option<AsyncFd<OwnedFd>>;

impl Output {
    /// Takes two non-blocking read ends.
    pub(crate) fn new(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Output> {
        let register = |fd: OwnedFd| sys::watch(fd, Interest::READABLE);
        Ok(Output::over(Some(register(stdout)?), Some(register(stderr)?)))
    }

    /// Takes our end of a terminal, non-blocking.
    pub(crate) fn terminal(master: OwnedFd) -> io::Result<Output> {
        Ok(Output::over(Some(sys::watch(master, Interest::READABLE)?), None))
    }

    fn over(stdout: Pipe, stderr: Pipe) -> Output {
        Output { stdout, stderr, buffer: BytesMut::new(), buffer_bytes: FIRST_BYTES }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.stdout.is_some() || self.stderr.is_some()
    }

    /// Bytes in the pipes right now.
    pub(crate) fn waiting(&self) -> Waiting {
        let count = |pipe: &Pipe| pipe.as_ref().map_or(0, |fd| sys::bytes_waiting(fd.as_fd()));
        Waiting { stdout: count(&self.stdout), stderr: count(&self.stderr) }
    }

    /// The next chunk of either stream, or the end of one. Never ends when both are closed. Cancel-safe: what is
    /// read is returned in the same poll.
    pub(crate) async fn next(&mut self) -> Chunk {
        loop {
            let stream = tokio::select! {
                () = readable(&self.stdout) => Stream::Stdout,
                () = readable(&self.stderr) => Stream::Stderr,
            };
            if let Some(chunk) = self.read(stream, true) {
                return chunk;
            }
        }
    }

    /// Reads bytes that were counted by [`Output::waiting`], without waiting.
    pub(crate) fn next_waiting(&mut self, waiting: &mut Waiting) -> Option<Chunk> {
        loop {
            let (stream, left) = match (waiting.stdout, waiting.stderr) {
                (1.., _) => (Stream::Stdout, &mut waiting.stdout),
                (0, 1..) => (Stream::Stderr, &mut waiting.stderr),
                (0, 0) => return None,
            };
            match self.read(stream, false) {
                Some(Chunk::Data(stream, bytes)) => {
                    *left = left.saturating_sub(bytes.len());
                    return Some(Chunk::Data(stream, bytes));
                }
                // Someone else has read them, or the pipe is broken.
                Some(Chunk::End) | None => *left = 0,
            }
        }
    }

    /// Notices pipes that are at their end, without waiting and without taking bytes.
    pub(crate) fn close_ended(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if self.pipe(stream).as_ref().is_some_and(|fd| sys::at_end(fd.as_fd())) {
                *self.pipe(stream) = None;
            }
        }
    }

    fn pipe(&mut self, stream: Stream) -> &mut Pipe {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// `None`: nothing there. `through_readiness` keeps the runtime's idea of readiness right; without it the
    /// pipe is read whatever the runtime thinks.
    fn read(&mut self, stream: Stream, through_readiness: bool) -> Option<Chunk> {
        if self.buffer.capacity() < self.buffer_bytes / 4 {
            self.buffer = BytesMut::with_capacity(self.buffer_bytes);
        }
        let pipe = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let fd = pipe.as_ref()?;
        loop {
            let room = self.buffer.spare_capacity_mut();
            let room_bytes = room.len().min(CHUNK_BYTES);
            let mut read = |fd: &OwnedFd| sys::read(fd.as_fd(), &mut room[..room_bytes]);
            let result = if through_readiness { fd.try_io(Interest::READABLE, &mut read) } else { read(fd.get_ref()) };
            match result {
                Ok(0) => break,
                Ok(length) => {
                    if length == room_bytes {
                        // There is more than it takes.
                        self.buffer_bytes = CHUNK_BYTES;
                    }
                    // SAFETY: `read` has initialised this many bytes of the spare capacity, and the buffer is empty.
                    unsafe { self.buffer.set_len(length) };
                    return Some(Chunk::Data(stream, self.buffer.split().freeze()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => break,
            }
        }
        *pipe = None;
        Some(Chunk::End)
    }
}

async fn readable(pipe: &Pipe) {
    match pipe {
        // An error means that the runtime is shutting down; the read then decides.
        Some(fd) => drop(fd.readable().await.map(|mut guard| guard.retain_ready())),
        None => std::future::pending().await,
    }
}

/// Bytes that were in the pipes at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    stdout: usize,
    stderr: usize,
}
