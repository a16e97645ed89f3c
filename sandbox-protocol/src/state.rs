//! The streams of a connection and what waits to be sent. All of it is behind one lock that is never held long.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
};

use bytes::Bytes;
use sandbox_core::{ControlReply, ControlRequest, Result, SandboxError};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::{
    CloseReason,
    frame::{FLAG_END, Frame, FrameKind},
    limits::{MAX_DATA_BYTES, WRITE_BATCH_BYTES},
    link::{Held, Link},
};

/// What arrives for the reader of a stream.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The request was taken on; the JSON of ACCEPT.
    Accept { payload: Bytes, end: bool },
    /// Data.
    Data(IncomingData),
    /// The stream is over: refused, broken or lost.
    Error(SandboxError),
}

#[derive(Debug)]
pub(crate) struct IncomingData {
    pub(crate) channel: u8,
    pub(crate) bytes: Bytes,
    pub(crate) more: bool,
    pub(crate) end: bool,
    /// What the frame counts for while it is held.
    pub(crate) held: Held,
}

/// What the worker of a server's stream is told beside its input.
#[derive(Debug)]
pub(crate) enum Signal {
    /// A control request; none when it is one of a newer peer.
    Control { number: u64, request: Option<ControlRequest> },
    /// The client dropped the stream.
    Cancel,
    /// The connection is gone.
    Lost,
}

/// A control request that waits for its reply, with its place among those that may.
pub(crate) type PendingControl = (oneshot::Sender<Result<ControlReply>>, OwnedSemaphorePermit);

pub(crate) struct Stream {
    pub(crate) link: Arc<Link>,
    pub(crate) incoming: mpsc::UnboundedSender<Incoming>,
    /// What the peer may still send.
    pub(crate) may_receive: u32,
    /// Credit that was not told to the peer yet.
    untold: u32,
    /// What was sent and not given back as credit yet.
    pub(crate) in_flight: u64,
    /// Frames in order: data, and an error behind data.
    queue: VecDeque<Frame>,
    pub(crate) input_over: bool,
    /// Client: OPEN was handed to the transport.
    pub(crate) is_sent: bool,
    pub(crate) is_accepted: bool,
    /// Client.
    pub(crate) controls: HashMap<u64, PendingControl>,
    /// Server.
    pub(crate) signals: Option<mpsc::UnboundedSender<Signal>>,
    pub(crate) open_controls: usize,
    /// Server: everything is queued; the stream is forgotten when it is sent.
    is_finished: bool,
}

impl Stream {
    pub(crate) fn new(
        link: Arc<Link>,
        incoming: mpsc::UnboundedSender<Incoming>,
        signals: Option<mpsc::UnboundedSender<Signal>>,
        window: u32,
    ) -> Self {
        Self {
            link,
            incoming,
            may_receive: window,
            untold: 0,
            in_flight: 0,
            queue: VecDeque::new(),
            input_over: false,
            is_sent: false,
            is_accepted: false,
            controls: HashMap::new(),
            signals,
            open_controls: 0,
            is_finished: false,
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) streams: HashMap<u32, Stream>,
    /// The highest stream number so far.
    pub(crate) last_stream: u32,
    control: VecDeque<Frame>,
    /// What the control queue holds, in bytes.
    pub(crate) control_bytes: usize,
    /// Streams with queued frames, in the order of their turns.
    turns: VecDeque<u32>,
    /// Streams with credit to tell.
    credits: VecDeque<u32>,
    pong: Option<Bytes>,
    /// No handle is left: say goodbye when everything is sent.
    pub(crate) is_closing: bool,
    pub(crate) closed: Option<CloseReason>,
}

/// What the writer takes at once, and the queue space that is free when it is written.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) frames: Vec<Frame>,
    pub(crate) bytes: usize,
    pub(crate) control_room: u32,
    pub(crate) data_room: u32,
    pub(crate) is_closing: bool,
}

impl Batch {
    fn push(&mut self, frame: Frame) {
        self.bytes += frame.cost() as usize;
        self.frames.push(frame);
    }
}

/// Frames whose sender waited for a place in the control queue.
fn has_control_place(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Open | FrameKind::Accept | FrameKind::Control)
}

impl State {
    /// Drops everything that waits to be sent.
    pub(crate) fn clear(&mut self) {
        *self = Self { last_stream: self.last_stream, ..Self::default() };
    }

    pub(crate) fn push_control(&mut self, frame: Frame) {
        self.control_bytes += frame.cost() as usize;
        self.control.push_back(frame);
    }

    pub(crate) fn set_pong(&mut self, payload: Bytes) {
        self.pong = Some(payload);
    }

    /// Queues a frame behind the data of its stream. False when the stream is gone.
    pub(crate) fn push_ordered(&mut self, frame: Frame, finishes: bool) -> bool {
        let id = frame.stream;
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        if stream.is_finished {
            return false;
        }
        stream.is_finished = finishes;
        if frame.kind == FrameKind::Data {
            stream.in_flight += u64::from(frame.cost());
        }
        if stream.queue.is_empty() {
            self.turns.push_back(id);
        }
        stream.queue.push_back(frame);
        true
    }

    /// Gives credit back to the peer. True when the writer should be woken.
    pub(crate) fn give_credit(&mut self, id: u32, bytes: u32) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        if stream.input_over {
            return false;
        }
        stream.may_receive += bytes;
        if stream.untold == 0 {
            self.credits.push_back(id);
        }
        stream.untold += bytes;
        true
    }

    /// Forgets a stream. Returns how much queue space its frames held.
    pub(crate) fn remove(&mut self, id: u32) -> Option<(Stream, u32)> {
        let stream = self.streams.remove(&id)?;
        if !stream.queue.is_empty() {
            self.turns.retain(|turn| *turn != id);
        }
        if stream.untold > 0 {
            self.credits.retain(|credit| *credit != id);
        }
        let room = stream.queue.iter().filter(|frame| frame.kind == FrameKind::Data).map(Frame::cost).sum();
        Some((stream, room))
    }

    /// Everything that is to be sent next: control first, then credit, then data in turns; always some of the data.
    pub(crate) fn take_batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        if let Some(payload) = self.pong.take() {
            batch.push(Frame::new(FrameKind::Pong, 0, payload));
        }
        while batch.bytes < WRITE_BATCH_BYTES {
            let Some(frame) = self.control.pop_front() else { break };
            self.control_bytes -= frame.cost() as usize;
            if has_control_place(frame.kind) {
                batch.control_room += frame.cost();
            }
            match frame.kind {
                FrameKind::Open => {
                    if let Some(stream) = self.streams.get_mut(&frame.stream) {
                        stream.is_sent = true;
                    }
                }
                // Counted until now, so that replies that nobody reads are bounded.
                FrameKind::Reply => {
                    if let Some(stream) = self.streams.get_mut(&frame.stream) {
                        stream.open_controls = stream.open_controls.saturating_sub(1);
                    }
                }
                _ => {}
            }
            // The server's stream is over with it.
            if frame.kind == FrameKind::Refuse || frame.kind == FrameKind::Accept && frame.has(FLAG_END) {
                self.streams.remove(&frame.stream);
            }
            batch.push(frame);
        }
        while let Some(id) = self.credits.pop_front() {
            if let Some(stream) = self.streams.get_mut(&id) {
                let bytes = mem::take(&mut stream.untold);
                batch.push(Frame::new(FrameKind::Credit, id, bytes.to_le_bytes().to_vec()));
            }
        }
        // Data must not overtake the OPEN or ACCEPT of its stream, so it waits until control is empty.
        let limit = WRITE_BATCH_BYTES.max(batch.bytes + 1);
        while self.control.is_empty() && batch.bytes < limit {
            let Some(id) = self.turns.pop_front() else { break };
            self.take_turn(id, &mut batch);
        }
        batch.is_closing = self.is_closing && batch.frames.is_empty();
        batch
    }

    /// One turn of a stream: about one full data frame.
    fn take_turn(&mut self, id: u32, batch: &mut Batch) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let mut taken = 0;
        while taken < MAX_DATA_BYTES {
            let Some(frame) = stream.queue.pop_front() else { break };
            taken += frame.cost() as usize;
            if frame.kind == FrameKind::Data {
                batch.data_room += frame.cost();
            }
            batch.push(frame);
        }
        if !stream.queue.is_empty() {
            self.turns.push_back(id);
        } else if stream.is_finished {
            self.streams.remove(&id);
        }
    }
}

/// What a connection holds right now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Streams that are open.
    pub streams: usize,
    /// Cost in bytes of the data frames that were received and not taken yet, over all streams.
    pub held_bytes: usize,
    /// The most that was ever held.
    pub held_bytes_peak: usize,
    /// Cost in bytes of the data that waits for the transport.
    pub queued_data_bytes: usize,
    /// Cost in bytes of the requests, replies and control that wait for the transport.
    pub queued_control_bytes: usize,
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::{State, Stream};
    use crate::{
        frame::{Frame, FrameKind},
        limits::{MAX_DATA_BYTES, WINDOW_BYTES},
        link::Link,
    };

    fn state(streams: u32) -> State {
        let mut state = State::default();
        for id in 1..=streams {
            let stream = Stream::new(Link::new(id, WINDOW_BYTES), unbounded_channel().0, None, WINDOW_BYTES);
            state.streams.insert(id, stream);
        }
        state
    }

    #[test]
    fn streams_take_turns_of_about_one_full_frame() {
        let mut state = state(3);
        for id in [1, 1, 1, 1, 2, 2, 3] {
            assert!(state.push_ordered(Frame::new(FrameKind::Data, id, vec![0; MAX_DATA_BYTES]), false));
        }
        let order: Vec<u32> = (0..3).flat_map(|_| state.take_batch().frames).map(|frame| frame.stream).collect();
        assert_eq!(order, [1, 2, 3, 1, 2, 1, 1]);
    }

    #[test]
    fn data_never_overtakes_the_control_in_front_of_it() {
        let mut state = state(1);
        for _ in 0..10 {
            state.push_control(Frame::new(FrameKind::Accept, 1, vec![0; MAX_DATA_BYTES]));
        }
        state.push_ordered(Frame::new(FrameKind::Data, 1, "x"), false);
        let kinds: Vec<FrameKind> = (0..4).flat_map(|_| state.take_batch().frames).map(|frame| frame.kind).collect();
        assert_eq!(kinds.iter().position(|kind| *kind == FrameKind::Data), Some(10));
    }
}
