//! One connection: what its reader, its writer and its streams share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use sandbox_core::{Admitted, SandboxError};
use tokio::{
    sync::{Notify, Semaphore, mpsc, watch},
    time::Instant,
};

use crate::{
    CloseCause, CloseReason, ConnectionStats, KeepAlive, PeerInfo,
    frame::{FLAG_END, FLAG_MORE, Frame, FrameKind, cost},
    limits::{CONTROL_QUEUE_BYTES, DATA_QUEUE_BYTES, MAX_DATA_BYTES},
    link::{HeldBytes, Link},
    state::{Incoming, Signal, State, Stream},
    wire_error,
};

/// Which side of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

#[derive(Debug)]
pub(crate) struct ConnParts {
    pub(crate) role: Role,
    pub(crate) peer: PeerInfo,
    /// Ours, in bytes.
    pub(crate) window: u32,
    /// Streams that may be open: the client's count is bounded by what the server allows.
    pub(crate) max_streams: u32,
    pub(crate) keep_alive: KeepAlive,
}

pub(crate) struct Conn {
    pub(crate) parts: ConnParts,
    state: Mutex<State>,
    /// There is something to write.
    pub(crate) wake: Notify,
    control_room: Semaphore,
    data_room: Semaphore,
    pub(crate) held: Arc<HeldBytes>,
    closed: watch::Sender<Option<CloseReason>>,
    start: Instant,
    received_at_ms: AtomicU64,
    pinged_at_ms: AtomicU64,
}

/// The stream or the connection takes no more; why is known elsewhere.
#[derive(Debug)]
pub(crate) struct Gone;

impl Conn {
    pub(crate) fn new(parts: ConnParts) -> Arc<Self> {
        Arc::new(Self {
            parts,
            state: Mutex::default(),
            wake: Notify::new(),
            control_room: Semaphore::new(CONTROL_QUEUE_BYTES as usize),
            data_room: Semaphore::new(DATA_QUEUE_BYTES as usize),
            held: Arc::default(),
            closed: watch::Sender::new(None),
            start: Instant::now(),
            received_at_ms: AtomicU64::new(0),
            pinged_at_ms: AtomicU64::new(0),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between two statements; a panic elsewhere does not make it wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_received(&self) {
        self.received_at_ms.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn note_ping(&self) {
        self.pinged_at_ms.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// When something arrived last.
    pub(crate) fn received_at(&self) -> Instant {
        self.start + Duration::from_millis(self.received_at_ms.load(Ordering::Relaxed))
    }

    /// When the last PING was queued.
    pub(crate) fn pinged_at(&self) -> Instant {
        self.start + Duration::from_millis(self.pinged_at_ms.load(Ordering::Relaxed))
    }

    /// Why the connection ended, if it has.
    pub(crate) fn reason(&self) -> Option<CloseReason> {
        // Known from the moment on in which its streams are gone: whoever finds his gone asks this.
        self.lock().closed.clone()
    }

    pub(crate) async fn closed(&self) -> CloseReason {
        let mut closed = self.closed.subscribe();
        // The sender lives in self.
        match closed.wait_for(Option::is_some).await.map(|reason| reason.clone()) {
            Ok(Some(reason)) => reason,
            _ => CloseReason::new(CloseCause::Local, "this side closed the connection"),
        }
    }

    /// Ends the connection and everything on it. Only the first reason counts.
    pub(crate) fn fail(&self, reason: CloseReason) {
        let streams = {
            let mut state = self.lock();
            if state.closed.is_some() {
                return;
            }
            let streams = std::mem::take(&mut state.streams);
            state.clear();
            state.closed = Some(reason.clone());
            streams
        };
        tracing::debug!(role = ?self.parts.role, cause = ?reason.cause(), streams = streams.len(), "connection ended");
        for stream in streams.into_values() {
            let error = match (self.parts.role, stream.is_sent, stream.is_accepted) {
                (Role::Client, false, _) => reason.unavailable(),
                (Role::Client, true, false) => reason.lost(Admitted::Unknown),
                _ => reason.lost(Admitted::Yes),
            };
            // First what tells the stream, then what only wakes it.
            let _ = stream.incoming.send(Incoming::Error(error));
            if let Some(signals) = stream.signals {
                let _ = signals.send(Signal::Lost);
            }
            for (waiter, _place) in stream.controls.into_values() {
                let _ = waiter.send(Err(reason.lost(Admitted::Unknown)));
            }
            stream.link.close();
        }
        self.control_room.close();
        self.data_room.close();
        self.closed.send_replace(Some(reason));
        self.wake.notify_one();
    }

    /// Says goodbye when everything that waits is sent.
    pub(crate) fn close(&self) {
        self.lock().is_closing = true;
        self.wake.notify_one();
    }

    /// Opens a stream whose OPEN is this frame. Waits while too many requests wait for the transport.
    pub(crate) async fn open(
        &self,
        payload: Bytes,
        flags: u16,
    ) -> Result<(Arc<Link>, mpsc::UnboundedReceiver<Incoming>), SandboxError> {
        let reason =
            || self.reason().map_or_else(|| SandboxError::unavailable("closed"), |reason| reason.unavailable());
        let room = self.control_room.acquire_many(cost(payload.len())).await.map_err(|_| reason())?;
        // Bounded by the credit that the peer is given.
        let (sender, receiver) = mpsc::unbounded_channel();
        let link = {
            let mut state = self.lock();
            if let Some(reason) = &state.closed {
                return Err(reason.unavailable());
            }
            if state.streams.len() >= self.parts.max_streams as usize {
                let message = format!("{} streams are open to the agent already", state.streams.len());
                return Err(SandboxError::exhausted(message).with_help("wait until some of them have ended"));
            }
            let Some(id) = state.last_stream.checked_add(1) else {
                return Err(SandboxError::unavailable("the connection has used all its stream numbers"));
            };
            state.last_stream = id;
            let link = Link::new(id, self.parts.peer.limits.window_bytes);
            state.streams.insert(id, Stream::new(link.clone(), sender, None, self.parts.window));
            state.push_control(Frame::new(FrameKind::Open, id, payload).with_flags(flags));
            link
        };
        room.forget();
        self.wake.notify_one();
        Ok((link, receiver))
    }

    /// Drops a stream of the client: the server ends its work at once. Nothing happens to a stream that is over.
    pub(crate) fn cancel(&self, id: u32) {
        let mut state = self.lock();
        let Some((stream, room)) = state.remove(id) else { return };
        state.push_control(Frame::new(FrameKind::Cancel, id, Bytes::new()));
        drop(state);
        self.release(0, room);
        stream.link.close();
        self.wake.notify_one();
    }

    /// Sends one data frame when there is credit and queue space for it. Dropping the future sends nothing.
    pub(crate) async fn send_data(&self, link: &Link, channel: u8, flags: u16, payload: Bytes) -> Result<(), Gone> {
        let cost = cost(payload.len());
        let credit = link.credit.acquire_many(cost).await.map_err(|_| Gone)?;
        let room = self.data_room.acquire_many(cost).await.map_err(|_| Gone)?;
        let frame = Frame::new(FrameKind::Data, link.id, payload).with_channel(channel).with_flags(flags);
        let finishes = self.parts.role == Role::Server && flags & FLAG_END != 0;
        if !self.lock().push_ordered(frame, finishes) {
            return Err(Gone);
        }
        credit.forget();
        room.forget();
        self.wake.notify_one();
        Ok(())
    }

    /// Sends bytes of any length as data frames of one channel; as parts of one event if `is_event`. With `end` the
    /// last of them ends the direction.
    pub(crate) async fn send_bytes(
        &self,
        link: &Link,
        channel: u8,
        mut bytes: Bytes,
        is_event: bool,
        end: bool,
    ) -> Result<(), Gone> {
        while bytes.len() > MAX_DATA_BYTES {
            let part = bytes.split_to(MAX_DATA_BYTES);
            self.send_data(link, channel, if is_event { FLAG_MORE } else { 0 }, part).await?;
        }
        self.send_data(link, channel, if end { FLAG_END } else { 0 }, bytes).await
    }

    /// Sends a frame that waits for a place in the control queue. `then` is done with its stream at the same moment.
    pub(crate) async fn send_control(&self, frame: Frame, then: impl FnOnce(&mut Stream)) -> Result<(), Gone> {
        let room = self.control_room.acquire_many(frame.cost()).await.map_err(|_| Gone)?;
        let mut state = self.lock();
        then(state.streams.get_mut(&frame.stream).ok_or(Gone)?);
        room.forget();
        state.push_control(frame);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// The same behind the data of its stream: for what must not overtake it. It waits for no place, as whoever sends it
    /// has one of the few of its stream.
    pub(crate) fn send_control_behind(&self, frame: Frame, then: impl FnOnce(&mut Stream)) -> Result<(), Gone> {
        let mut state = self.lock();
        then(state.streams.get_mut(&frame.stream).ok_or(Gone)?);
        if !state.push_ordered(frame, false) {
            return Err(Gone);
        }
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Sends a frame whose number is bounded by the streams: credit, replies, stops.
    pub(crate) fn push_control(&self, frame: Frame) {
        self.lock().push_control(frame);
        self.wake.notify_one();
    }

    /// Ends a stream of the server with an error: a refusal before it was accepted, a failure behind its data after.
    pub(crate) fn end_with(&self, id: u32, error: &SandboxError) {
        let payload = wire_error::encode(error);
        let mut state = self.lock();
        let Some(stream) = state.streams.get(&id) else { return };
        if stream.is_accepted {
            state.push_ordered(Frame::new(FrameKind::Fail, id, payload), true);
        } else {
            state.push_control(Frame::new(FrameKind::Refuse, id, payload));
        }
        drop(state);
        self.wake.notify_one();
    }

    pub(crate) fn give_credit(&self, id: u32, bytes: u32) {
        if self.lock().give_credit(id, bytes) {
            self.wake.notify_one();
        }
    }

    /// Gives queue space back.
    pub(crate) fn release(&self, control_room: u32, data_room: u32) {
        self.control_room.add_permits(control_room as usize);
        self.data_room.add_permits(data_room as usize);
    }

    pub(crate) fn stats(&self) -> ConnectionStats {
        let used = |limit: u32, free: &Semaphore| (limit as usize).saturating_sub(free.available_permits());
        ConnectionStats {
            streams: self.lock().streams.len(),
            held_bytes: self.held.now(),
            held_bytes_peak: self.held.peak(),
            queued_data_bytes: used(DATA_QUEUE_BYTES, &self.data_room),
            queued_control_bytes: used(CONTROL_QUEUE_BYTES, &self.control_room),
        }
    }
}
