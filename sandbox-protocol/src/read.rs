//! Reading frames.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::{
    CloseReason, Violation,
    frame::{Frame, FrameKind, Header},
    limits::HEADER_BYTES,
};

/// Small frames share a read of this size. The rest of a large payload is read into its own buffer, so that a small
/// frame that is kept never holds a large buffer alive.
const READ_BYTES: usize = 16 * 1024;

/// Reads frames from a byte stream. Holds at most one frame and a small buffer.
#[derive(Debug)]
pub struct FrameReader<R> {
    io: R,
    buffer: BytesMut,
    idle_limit: Duration,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads from `io`, which is lost when nothing arrives for `idle_limit`.
    pub fn new(io: R, idle_limit: Duration) -> Self {
        Self { io, buffer: BytesMut::with_capacity(READ_BYTES), idle_limit }
    }

    pub(crate) fn set_idle_limit(&mut self, idle_limit: Duration) {
        self.idle_limit = idle_limit;
    }

    /// The next frame of a known kind; none at an end between two frames. NOT CANCEL-SAFE: a dropped call may have
    /// taken half a frame.
    ///
    /// # Errors
    /// When the transport fails, is silent, or ends within a frame; when a frame is malformed.
    pub async fn next(&mut self) -> Result<Option<Frame>, CloseReason> {
        self.read_frame(None).await
    }

    /// As [`FrameReader::next`], but anything else than these kinds is refused before its payload is read, unknown
    /// kinds among them: for a peer that has not shown its token.
    pub(crate) async fn next_of(&mut self, is_expected: fn(FrameKind) -> bool) -> Result<Option<Frame>, CloseReason> {
        self.read_frame(Some(is_expected)).await
    }

    async fn read_frame(&mut self, is_expected: Option<fn(FrameKind) -> bool>) -> Result<Option<Frame>, CloseReason> {
        loop {
            while self.buffer.len() < HEADER_BYTES {
                if self.fill().await? == 0 {
                    return if self.buffer.is_empty() { Ok(None) } else { Err(Violation::Truncated.into()) };
                }
            }
            let mut header = [0; HEADER_BYTES];
            self.buffer.copy_to_slice(&mut header);
            let header = Header::decode(&header).map_err(|violation| match is_expected {
                Some(_) => Violation::NotHello,
                None => violation,
            })?;
            if is_expected.is_some_and(|is_expected| !header.kind.is_some_and(is_expected)) {
                return Err(Violation::NotHello.into());
            }
            match header.kind {
                Some(kind) => {
                    let payload = self.payload(header.length).await?;
                    return Ok(Some(header.into_frame(kind, payload)));
                }
                None => self.skip(header.length).await?,
            }
        }
    }

    async fn payload(&mut self, length: usize) -> Result<Bytes, CloseReason> {
        if self.buffer.len() >= length {
            // Copied: a slice would keep the whole buffer alive for as long as the payload is.
            let payload = Bytes::copy_from_slice(&self.buffer[..length]);
            self.buffer.advance(length);
            return Ok(payload);
        }
        let mut payload = BytesMut::with_capacity(length);
        payload.put(self.buffer.split());
        while payload.len() < length {
            let missing = length - payload.len();
            let mut room = (&mut payload).limit(missing);
            let read = self.io.read_buf(&mut room);
            if timed(self.idle_limit, read).await? == 0 {
                return Err(Violation::Truncated.into());
            }
        }
        Ok(payload.freeze())
    }

    async fn skip(&mut self, mut length: usize) -> Result<(), CloseReason> {
        loop {
            let here = length.min(self.buffer.len());
            self.buffer.advance(here);
            length -= here;
            if length == 0 {
                return Ok(());
            }
            if self.fill().await? == 0 {
                return Err(Violation::Truncated.into());
            }
        }
    }

    async fn fill(&mut self) -> Result<usize, CloseReason> {
        self.buffer.reserve(READ_BYTES - self.buffer.len().min(READ_BYTES));
        let mut room = (&mut self.buffer).limit(READ_BYTES);
        timed(self.idle_limit, self.io.read_buf(&mut room)).await
    }
}

/// A read that was ready wins over a limit that has passed: after a freeze of this process both are.
async fn timed(limit: Duration, read: impl Future<Output = std::io::Result<usize>>) -> Result<usize, CloseReason> {
    match tokio::time::timeout(limit, read).await {
        Ok(Ok(count)) => Ok(count),
        Ok(Err(error)) => Err(CloseReason::transport(&error)),
        Err(_) => Err(CloseReason::idle(limit)),
    }
}
