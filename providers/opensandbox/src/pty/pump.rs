//! Follows a session: what comes over its socket, and over the next one when that breaks.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use sandbox_core::{ExecExit, ExecOutcome, PtyEvent, Result, SandboxError, SessionSink};
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};
use tokio_tungstenite::tungstenite::{Message, protocol::frame::coding::CloseCode};

use super::{
    control::{LETS_GO_WITHIN, Shared as SessionShared, resize},
    socket::{Attach, Connected, dial},
};
use crate::{error::NAME, shared::Shared, websocket::Socket};

/// The daemon asks every 30 s whether we are there; one that is silent for so long is not there itself.
const SILENT_FOR: Duration = Duration::from_secs(75);

/// So many sockets in a row may break without a byte.
const QUIET_SOCKETS: u32 = 3;

/// What a daemon answers when it has done all that it was told before.
const PING: &str = r#"{"type":"ping"}"#;

/// The close codes of the daemon.
const TAKEN_OVER: u16 = 4001;

pub(super) struct Pump {
    pub(super) shared: Arc<Shared>,
    pub(super) sandbox_id: String,
    pub(super) attach: Attach,
    pub(super) session: Arc<SessionShared>,
    pub(super) orders: mpsc::Receiver<Message>,
    /// The size that it is to get.
    pub(super) size: Option<(u16, u16)>,
    /// Whether it ends with its stream.
    pub(super) is_owned: bool,
    /// How many bytes of the output are known.
    pub(super) received: u64,
    pub(super) quiet_sockets: u32,
}

/// Why the work on one socket ended.
enum End {
    Exit(ExecExit),
    /// The holder let it go, or a pause did.
    Detached,
    Dropped,
    Failed(SandboxError),
    Broken,
}

impl Pump {
    pub(super) async fn run(mut self, connected: Connected, sink: SessionSink<PtyEvent>) {
        let Connected { mut socket, mut first } = connected;
        loop {
            let end = match self.take(first, &mut socket, &sink).await {
                Some(end) => end,
                None => self.follow(&mut socket, &sink).await,
            };
            match end {
                End::Exit(exit) => {
                    self.session.end();
                    if let Some(missing) = self.missing().await {
                        sink.send(PtyEvent::Gap(missing)).await;
                    }
                    self.delete().await;
                    sink.send(PtyEvent::Exit(exit)).await;
                    return;
                }
                End::Detached => {
                    self.session.end();
                    self.let_go(&mut socket).await;
                    sink.fail(SandboxError::pty("the terminal session was detached").with_provider(NAME)).await;
                    return;
                }
                End::Dropped => {
                    self.session.end();
                    self.let_go(&mut socket).await;
                    if self.is_owned && !self.session.is_detached() {
                        self.delete().await;
                    }
                    return;
                }
                End::Failed(error) => {
                    self.session.end();
                    sink.fail(error.with_provider(NAME)).await;
                    return;
                }
                End::Broken => match self.again().await {
                    Ok(next) => Connected { socket, first } = next,
                    Err(error) => {
                        self.session.end();
                        sink.fail(error).await;
                        return;
                    }
                },
            }
        }
    }

    /// Ends the connection to a session, behind all that was written to it.
    async fn let_go(&mut self, socket: &mut Socket) {
        let is_left = !self.is_owned || self.session.is_detached();
        let rest = async {
            while let Ok(order) = self.orders.try_recv() {
                socket.send(order).await?;
            }
            if is_left {
                // Its answer comes when all before it has arrived, whatever is in between. Output that comes until then is
                // for whoever attaches next.
                socket.send(Message::text(PING)).await?;
                while let Some(message) = socket.next().await {
                    if let Message::Text(text) = message?
                        && is_pong(&text)
                    {
                        break;
                    }
                }
            }
            socket.close(None).await
        };
        // A daemon that takes nothing has lost the connection anyway.
        let _ = tokio::time::timeout(LETS_GO_WITHIN, rest).await;
        // Whoever has asked for it waits for this.
        self.orders.close();
    }

    /// Connects again after a break.
    async fn again(&mut self) -> Result<Connected> {
        self.quiet_sockets += 1;
        if self.quiet_sockets > QUIET_SOCKETS {
            return Err(SandboxError::pty("the connection to the terminal session breaks again and again"));
        }
        let daemon = self.shared.daemon(&self.sandbox_id).await?;
        let described = daemon.describe_pty(&self.attach.session_id).await?;
        // To attach to one that has ended would start it again.
        if !described.is_some_and(|described| described.is_running) {
            return Err(SandboxError::pty("the terminal session ended while the connection to it was broken"));
        }
        self.attach.since = self.received;
        self.attach.takeover = true;
        dial(&daemon, &self.attach).await
    }

    async fn follow(&mut self, socket: &mut Socket, sink: &SessionSink<PtyEvent>) -> End {
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                message = socket.next() => {
                    heard = Instant::now();
                    let Some(Ok(message)) = message else { return End::Broken };
                    if let Some(end) = self.take(message, socket, sink).await {
                        return end;
                    }
                }
                Some(order) = self.orders.recv() => {
                    if socket.send(order).await.is_err() {
                        return End::Broken;
                    }
                }
                () = self.session.kill.notified() => {
                    self.delete().await;
                    return End::Exit(ExecExit::new(ExecOutcome::Signalled(9)));
                }
                () = self.session.detached() => return End::Detached,
                () = sink.closed() => return End::Dropped,
                () = tokio::time::sleep_until(heard + SILENT_FOR) => return End::Broken,
            }
        }
    }

    async fn take(&mut self, message: Message, socket: &mut Socket, sink: &SessionSink<PtyEvent>) -> Option<End> {
        match message {
            Message::Binary(data) => {
                self.bytes(data, sink).await;
                None
            }
            Message::Text(text) => {
                let value: Value = serde_json::from_str(&text).unwrap_or_default();
                self.words(&value, socket).await
            }
            Message::Close(frame) => match frame.map(|frame| frame.code) {
                Some(CloseCode::Normal) | None => Some(End::Broken),
                Some(code) if u16::from(code) == TAKEN_OVER => {
                    Some(End::Failed(SandboxError::pty("another client has taken the terminal session over")))
                }
                // Through the server every refusal of the daemon reads like this.
                Some(CloseCode::Policy) => Some(End::Failed(SandboxError::invalid_state(
                    "the terminal session is held by another client, or is gone",
                ))),
                Some(_) => Some(End::Broken),
            },
            _ => None,
        }
    }

    async fn bytes(&mut self, data: Bytes, sink: &SessionSink<PtyEvent>) {
        let Some(channel) = data.first().copied() else { return };
        let rest = data.slice(1..);
        let event = match channel {
            1 => PtyEvent::Output(rest.clone()),
            2 => PtyEvent::Stderr(rest.clone()),
            3 => {
                let Some(offset) = rest.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes) else {
                    return;
                };
                let replay = rest.slice(8..);
                if offset > self.received {
                    self.give(PtyEvent::Gap(offset - self.received), sink).await;
                    self.received = offset;
                }
                let known = usize::try_from(self.received - offset).unwrap_or(usize::MAX).min(replay.len());
                let fresh = replay.slice(known..);
                self.received += fresh.len() as u64;
                if !fresh.is_empty() {
                    self.quiet_sockets = 0;
                    self.give(PtyEvent::Output(fresh), sink).await;
                }
                return;
            }
            _ => return,
        };
        self.received += rest.len() as u64;
        self.quiet_sockets = 0;
        self.give(event, sink).await;
    }

    /// Hands an event over, unless the holder has let go of the session: it does not take it then.
    async fn give(&self, event: PtyEvent, sink: &SessionSink<PtyEvent>) {
        tokio::select! {
            _ = sink.send(event) => {}
            () = self.session.detached() => {}
        }
    }

    async fn words(&mut self, value: &Value, socket: &mut Socket) -> Option<End> {
        match value["type"].as_str().unwrap_or_default() {
            "connected" => {
                if let Some((rows, cols)) = self.size.take()
                    && socket.send(resize(rows, cols)).await.is_err()
                {
                    return Some(End::Broken);
                }
                None
            }
            "exit" => {
                let code = value["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
                Some(End::Exit(ExecExit::new(match code {
                    Some(code @ 0..) => ExecOutcome::Exited(code),
                    // Which signal it was is not told.
                    _ => ExecOutcome::Signalled(9),
                })))
            }
            "error" => match value["code"].as_str().unwrap_or_default() {
                "INVALID_FRAME" | "STDIN_WRITE_FAILED" => None,
                code => {
                    let text = format!("the daemon gave the terminal session up: {}", crate::error::short(code));
                    Some(End::Failed(SandboxError::pty(text)))
                }
            },
            _ => None,
        }
    }

    /// How many bytes of the output never came: what it wrote last races with its end.
    async fn missing(&self) -> Option<u64> {
        let daemon = self.shared.daemon(&self.sandbox_id).await.ok()?;
        let described = daemon.describe_pty(&self.attach.session_id).await.ok()??;
        described.offset.checked_sub(self.received).filter(|missing| *missing > 0)
    }

    async fn delete(&self) {
        if let Ok(daemon) = self.shared.daemon(&self.sandbox_id).await {
            daemon.delete_pty(&self.attach.session_id).await;
        }
    }
}

fn is_pong(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| value["type"] == "pong")
}
