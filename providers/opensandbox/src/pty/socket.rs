//! The WebSocket of a session, made by the same client as every other call.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::Method;
use sandbox_core::{Result, SandboxError};
use tokio_tungstenite::tungstenite::{Message, protocol::frame::coding::CloseCode};

use crate::{
    daemon::{Daemon, segment},
    error::{Failure, NAME},
    http::Call,
    retry::Backoff,
    websocket::{Socket, upgrade},
};

/// A socket with the first message that came over it: only that tells that the daemon has taken it.
pub(super) struct Connected {
    pub(super) socket: Socket,
    pub(super) first: Message,
}

/// How long the first message may take: evicting a holder takes up to 5 s, and a shell has to start.
const FIRST_WITHIN: Duration = Duration::from_secs(20);

/// How to attach to a session.
#[derive(Clone, Debug)]
pub(super) struct Attach {
    pub(super) session_id: String,
    pub(super) is_terminal: bool,
    /// From which byte of the output on.
    pub(super) since: u64,
    pub(super) takeover: bool,
}

/// Connections that cannot be made are tried again so often.
const BACKOFF: Backoff = Backoff { retries: 5, delay: Duration::from_millis(250), max: Duration::from_secs(8) };

/// Whether another try can help. A session is not changed by a handshake that fails.
fn may_help(failure: &Failure) -> bool {
    match failure {
        Failure::NeverReached(_) | Failure::Broke(_) | Failure::TimedOut(_) => true,
        Failure::Refused(refusal) => !refusal.is_gone() && matches!(refusal.status, 502..=504),
    }
}

/// Connects to a session.
pub(super) async fn dial(daemon: &Daemon<'_>, attach: &Attach) -> Result<Connected> {
    const WHAT: &str = "connecting to a terminal session";
    let path = format!(
        "/pty/{}/ws?pty={}&since={}{}",
        segment(&attach.session_id),
        u8::from(attach.is_terminal),
        attach.since,
        if attach.takeover { "&takeover=1" } else { "" }
    );
    let call = daemon.call(Method::GET, &path);
    let mut attempt = 0;
    loop {
        let failure = match shake(daemon, call.clone()).await {
            Ok(Some(connected)) => return Ok(connected),
            Ok(None) => return Err(held(attach)),
            Err(failure) => failure,
        };
        if attempt >= BACKOFF.retries || !may_help(&failure) {
            if failure.status() == 409 {
                return Err(held(attach));
            }
            return Err(daemon.explain(failure, WHAT).await);
        }
        tokio::time::sleep(BACKOFF.pause(attempt)).await;
        attempt += 1;
    }
}

fn held(attach: &Attach) -> SandboxError {
    let text = format!("terminal session {} is held by another client", attach.session_id);
    SandboxError::invalid_state(text).with_help("ask for a takeover").with_provider(NAME)
}

/// `None` when it was refused through the server, which takes the socket and closes it then.
async fn shake(daemon: &Daemon<'_>, call: Call) -> Result<Option<Connected>, Failure> {
    let mut socket = upgrade(daemon, call).await?;
    let first = tokio::time::timeout(FIRST_WITHIN, socket.next()).await;
    match first.map_err(|_| Failure::TimedOut(FIRST_WITHIN))? {
        Some(Ok(Message::Close(Some(frame)))) if frame.code == CloseCode::Policy => Ok(None),
        Some(Ok(Message::Close(_))) | None => Err(Failure::Broke("the socket was closed at once".to_owned())),
        Some(Ok(first)) => Ok(Some(Connected { socket, first })),
        Some(Err(error)) => Err(Failure::Broke(error.to_string())),
    }
}
