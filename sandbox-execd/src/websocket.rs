//! Requests that become WebSockets.

use hyper::{
    HeaderMap, StatusCode,
    header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE},
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};

use crate::http::{self, Refusal, Request, Response};

pub(crate) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// A handshake that can be answered.
pub(crate) struct Handshake {
    accept: HeaderValue,
    upgrade: OnUpgrade,
}

pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|upgrade| upgrade.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

impl Handshake {
    /// The handshake of a request.
    pub(crate) fn of(mut request: Request) -> Result<Self, Refusal> {
        let refused = || Refusal::bad("this is for WebSockets");
        let key = request.headers().get(SEC_WEBSOCKET_KEY).filter(|_| is_upgrade(request.headers()));
        let accept = derive_accept_key(key.ok_or_else(refused)?.as_bytes());
        let accept = HeaderValue::from_str(&accept).map_err(|_| refused())?;
        Ok(Self { accept, upgrade: hyper::upgrade::on(&mut request) })
    }

    /// Takes it: the answer, and the socket that comes when the answer is sent.
    pub(crate) fn accept(self) -> (Response, impl Future<Output = Option<Socket>>) {
        let mut response = http::empty(StatusCode::SWITCHING_PROTOCOLS);
        let headers = response.headers_mut();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, self.accept);
        let upgrade = self.upgrade;
        let socket = async move {
            let upgraded = upgrade.await.ok()?;
            Some(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await)
        };
        (response, socket)
    }
}
