//! The websocket of a terminal, over the same HTTP client: the same encryption, proxies and credentials.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{Method, StatusCode, Upgraded};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::protocol::{Role, WebSocketConfig},
};

use crate::{
    client::{Client, broken},
    error::Failure,
    gate::Throttle,
    random::random_hex,
};

pub(crate) type Socket = WebSocketStream<Upgraded>;

const CONNECT_WITHIN: Duration = Duration::from_secs(30);

/// The largest message that is taken.
const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// Connects to a terminal.
pub(crate) async fn connect(client: &Client, url: &str) -> Result<Socket, Failure> {
    let random = random_hex(8).map_err(|error| Failure::NotSent(error.message().to_owned()))?;
    let request = client
        .request(Method::GET, url)
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", STANDARD.encode(random.as_bytes()))
        .header("Sec-WebSocket-Protocol", "X-Daytona-Pty-Exit-Control");
    let connected = async {
        let response = client.send(request, Throttle::Other).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::Broken("the service did not switch to a websocket".to_owned()));
        }
        let upgraded = response.upgrade().await.map_err(broken)?;
        let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE_BYTES));
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
    };
    tokio::time::timeout(CONNECT_WITHIN, connected).await.map_err(|_| Failure::TimedOut)?
}
