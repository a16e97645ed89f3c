//! The receiving half of a stream.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sandbox_core::{Admitted, Result, SandboxError};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    conn::Conn,
    limits::{MAX_EVENT_BYTES, MAX_JSON_BYTES},
    state::{Incoming, IncomingData},
};

/// What arrives on a stream, in order. Taking data gives its credit back.
pub(crate) struct Inbox {
    conn: Arc<Conn>,
    id: u32,
    frames: UnboundedReceiver<Incoming>,
    /// Taken, but not worth a credit frame yet.
    untold: u32,
    is_over: bool,
}

impl Inbox {
    pub(crate) fn new(conn: Arc<Conn>, id: u32, frames: UnboundedReceiver<Incoming>, is_over: bool) -> Self {
        Self { conn, id, frames, untold: 0, is_over }
    }

    /// The reply to OPEN, and whether the stream is over with it.
    pub(crate) async fn accepted(&mut self) -> Result<(Bytes, bool)> {
        match self.frames.recv().await {
            Some(Incoming::Accept { payload, end }) => {
                self.is_over = end;
                Ok((payload, end))
            }
            Some(Incoming::Error(error)) => Err(error),
            Some(Incoming::Data(_)) | None => Err(self.broken()),
        }
    }

    /// The next piece of data; none after the last. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<IncomingData>> {
        if self.is_over {
            return Ok(None);
        }
        let data = match self.frames.recv().await {
            Some(Incoming::Data(data)) => data,
            Some(Incoming::Error(error)) => return Err(error),
            Some(Incoming::Accept { .. }) | None => return Err(self.broken()),
        };
        self.is_over = data.end;
        self.untold += data.held.cost();
        if self.untold >= self.conn.parts.window / 4 && !data.end {
            self.conn.give_credit(self.id, std::mem::take(&mut self.untold));
        }
        Ok(Some(data))
    }

    /// The next whole event: channel and bytes.
    pub(crate) async fn next_event(&mut self) -> Result<Option<(u8, Bytes)>> {
        let Some(mut data) = self.next().await? else { return Ok(None) };
        if !data.more {
            return Ok(Some((data.channel, data.bytes)));
        }
        let mut whole = BytesMut::new();
        loop {
            whole.extend_from_slice(&data.bytes);
            if whole.len() > MAX_EVENT_BYTES {
                return Err(SandboxError::lost("the agent sent an event that is too large", Admitted::Yes));
            }
            if !data.more {
                return Ok(Some((data.channel, whole.freeze())));
            }
            data = self.next().await?.ok_or_else(|| self.broken())?;
        }
    }

    /// Exactly so many bytes from here: a request or reply that did not fit in its frame.
    pub(crate) async fn json_bytes(&mut self, length: u64) -> Result<Bytes> {
        if length > MAX_JSON_BYTES as u64 {
            return Err(SandboxError::exhausted(format!("a message of {length} bytes is too large")));
        }
        let mut json = BytesMut::new();
        while (json.len() as u64) < length {
            let data = self.next().await?.ok_or_else(|| self.broken())?;
            json.extend_from_slice(&data.bytes);
        }
        // Its sender ends a frame where the message ends.
        if json.len() as u64 != length {
            return Err(self.broken());
        }
        Ok(json.freeze())
    }

    fn broken(&self) -> SandboxError {
        match self.conn.reason() {
            Some(reason) => reason.lost(Admitted::Yes),
            None => SandboxError::lost("the stream broke off without an end", Admitted::Yes),
        }
    }
}
