//! What a received frame does.

use std::sync::Arc;

use bytes::Bytes;
use sandbox_core::{ControlReply, ControlRequest, ErrorKind, SandboxError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    io::AsyncRead,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
};

use crate::{
    CloseCause, CloseReason, FrameReader, Violation,
    conn::{Conn, Role},
    frame::{FLAG_END, FLAG_MORE, Frame, FrameKind},
    limits::{CONTROL_BACKLOG_BYTES, MAX_PENDING_CONTROLS},
    link::Link,
    state::{Incoming, IncomingData, Signal, State, Stream},
    wire_error::{self, WireError},
};

/// The payload of OPEN.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OpenPayload {
    pub(crate) method: String,
    pub(crate) request: Value,
    /// The request is so many bytes at the start of the input instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_bytes: Option<u64>,
}

/// The payload of ACCEPT.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AcceptPayload {
    pub(crate) reply: Value,
    /// The reply is so many bytes at the start of the data instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reply_bytes: Option<u64>,
}

/// The payload of CONTROL.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ControlPayload {
    pub(crate) number: u64,
    pub(crate) request: Value,
}

/// The payload of REPLY.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ReplyPayload {
    pub(crate) number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reply: Option<ControlReply>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<WireError>,
}

/// A stream that the client opened.
pub(crate) struct Opened {
    pub(crate) link: Arc<Link>,
    pub(crate) open: OpenPayload,
    pub(crate) incoming: UnboundedReceiver<Incoming>,
    pub(crate) signals: UnboundedReceiver<Signal>,
    pub(crate) is_input_over: bool,
}

/// Reads and dispatches until the connection ends; `on_open` gets the streams that the client opens.
pub(crate) async fn run<R: AsyncRead + Unpin>(
    conn: &Arc<Conn>,
    mut reader: FrameReader<R>,
    mut on_open: impl FnMut(Opened),
) -> CloseReason {
    let read = async {
        loop {
            match reader.next().await {
                Ok(Some(frame)) => {
                    conn.note_received();
                    match dispatch(conn, frame) {
                        Ok(Some(opened)) => on_open(opened),
                        Ok(None) => {}
                        Err(reason) => return reason,
                    }
                }
                Ok(None) => return CloseReason::new(CloseCause::Transport, "the peer closed the transport"),
                Err(reason) => return reason,
            }
        }
    };
    let reason = tokio::select! {
        reason = read => reason,
        reason = conn.closed() => reason,
    };
    conn.fail(reason);
    conn.closed().await
}

fn dispatch(conn: &Conn, frame: Frame) -> Result<Option<Opened>, CloseReason> {
    use FrameKind as K;
    let mut state = conn.lock();
    if state.control_bytes > CONTROL_BACKLOG_BYTES {
        return Err(Violation::Flood.into());
    }
    match (frame.kind, conn.parts.role) {
        (K::Ping, _) => {
            state.set_pong(frame.payload);
            conn.wake.notify_one();
        }
        (K::Pong, _) => {}
        (K::Goodbye, _) => return Err(goodbye(&frame)),
        (K::Data, _) => data(conn, &mut state, frame)?,
        (K::Credit, _) => credit(&mut state, &frame)?,
        (K::Open, Role::Server) => return open(conn, &mut state, frame),
        (K::Control, Role::Server) => control(&mut state, &frame)?,
        (K::Cancel, Role::Server) => {
            known(&mut state, frame.stream)?;
            if let Some((stream, room)) = state.remove(frame.stream) {
                drop(state);
                if let Some(signals) = stream.signals {
                    let _ = signals.send(Signal::Cancel);
                }
                stream.link.close();
                conn.release(0, room);
            }
        }
        (K::Accept, Role::Client) => accept(&mut state, frame)?,
        (K::Refuse | K::Fail, Role::Client) => {
            known(&mut state, frame.stream)?;
            let error = wire_error::decode(&frame.payload);
            end(conn, &mut state, frame.stream, Some(error));
        }
        (K::Reply, Role::Client) => reply(&mut state, &frame)?,
        (K::StopInput, Role::Client) => {
            if let Some(stream) = known(&mut state, frame.stream)? {
                stream.link.stop(&frame.payload);
            }
        }
        (kind, _) => return Err(Violation::Unexpected(kind.code()).into()),
    }
    Ok(None)
}

/// The stream of a frame; none when it is over already, which the peer may not know yet.
fn known(state: &mut State, id: u32) -> Result<Option<&mut Stream>, Violation> {
    if id > state.last_stream {
        return Err(Violation::UnknownStream(id));
    }
    Ok(state.streams.get_mut(&id))
}

fn goodbye(frame: &Frame) -> CloseReason {
    if frame.payload.is_empty() {
        return CloseReason::new(CloseCause::Peer, "the peer closed the connection");
    }
    let error = wire_error::decode(&frame.payload);
    CloseReason::new(CloseCause::Refused(error.kind()), format!("the peer says: {}", error.message()))
}

fn data(conn: &Conn, state: &mut State, frame: Frame) -> Result<(), Violation> {
    let id = frame.stream;
    let is_client = conn.parts.role == Role::Client;
    let Some(stream) = known(state, id)? else { return Ok(()) };
    let cost = frame.cost();
    if is_client && !stream.is_accepted {
        return Err(Violation::Unexpected(frame.kind.code()));
    }
    if stream.input_over {
        return Err(Violation::DataAfterEnd(id));
    }
    stream.may_receive = stream.may_receive.checked_sub(cost).ok_or(Violation::CreditOverrun(id))?;
    let end = frame.has(FLAG_END);
    stream.input_over = end;
    // A reader that has gone takes nothing more; its credit is never given back.
    let _ = stream.incoming.send(Incoming::Data(IncomingData {
        channel: frame.channel,
        more: frame.has(FLAG_MORE),
        end,
        bytes: frame.payload,
        held: conn.held.hold(cost),
    }));
    if is_client && end {
        self::end(conn, state, id, None);
    }
    Ok(())
}

/// The server is done with a stream of this client.
fn end(conn: &Conn, state: &mut State, id: u32, error: Option<SandboxError>) {
    let Some((stream, room)) = state.remove(id) else { return };
    if let Some(error) = error {
        let _ = stream.incoming.send(Incoming::Error(error));
    }
    // Control requests without a reply learn from their dropped channel that it is over.
    stream.link.close();
    conn.release(0, room);
}

fn credit(state: &mut State, frame: &Frame) -> Result<(), Violation> {
    let Some(bytes) = frame.payload.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes)) else {
        return Err(Violation::BadFrame("credit without a number"));
    };
    let Some(stream) = known(state, frame.stream)? else { return Ok(()) };
    stream.in_flight = stream.in_flight.checked_sub(bytes.into()).ok_or(Violation::CreditLie(frame.stream))?;
    stream.link.credit.add_permits(bytes as usize);
    Ok(())
}

fn open(conn: &Conn, state: &mut State, frame: Frame) -> Result<Option<Opened>, CloseReason> {
    let id = frame.stream;
    if id <= state.last_stream {
        return Err(Violation::ReusedStream(id).into());
    }
    state.last_stream = id;
    let open = serde_json::from_slice(&frame.payload).map_err(|_| Violation::BadFrame("an OPEN that is not JSON"))?;
    let max = conn.parts.max_streams;
    if state.streams.len() >= max as usize {
        let error = SandboxError::exhausted(format!("{max} streams are open already"));
        state.push_control(Frame::new(FrameKind::Refuse, id, wire_error::encode(&error)));
        conn.wake.notify_one();
        return Ok(None);
    }
    let (sender, incoming) = unbounded_channel();
    let (signal, signals) = unbounded_channel();
    let link = Link::new(id, conn.parts.peer.limits.window_bytes);
    let is_input_over = frame.has(FLAG_END);
    let mut stream = Stream::new(link.clone(), sender, Some(signal), conn.parts.window);
    stream.input_over = is_input_over;
    state.streams.insert(id, stream);
    Ok(Some(Opened { link, open, incoming, signals, is_input_over }))
}

fn control(state: &mut State, frame: &Frame) -> Result<(), Violation> {
    let Some(stream) = known(state, frame.stream)? else { return Ok(()) };
    let payload: ControlPayload =
        serde_json::from_slice(&frame.payload).map_err(|_| Violation::BadFrame("a CONTROL that is not JSON"))?;
    stream.open_controls += 1;
    if stream.open_controls > MAX_PENDING_CONTROLS {
        return Err(Violation::Flood);
    }
    if let Some(signals) = &stream.signals {
        let request = serde_json::from_value::<ControlRequest>(payload.request).ok();
        let _ = signals.send(Signal::Control { number: payload.number, request });
    }
    Ok(())
}

fn accept(state: &mut State, frame: Frame) -> Result<(), Violation> {
    let id = frame.stream;
    let end = frame.has(FLAG_END);
    let Some(stream) = known(state, id)? else { return Ok(()) };
    if stream.is_accepted || !stream.is_sent {
        return Err(Violation::Unexpected(frame.kind.code()));
    }
    stream.is_accepted = true;
    let _ = stream.incoming.send(Incoming::Accept { payload: frame.payload, end });
    if end && let Some((stream, _)) = state.remove(id) {
        stream.link.close();
    }
    Ok(())
}

fn reply(state: &mut State, frame: &Frame) -> Result<(), Violation> {
    let Some(stream) = known(state, frame.stream)? else { return Ok(()) };
    let payload: ReplyPayload =
        serde_json::from_slice(&frame.payload).map_err(|_| Violation::BadFrame("a REPLY that is not JSON"))?;
    // A request whose caller has gone has no waiter any more.
    if let Some((waiter, _place)) = stream.controls.remove(&payload.number) {
        let _ = waiter.send(match (payload.reply, payload.error) {
            (_, Some(error)) => Err(error.into()),
            (Some(reply), None) => Ok(reply),
            (None, None) => Err(SandboxError::new(ErrorKind::Unknown, "the agent sent an empty reply")),
        });
    }
    Ok(())
}

/// JSON that may not fit in its frame: inline, or how many bytes of data it is.
pub(crate) fn to_json<T: Serialize>(what: &str, value: &T) -> Result<Bytes, SandboxError> {
    let json =
        serde_json::to_vec(value).map_err(|_| SandboxError::internal(format!("a {what} could not be written")))?;
    if json.len() > crate::limits::MAX_JSON_BYTES {
        let (size, limit) = (json.len(), crate::limits::MAX_JSON_BYTES);
        return Err(SandboxError::exhausted(format!("a {what} has {size} bytes; at most {limit} are sent")));
    }
    Ok(json.into())
}
