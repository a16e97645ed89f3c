//! Writing frames.

use std::{io, io::IoSlice, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    time::{Instant, timeout},
};

use crate::{
    CloseCause, CloseReason,
    conn::Conn,
    frame::{Frame, FrameKind},
    limits::LINGER,
};

/// Payloads up to this size are copied next to their header; larger ones are handed over as they are.
const COPY_BYTES: usize = 8 * 1024;

/// How many pieces are handed to the transport at once.
const MAX_SLICES: usize = 64;

/// Writes what waits until the connection ends, and PINGs when it is quiet.
pub(crate) async fn run<W: AsyncWrite + Unpin>(conn: &Conn, mut io: W) {
    let keep_alive = conn.parts.keep_alive;
    let mut pieces = Pieces::default();
    let mut sent_at = Instant::now();
    let mut is_between_frames = true;
    loop {
        let batch = conn.lock().take_batch();
        if conn.reason().is_some() {
            break;
        }
        if batch.is_closing {
            let goodbye = Frame::new(FrameKind::Goodbye, 0, Bytes::new());
            let _ = timeout(LINGER, io.write_all(&goodbye.encode())).await;
            let _ = timeout(LINGER, io.shutdown()).await;
            conn.fail(CloseReason::new(CloseCause::Local, "this side closed the connection"));
            return;
        }
        if batch.frames.is_empty() {
            tokio::select! {
                () = conn.wake.notified() => {}
                () = quiet(conn, sent_at, keep_alive.interval) => {
                    conn.push_control(Frame::new(FrameKind::Ping, 0, vec![0; 8]));
                    conn.note_ping();
                }
            }
            continue;
        }
        pieces.fill(batch.frames);
        let written = tokio::select! {
            written = pieces.write(&mut io, keep_alive.idle_limit) => written,
            _ = conn.closed() => {
                is_between_frames = false;
                break;
            }
        };
        sent_at = Instant::now();
        conn.release(batch.control_room, batch.data_room);
        if let Err(reason) = written {
            // What the peer said last is still to be read, and tells more.
            let _ = timeout(LINGER, conn.closed()).await;
            conn.fail(reason);
            is_between_frames = false;
            break;
        }
    }
    if is_between_frames
        && let Some(reason) = conn.reason()
        && matches!(reason.cause(), CloseCause::Protocol(_) | CloseCause::Idle)
    {
        let error = crate::wire_error::encode(&reason.unavailable());
        let _ = timeout(LINGER, io.write_all(&Frame::new(FrameKind::Goodbye, 0, error).encode())).await;
    }
    let _ = timeout(LINGER, io.shutdown()).await;
}

/// Resolves when a PING is due: this side has said nothing, or heard nothing, for the interval.
async fn quiet(conn: &Conn, sent_at: Instant, interval: Option<Duration>) {
    let Some(interval) = interval else { return std::future::pending().await };
    loop {
        let due = sent_at.min(conn.received_at().max(conn.pinged_at())) + interval;
        if due <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(due).await;
    }
}

/// A batch of frames as few pieces of memory.
#[derive(Default)]
struct Pieces {
    scratch: Vec<u8>,
    parts: Vec<Part>,
}

enum Part {
    /// From here to there in the scratch.
    Scratch(usize, usize),
    Whole(Bytes),
}

impl Pieces {
    fn fill(&mut self, frames: Vec<Frame>) {
        self.scratch.clear();
        self.parts.clear();
        let mut start = 0;
        for frame in frames {
            self.scratch.extend_from_slice(&frame.header());
            if frame.payload.len() <= COPY_BYTES {
                self.scratch.extend_from_slice(&frame.payload);
            } else {
                self.parts.push(Part::Scratch(start, self.scratch.len()));
                start = self.scratch.len();
                self.parts.push(Part::Whole(frame.payload));
            }
        }
        if start < self.scratch.len() {
            self.parts.push(Part::Scratch(start, self.scratch.len()));
        }
    }

    /// Writes everything. A write that moves nothing for `idle_limit` fails.
    async fn write<W: AsyncWrite + Unpin>(&self, io: &mut W, idle_limit: Duration) -> Result<(), CloseReason> {
        let transport = |error: io::Error| CloseReason::transport(&error);
        let mut slices: Vec<IoSlice<'_>> = self
            .parts
            .iter()
            .map(|part| match part {
                Part::Scratch(from, to) => IoSlice::new(&self.scratch[*from..*to]),
                Part::Whole(bytes) => IoSlice::new(bytes),
            })
            .collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let some = rest.len().min(MAX_SLICES);
            let written = timeout(idle_limit, io.write_vectored(&rest[..some])).await;
            let count = written.map_err(|_| CloseReason::idle(idle_limit))?.map_err(transport)?;
            if count == 0 {
                return Err(CloseReason::new(CloseCause::Transport, "the transport takes no more"));
            }
            IoSlice::advance_slices(&mut rest, count);
        }
        io.flush().await.map_err(transport)
    }
}
