//! Bytes of any length beside a request or a reply.

use std::{fmt, pin::Pin, sync::Arc};

use bytes::{Bytes, BytesMut};
use sandbox_core::{Admitted, Result, SandboxError};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

use crate::{client::CancelOnDrop, inbox::Inbox, limits::MAX_DATA_BYTES};

/// Chunks that a [`Body::channel`] holds before its sender waits.
const CHANNEL_CHUNKS: usize = 4;

/// A stream of bytes with an end: what is read to the end is complete, and what broke off is an error.
///
/// Bytes are moved only as fast as they are read. Dropping a body that was received before its end cancels the call.
pub struct Body {
    source: Source,
}

enum Source {
    Bytes(Bytes),
    Reader(Pin<Box<dyn AsyncRead + Send>>),
    Channel(mpsc::Receiver<Result<Bytes>>, bool),
    Remote { inbox: Inbox, _cancel: Option<Arc<CancelOnDrop>> },
}

/// Feeds a [`Body`]. Dropping it without [`BodySender::finish`] breaks the body off.
#[derive(Debug)]
pub struct BodySender {
    sender: mpsc::Sender<Result<Bytes>>,
}

impl Body {
    /// No bytes.
    pub fn empty() -> Self {
        Self::from_bytes(Bytes::new())
    }

    /// These bytes.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self { source: Source::Bytes(bytes.into()) }
    }

    /// What a reader gives, to its end.
    pub fn from_reader(reader: impl AsyncRead + Send + 'static) -> Self {
        Self { source: Source::Reader(Box::pin(reader)) }
    }

    /// A body that is fed from elsewhere, a few chunks ahead.
    pub fn channel() -> (BodySender, Self) {
        let (sender, receiver) = mpsc::channel(CHANNEL_CHUNKS);
        (BodySender { sender }, Self { source: Source::Channel(receiver, false) })
    }

    pub(crate) fn remote(inbox: Inbox, cancel: Option<Arc<CancelOnDrop>>) -> Self {
        Self { source: Source::Remote { inbox, _cancel: cancel } }
    }

    /// The inbox of a received body.
    pub(crate) fn inbox(&mut self) -> Option<&mut Inbox> {
        match &mut self.source {
            Source::Remote { inbox, .. } => Some(inbox),
            _ => None,
        }
    }

    /// The next chunk, never an empty one; none at the end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// What the source failed with; `Lost` when it broke off.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        match &mut self.source {
            Source::Bytes(bytes) if bytes.is_empty() => Ok(None),
            Source::Bytes(bytes) => Ok(Some(bytes.split_to(bytes.len().min(MAX_DATA_BYTES)))),
            Source::Reader(reader) => {
                let mut chunk = BytesMut::with_capacity(MAX_DATA_BYTES);
                let read = reader.read_buf(&mut chunk).await;
                let count = read.map_err(|error| SandboxError::io("the source of the bytes failed", error))?;
                Ok((count > 0).then(|| chunk.freeze()))
            }
            Source::Channel(_, true) => Ok(None),
            Source::Channel(receiver, is_over) => match receiver.recv().await {
                // The mark of an end.
                Some(Ok(bytes)) if bytes.is_empty() => {
                    *is_over = true;
                    Ok(None)
                }
                Some(result) => result.map(Some),
                None => Err(SandboxError::lost("the source of the bytes broke off", Admitted::Yes)),
            },
            Source::Remote { inbox, .. } => loop {
                match inbox.next().await? {
                    Some(data) if data.bytes.is_empty() => {}
                    Some(data) => return Ok(Some(data.bytes)),
                    None => return Ok(None),
                }
            },
        }
    }

    /// Everything, if it is not more than `limit` bytes.
    ///
    /// # Errors
    /// As [`Body::next`]; `Exhausted` when there is more.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes> {
        let mut whole = BytesMut::new();
        while let Some(bytes) = self.next().await? {
            if whole.len() + bytes.len() > limit {
                return Err(SandboxError::exhausted(format!("there are more than {limit} bytes")));
            }
            whole.extend_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }

    /// Writes everything and flushes. Returns how many bytes there were.
    ///
    /// # Errors
    /// As [`Body::next`]; what the writer failed with.
    pub async fn copy_to(&mut self, writer: &mut (impl AsyncWrite + Unpin + ?Sized)) -> Result<u64> {
        let failed = |error| SandboxError::io("the bytes could not be written", error);
        let mut total = 0;
        while let Some(bytes) = self.next().await? {
            total += bytes.len() as u64;
            writer.write_all(&bytes).await.map_err(failed)?;
        }
        writer.flush().await.map_err(failed)?;
        Ok(total)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

impl BodySender {
    /// Hands over bytes; waits while the reader is behind. False when nobody reads any more.
    pub async fn send(&self, bytes: impl Into<Bytes>) -> bool {
        let bytes = bytes.into();
        bytes.is_empty() || self.sender.send(Ok(bytes)).await.is_ok()
    }

    /// Says that this was everything.
    pub async fn finish(self) {
        let _ = self.sender.send(Ok(Bytes::new())).await;
    }

    /// Breaks the body off with this error.
    pub async fn fail(self, error: SandboxError) {
        let _ = self.sender.send(Err(error)).await;
    }
}
