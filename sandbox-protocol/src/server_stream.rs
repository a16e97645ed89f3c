//! The worker of one stream of the server.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll};

use bytes::Bytes;
use sandbox_core::{ControlReply, ControlRequest, Result, SandboxError, SessionControl};
use serde_json::Value;
use tokio::{sync::mpsc::UnboundedReceiver, time::timeout};

use crate::{
    Body, Service, StreamResponder,
    conn::{Conn, Gone},
    dispatch::{AcceptPayload, Opened, ReplyPayload, to_json},
    frame::{FLAG_END, Frame, FrameKind},
    inbox::Inbox,
    limits::{DETACH_LIMIT, INLINE_JSON_BYTES, LAST_REPLIES_LIMIT, MAX_EVENT_BYTES},
    link::Link,
    service::{EventFrame, Events, Rest},
    state::Signal,
    wire_error,
};

/// Serves one stream to its end. An error is told to the client; a stream that the client dropped is no error.
pub(crate) async fn run(conn: &Arc<Conn>, service: &dyn Service, opened: Opened) -> Result<()> {
    let Opened { link, open, incoming, mut signals, is_input_over } = opened;
    let mut input = Body::remote(Inbox::new(conn.clone(), link.id, incoming, is_input_over), None);
    // Control that comes before the session is there.
    let mut early = Vec::new();
    let answering = async {
        let mut request = open.request;
        if let (Some(length), Some(inbox)) = (open.request_bytes, input.inbox()) {
            let json = inbox.json_bytes(length).await?;
            request =
                serde_json::from_slice(&json).map_err(|_| SandboxError::invalid_input("request", "is not JSON"))?;
        }
        service.open(&open.method, request, &mut input).await
    };
    let StreamResponder { reply, rest } = tokio::select! {
        biased;
        _ = dropped(&mut signals, &mut early) => return Ok(()),
        response = answering => response?,
    };
    if let Rest::Session(session) = rest {
        let how = tokio::select! {
            biased;
            accepted = accept(conn, &link, reply, false) => accepted.map(|()| None)?,
            gone = dropped(&mut signals, &mut early) => Some(gone),
        };
        return match how {
            None => serve_session(conn, &link, session, input, signals, early).await,
            Some(Leaving::Cancelled) => Ok(()),
            // It was taken on, though the client does not know that yet.
            Some(Leaving::Lost) => {
                detach(&*session.control()).await;
                Ok(())
            }
        };
    }
    let answering = async {
        match rest {
            Rest::Body(body) => {
                accept(conn, &link, reply, false).await?;
                send_body(conn, &link, body).await
            }
            _ => accept(conn, &link, reply, true).await,
        }
    };
    tokio::select! {
        biased;
        answered = answering => answered,
        _ = dropped(&mut signals, &mut early) => Ok(()),
    }
}

/// Why nobody waits for a stream any more.
enum Leaving {
    Cancelled,
    Lost,
}

/// Resolves when nobody waits for this stream any more. Control requests are kept for later.
async fn dropped(signals: &mut UnboundedReceiver<Signal>, early: &mut Vec<(u64, Option<ControlRequest>)>) -> Leaving {
    loop {
        match signals.recv().await {
            Some(Signal::Control { number, request }) => early.push((number, request)),
            Some(Signal::Cancel) => return Leaving::Cancelled,
            Some(Signal::Lost) | None => return Leaving::Lost,
        }
    }
}

/// What shall outlive the connection is kept by its own control half; then the session is dropped.
async fn detach(control: &dyn SessionControl) {
    let _ = timeout(DETACH_LIMIT, control.control(ControlRequest::Detach)).await;
}

async fn accept(conn: &Conn, link: &Link, reply: Value, end: bool) -> Result<()> {
    let mut accept = AcceptPayload { reply, reply_bytes: None };
    let mut payload = to_json("reply", &accept)?;
    let mut large = None;
    if payload.len() > INLINE_JSON_BYTES {
        let reply = to_json("reply", &std::mem::take(&mut accept.reply))?;
        accept.reply_bytes = Some(reply.len() as u64);
        payload = to_json("reply", &accept)?;
        large = Some(reply);
    }
    let flags = if end && large.is_none() { FLAG_END } else { 0 };
    let frame = Frame::new(FrameKind::Accept, link.id, payload).with_flags(flags);
    let sent = conn.send_control(frame, |stream| stream.is_accepted = true).await;
    // A client that has gone is told nothing.
    if let (Ok(()), Some(reply)) = (sent, large) {
        let _ = conn.send_bytes(link, 0, reply, false, end).await;
    }
    Ok(())
}

async fn send_body(conn: &Conn, link: &Link, mut body: Body) -> Result<()> {
    while let Some(bytes) = body.next().await? {
        if conn.send_bytes(link, 0, bytes, false, false).await.is_err() {
            return Ok(());
        }
    }
    let _ = conn.send_data(link, 0, FLAG_END, Bytes::new()).await;
    Ok(())
}

async fn serve_session(
    conn: &Arc<Conn>,
    link: &Arc<Link>,
    mut session: Box<dyn Events>,
    input: Body,
    mut signals: UnboundedReceiver<Signal>,
    early: Vec<(u64, Option<ControlRequest>)>,
) -> Result<()> {
    let control = session.control();
    let mut calls = Calls::default();
    for (number, request) in early {
        calls.start(&control, number, request);
    }
    let mut writing = std::pin::pin!(write_input(conn, link, input, control.clone()));
    let mut is_written = false;
    let last = {
        let mut events = std::pin::pin!(send_events(conn, link, &mut *session));
        loop {
            tokio::select! {
                biased;
                signal = signals.recv() => match signal {
                    Some(Signal::Control { number, request }) => {
                        // What was written before is the session's already when it is let go of.
                        if request == Some(ControlRequest::Detach) && !is_written {
                            is_written = poll_fn(|cx| Poll::Ready(writing.as_mut().poll(cx).is_ready())).await;
                        }
                        calls.start(&control, number, request);
                    }
                    Some(Signal::Cancel) => return Ok(()),
                    Some(Signal::Lost) | None => break None,
                },
                (number, result) = calls.next() => answer(conn, link, number, result),
                last = &mut events => match last? {
                    Ok(last) => break Some(last),
                    // The stream takes nothing more; the signal tells why.
                    Err(Gone) => {
                        if conn.reason().is_some() {
                            break None;
                        }
                        return Ok(());
                    }
                },
                () = &mut writing, if !is_written => is_written = true,
            }
        }
    };
    let Some(last) = last else {
        detach(&*control).await;
        return Ok(());
    };
    if !calls.is_empty() {
        let replies = async {
            while !calls.is_empty() {
                let (number, result) = calls.next().await;
                answer(conn, link, number, result);
            }
        };
        let _ = timeout(LAST_REPLIES_LIMIT, replies).await;
    }
    let channel = wire_channel(&last)?;
    let _ = send_event(conn, link, channel, last.bytes, true).await;
    Ok(())
}

/// Sends events up to the last one, which is returned.
async fn send_events(conn: &Conn, link: &Link, session: &mut dyn Events) -> Result<Result<EventFrame, Gone>> {
    while let Some(event) = session.next().await? {
        let channel = wire_channel(&event)?;
        if event.is_last {
            return Ok(Ok(event));
        }
        if send_event(conn, link, channel, event.bytes, false).await.is_err() {
            return Ok(Err(Gone));
        }
    }
    Err(SandboxError::internal("a session ended without a last event"))
}

fn wire_channel(event: &EventFrame) -> Result<u8> {
    if event.bytes.len() > MAX_EVENT_BYTES {
        let (size, limit) = (event.bytes.len(), MAX_EVENT_BYTES);
        return Err(SandboxError::internal(format!("an event of {size} bytes; at most {limit} are sent")));
    }
    u8::try_from(event.channel).map_err(|_| SandboxError::internal("an event on a channel above 255"))
}

async fn send_event(conn: &Conn, link: &Link, channel: u8, bytes: Bytes, end: bool) -> Result<(), Gone> {
    conn.send_bytes(link, channel, bytes, true, end).await
}

/// Writes the client's input to the session, as fast as the session takes it.
async fn write_input(conn: &Conn, link: &Link, mut input: Body, control: Arc<dyn SessionControl>) {
    loop {
        match input.next().await {
            Ok(Some(bytes)) => {
                if let Err(error) = control.write(bytes).await {
                    // At most one for a stream.
                    conn.push_control(Frame::new(FrameKind::StopInput, link.id, wire_error::encode(&error)));
                    return;
                }
            }
            Ok(None) => {
                let _ = control.control(ControlRequest::CloseInput).await;
                return;
            }
            // Cut off is not closed: the program must not take it for the whole.
            Err(_) => return,
        }
    }
}

fn answer(conn: &Conn, link: &Link, number: u64, result: Result<ControlReply>) {
    let payload = match result {
        Ok(reply) => ReplyPayload { number, reply: Some(reply), error: None },
        Err(error) => ReplyPayload { number, reply: None, error: Some((&error).into()) },
    };
    let payload = serde_json::to_vec(&payload).unwrap_or_default();
    // Bounded by the requests that may be open.
    conn.push_control(Frame::new(FrameKind::Reply, link.id, payload));
}

type Call = Pin<Box<dyn Future<Output = Result<ControlReply>> + Send>>;

/// Control requests under way, polled in the order in which they came: what they do at once is done in that order.
#[derive(Default)]
struct Calls {
    calls: Vec<(u64, Call)>,
}

impl Calls {
    fn start(&mut self, control: &Arc<dyn SessionControl>, number: u64, request: Option<ControlRequest>) {
        let control = control.clone();
        self.calls.push((
            number,
            Box::pin(async move {
                match request {
                    Some(request) => control.control(request).await,
                    None => Err(SandboxError::unsupported_control("agent", None)),
                }
            }),
        ));
    }

    fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The next answer; waits for ever while there is no request. Dropping the future loses nothing.
    async fn next(&mut self) -> (u64, Result<ControlReply>) {
        poll_fn(|context| {
            for index in 0..self.calls.len() {
                let (number, call) = &mut self.calls[index];
                if let Poll::Ready(result) = call.as_mut().poll(context) {
                    let number = *number;
                    drop(self.calls.remove(index));
                    return Poll::Ready((number, result));
                }
            }
            Poll::Pending
        })
        .await
    }
}
