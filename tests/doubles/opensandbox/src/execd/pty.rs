//! Terminal sessions over WebSockets.

use std::{sync::Arc, time::Duration};

use futures_util::{SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use sandbox_process::TerminalSize;
use serde_json::{Value, json};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role, frame::coding::CloseCode},
    },
};

use super::{Execd, lock, new_id, pty_session::PtySession};
use crate::http::{self, Request, Response, empty, failure, query, value_of};
use crate::proxy::upgrade_to_socket;

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

fn text(value: &Value) -> Message {
    Message::text(value.to_string())
}

fn close(code: u16, reason: &str) -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::from(code), reason: reason.to_owned().into() }))
}

fn framed(channel: u8, data: &[u8]) -> Message {
    let mut frame = vec![channel];
    frame.extend_from_slice(data);
    Message::binary(frame)
}

impl Execd {
    pub(super) async fn create_pty(&self, request: Request) -> Response {
        let body = http::read_all(request.into_body()).await.unwrap_or_default();
        let wanted: Value = serde_json::from_slice(&body).unwrap_or_default();
        let cwd = wanted["cwd"].as_str().filter(|cwd| !cwd.is_empty()).unwrap_or("/").to_owned();
        if std::fs::create_dir_all(&cwd).is_err() {
            return failure(500, "RUNTIME_ERROR", "the folder cannot be made");
        }
        let id = new_id();
        let session = PtySession::new(cwd, wanted["command"].as_str().map(str::to_owned));
        lock(&self.ptys).insert(id.clone(), Arc::new(session));
        http::json(201, &json!({ "session_id": id }))
    }

    pub(super) fn pty_status(&self, id: &str) -> Response {
        let Some(session) = lock(&self.ptys).get(id).cloned() else { return unknown() };
        let state = lock(&session.state);
        let is_running = state.controller.is_some();
        http::json(200, &json!({ "session_id": id, "running": is_running, "output_offset": state.offset }))
    }

    pub(super) fn delete_pty(&self, id: &str) -> Response {
        let Some(session) = lock(&self.ptys).remove(id) else { return unknown() };
        if let Some(controller) = &lock(&session.state).controller {
            controller.kill_tree_now();
        }
        empty(200)
    }

    pub(super) async fn attach_pty(self: &Arc<Self>, id: &str, mut request: Request) -> Response {
        let Some(session) = lock(&self.ptys).get(id).cloned() else { return unknown() };
        let key = request.headers().get("sec-websocket-key").map(|key| derive_accept_key(key.as_bytes()));
        let Some(accept) = key else { return failure(400, "INVALID_REQUEST_BODY", "no WebSocket") };
        let query = query(&request);
        let is_terminal = value_of(&query, "pty") != Some("0");
        let since = value_of(&query, "since").and_then(|since| since.parse().ok()).unwrap_or(0);
        let takeover = value_of(&query, "takeover") == Some("1");
        let turn = {
            let mut state = lock(&session.state);
            if state.is_attached && !takeover {
                return failure(409, "ALREADY_CONNECTED", "another client is attached");
            }
            state.is_attached = true;
            let turn = *session.turn.borrow() + 1;
            session.turn.send_replace(turn);
            turn
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let (execd, id) = (self.clone(), id.to_owned());
        tokio::spawn(async move {
            let Ok(upgraded) = upgrade.await else { return };
            let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            execd.converse(socket, &session, &id, is_terminal, since, turn).await;
            if *session.turn.borrow() == turn {
                lock(&session.state).is_attached = false;
            }
        });
        upgrade_to_socket(&accept)
    }

    async fn converse(
        &self,
        mut socket: Socket,
        session: &Arc<PtySession>,
        id: &str,
        is_terminal: bool,
        since: u64,
        turn: u64,
    ) {
        // What a new process writes from now on is no replay, in which its streams would be one.
        let before = lock(&session.state).offset;
        if let Err(why) = session.start(self, is_terminal).await {
            let _ = socket.send(text(&json!({ "type": "error", "code": "START_FAILED", "error": why }))).await;
            return;
        }
        let mut sent = {
            let (from, to, pieces) = {
                let state = lock(&session.state);
                let to = before.max(state.first_offset);
                let from = since.max(state.first_offset).min(to);
                (from, to, state.since(from))
            };
            let kept = usize::try_from(to - from).unwrap_or(usize::MAX);
            let replay: Vec<u8> = pieces.into_iter().flat_map(|(_, data)| data).take(kept).collect();
            let end = from + replay.len() as u64;
            if !replay.is_empty() {
                let mut frame = vec![3];
                frame.extend_from_slice(&from.to_be_bytes());
                frame.extend_from_slice(&replay);
                let _ = socket.send(Message::binary(frame)).await;
            }
            end
        };
        let mode = if is_terminal { "pty" } else { "pipe" };
        let _ = socket.send(text(&json!({ "type": "connected", "session_id": id, "mode": mode }))).await;
        let (mut to_client, mut from_client) = socket.split();
        let mut turns = session.turn.subscribe();
        loop {
            let changed = session.changed.notified();
            let (pieces, exit) = {
                let state = lock(&session.state);
                (state.since(sent.max(state.first_offset)), state.exit_code)
            };
            for (channel, data) in &pieces {
                sent += data.len() as u64;
                for piece in data.chunks(32 * 1024) {
                    if to_client.send(framed(if is_terminal { 1 } else { *channel }, piece)).await.is_err() {
                        return;
                    }
                }
            }
            if let (Some(code), true) = (exit, pieces.is_empty()) {
                let _ = to_client.send(text(&json!({ "type": "exit", "exit_code": code }))).await;
                let _ = to_client.send(close(1000, "process exited")).await;
                let _ = tokio::time::timeout(Duration::from_secs(2), from_client.next()).await;
                return;
            }
            if !pieces.is_empty() {
                continue;
            }
            tokio::select! {
                () = changed => {}
                // What came between the look and the wait is seen here.
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
                () = replaced(&mut turns, turn) => {
                    let _ = to_client.send(close(4001, "TAKEN_OVER")).await;
                    return;
                }
                message = from_client.next() => {
                    let Some(Ok(message)) = message else { return };
                    let Some(reply) = take(session, message).await else { continue };
                    let _ = to_client.send(reply).await;
                }
            }
        }
    }
}

fn unknown() -> Response {
    failure(404, "CONTEXT_NOT_FOUND", "no such session")
}

/// Resolves when another client has the turn.
async fn replaced(turns: &mut tokio::sync::watch::Receiver<u64>, turn: u64) {
    let _ = turns.wait_for(|now| *now != turn).await;
}

/// Does what a client says, and gives the answer.
async fn take(session: &PtySession, message: Message) -> Option<Message> {
    let controller = lock(&session.state).controller.clone();
    match message {
        Message::Binary(data) if data.first() == Some(&0) => {
            if let Some(controller) = controller {
                let _ = controller.write_stdin(&data[1..]).await;
            }
            None
        }
        Message::Text(words) => {
            let order: Value = serde_json::from_str(&words).ok()?;
            match order["type"].as_str()? {
                "resize" => {
                    let size = |name: &str| order[name].as_u64().and_then(|size| u16::try_from(size).ok());
                    let (rows, cols) = (size("rows")?, size("cols")?);
                    let _ = controller?.resize(TerminalSize { rows, cols });
                    None
                }
                "signal" => {
                    let signal = match order["signal"].as_str()? {
                        "SIGHUP" => 1,
                        "SIGINT" => 2,
                        "SIGQUIT" => 3,
                        "SIGKILL" => 9,
                        "SIGTERM" => 15,
                        _ => return None,
                    };
                    let _ = controller?.signal(signal);
                    None
                }
                "ping" => Some(text(&json!({ "type": "pong" }))),
                _ => Some(text(&json!({ "type": "error", "code": "INVALID_FRAME", "error": "unknown type" }))),
            }
        }
        _ => None,
    }
}
