//! WebSockets of the daemon, made by the same client as every other call.

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::header::{CONNECTION, HeaderValue, UPGRADE};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};

use crate::{daemon::Daemon, error::Failure, http::Call};

pub(crate) type Socket = WebSocketStream<reqwest::Upgraded>;

/// Makes a WebSocket of a call.
pub(crate) async fn upgrade(daemon: &Daemon<'_>, mut call: Call) -> Result<Socket, Failure> {
    let key = STANDARD.encode(crate::exec::token().as_bytes().get(..16).unwrap_or_default());
    let word = HeaderValue::from_static;
    call.headers.insert(CONNECTION, word("Upgrade"));
    call.headers.insert(UPGRADE, word("websocket"));
    call.headers.insert("sec-websocket-version", word("13"));
    if let Ok(value) = HeaderValue::from_str(&key) {
        call.headers.insert("sec-websocket-key", value);
    }
    let response = daemon.shared.http.start(&call, None).await?;
    let accepted = response.headers().get("sec-websocket-accept").and_then(|value| value.to_str().ok());
    if response.status().as_u16() != 101 || accepted != Some(derive_accept_key(key.as_bytes()).as_str()) {
        return Err(Failure::Broke("the answer is no WebSocket".to_owned()));
    }
    let upgraded = response.upgrade().await.map_err(|error| Failure::Broke(error.to_string()))?;
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await)
}
