//! One client at its terminal session: what came before, what comes, and what the client says.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use sandbox_core::{
    ControlRequest, ErrorKind, ExecExit, ExecOutcome, PtyEvent, PtyStream, SandboxError, SessionControl,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::{
    Error, Message,
    protocol::{CloseFrame, frame::coding::CloseCode},
};

use crate::{command::told, websocket::Socket};

/// Channels of binary messages.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const REPLAY: u8 = 3;

/// Most output in one message, live and replayed.
const LIVE_BYTES: usize = 32 * 1024;
const REPLAY_BYTES: usize = 512 * 1024;

/// How often the client is asked whether it is there, and how long it may be silent.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const SILENT_FOR: Duration = Duration::from_secs(60);

/// How long a client may take nothing.
const WRITES_WITHIN: Duration = Duration::from_secs(10);

/// How long the client's own close is waited for, and that its last words have reached the session.
const CLOSES_WITHIN: Duration = Duration::from_secs(2);

/// The close of a client whose session another one has taken.
const TAKEN_OVER: u16 = 4001;

/// Whether a session is a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Pty,
    Pipe,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Pty => "pty",
            Self::Pipe => "pipe",
        }
    }
}

pub(super) struct Conversation {
    pub(super) session_id: String,
    pub(super) mode: Mode,
    pub(super) stream: PtyStream,
    /// From which byte of the output on.
    pub(super) at: u64,
    /// Up to where the output is a replay.
    pub(super) replay_to: u64,
}

/// The client is gone, or takes nothing.
struct Gone;

fn text(value: &Value) -> Message {
    Message::text(value.to_string())
}

fn close(code: u16, reason: &'static str) -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::from(code), reason: reason.into() }))
}

fn framed(head: &[u8], data: &[u8]) -> Message {
    Message::binary([head, data].concat())
}

async fn send(sink: &mut (impl Sink<Message, Error = Error> + Unpin), message: Message) -> Result<(), Gone> {
    match tokio::time::timeout(WRITES_WITHIN, sink.send(message)).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(Gone),
    }
}

impl Conversation {
    /// Holds it until one side ends it. The session itself goes on.
    pub(super) async fn run(mut self, socket: Socket) {
        let (mut sink, mut source) = socket.split();
        let control = self.stream.control();
        let (replies, replied) = mpsc::channel(4);
        let outbound = self.tell(&mut sink, replied);
        let inbound = listen(&mut source, &control, &replies);
        let has_ended = tokio::select! {
            told = outbound => told.is_ok(),
            () = inbound => {
                // Behind what the client has said. One that is over needs it no more.
                let _ = tokio::time::timeout(CLOSES_WITHIN, control.control(ControlRequest::Detach)).await;
                false
            }
        };
        if has_ended {
            let closed = async { while let Some(Ok(_)) = source.next().await {} };
            let _ = tokio::time::timeout(CLOSES_WITHIN, closed).await;
        }
    }

    /// Tells the client what was, what is, and the end.
    async fn tell(
        &mut self,
        sink: &mut (impl Sink<Message, Error = Error> + Unpin),
        mut replies: mpsc::Receiver<Message>,
    ) -> Result<(), Gone> {
        let mut next = self.replay(sink).await?;
        let connected = json!({ "type": "connected", "session_id": self.session_id, "mode": self.mode.name() });
        send(sink, text(&connected)).await?;
        let mut ping = tokio::time::interval(PING_INTERVAL);
        ping.reset();
        loop {
            let event = match next.take() {
                Some(event) => event,
                None => tokio::select! {
                    event = self.stream.next() => event,
                    Some(reply) = replies.recv() => {
                        send(sink, reply).await?;
                        continue;
                    }
                    _ = ping.tick() => {
                        send(sink, Message::Ping(Bytes::new())).await?;
                        continue;
                    }
                },
            };
            match event {
                Ok(Some(PtyEvent::Output(bytes))) => pass_on(sink, STDOUT, &bytes).await?,
                Ok(Some(PtyEvent::Stderr(bytes))) => pass_on(sink, STDERR, &bytes).await?,
                Ok(Some(PtyEvent::Exit(exit))) => return end(sink, &exit).await,
                Ok(Some(_)) => {}
                Ok(None) => return Err(Gone),
                Err(error) => return refuse(sink, &error).await,
            }
        }
    }

    /// Sends what is kept of the output so far; gives an event that came behind it.
    async fn replay(
        &mut self,
        sink: &mut (impl Sink<Message, Error = Error> + Unpin),
    ) -> Result<Option<sandbox_core::Result<Option<PtyEvent>>>, Gone> {
        let (mut kept, mut from) = (Vec::new(), self.at);
        let mut behind = None;
        while self.at < self.replay_to {
            match self.stream.next().await {
                Ok(Some(PtyEvent::Output(bytes) | PtyEvent::Stderr(bytes))) => {
                    self.at += bytes.len() as u64;
                    kept.extend_from_slice(&bytes);
                }
                Ok(Some(PtyEvent::Gap(bytes))) => {
                    // Only at its start: what is missing is older than the rest.
                    self.at += bytes;
                    from = self.at;
                    kept.clear();
                }
                Ok(Some(PtyEvent::Opened { .. })) => {}
                event => {
                    behind = Some(event);
                    break;
                }
            }
        }
        for piece in kept.chunks(REPLAY_BYTES) {
            let mut head = vec![REPLAY];
            head.extend_from_slice(&from.to_be_bytes());
            send(sink, framed(&head, piece)).await?;
            from += piece.len() as u64;
        }
        Ok(behind)
    }
}

async fn pass_on(
    sink: &mut (impl Sink<Message, Error = Error> + Unpin),
    channel: u8,
    bytes: &[u8],
) -> Result<(), Gone> {
    for piece in bytes.chunks(LIVE_BYTES) {
        send(sink, framed(&[channel], piece)).await?;
    }
    Ok(())
}

async fn end(sink: &mut (impl Sink<Message, Error = Error> + Unpin), exit: &ExecExit) -> Result<(), Gone> {
    let told = told(exit, "bash");
    if let ExecOutcome::StartFailed { .. } = exit.outcome {
        send(sink, text(&json!({ "type": "error", "code": "START_FAILED", "error": told.words }))).await?;
        return send(sink, close(1011, "start failed")).await;
    }
    send(sink, text(&json!({ "type": "exit", "exit_code": told.code.unwrap_or(-1) }))).await?;
    send(sink, close(1000, "process exited")).await
}

/// The session is another client's now, or it broke.
async fn refuse(sink: &mut (impl Sink<Message, Error = Error> + Unpin), error: &SandboxError) -> Result<(), Gone> {
    if error.kind() == ErrorKind::InvalidState && error.message().starts_with("replaced:") {
        return send(sink, close(TAKEN_OVER, "TAKEN_OVER")).await;
    }
    send(sink, text(&json!({ "type": "error", "code": "RUNTIME_ERROR", "error": error.message() }))).await?;
    send(sink, close(1011, "runtime error")).await
}

/// Does what the client says, until it goes.
async fn listen(
    source: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
    control: &Arc<dyn SessionControl>,
    replies: &mpsc::Sender<Message>,
) {
    while let Ok(Some(Ok(message))) = tokio::time::timeout(SILENT_FOR, source.next()).await {
        let reply = match message {
            Message::Binary(data) if data.first() == Some(&STDIN) => input(control, data.slice(1..)).await,
            Message::Text(words) => order(control, &words).await,
            Message::Close(_) => return,
            _ => None,
        };
        if let Some(reply) = reply
            && replies.send(text(&reply)).await.is_err()
        {
            return;
        }
    }
}

async fn input(control: &Arc<dyn SessionControl>, data: Bytes) -> Option<Value> {
    let error = control.write(data).await.err()?;
    // One that has ended is told by its exit.
    (error.kind() != ErrorKind::InvalidState)
        .then(|| json!({ "type": "error", "code": "STDIN_WRITE_FAILED", "error": error.message() }))
}

/// A control message. What cannot be done is left: the end of a session is told by its exit.
async fn order(control: &Arc<dyn SessionControl>, words: &str) -> Option<Value> {
    let invalid = |why: &str| Some(json!({ "type": "error", "code": "INVALID_FRAME", "error": why }));
    let Ok(order) = serde_json::from_str::<Value>(words) else { return invalid("no JSON") };
    let request = match order["type"].as_str() {
        Some("ping") => return Some(json!({ "type": "pong" })),
        Some("stdin") => {
            let data = order["data"].as_str().unwrap_or_default().to_owned();
            return input(control, data.into()).await;
        }
        Some("resize") => {
            let size = |name: &str| order[name].as_u64().and_then(|size| u16::try_from(size).ok());
            ControlRequest::Resize { rows: size("rows")?, cols: size("cols")? }
        }
        Some("signal") => ControlRequest::Signal(match order["signal"].as_str()? {
            "SIGHUP" => 1,
            "SIGINT" => 2,
            "SIGQUIT" => 3,
            "SIGKILL" => 9,
            "SIGTERM" => 15,
            _ => return None,
        }),
        _ => return invalid("unknown type"),
    };
    let _ = control.control(request).await;
    None
}
