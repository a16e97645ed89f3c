//! Passing a request on to another server, and what it upgrades to.

use http_body_util::BodyExt;
use hyper::{
    Uri,
    header::{CONNECTION, CONTENT_TYPE, HOST, HeaderMap, UPGRADE},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::derive_accept_key,
        protocol::{CloseFrame, Role, frame::coding::CloseCode},
    },
};

use crate::http::{Answer, Dropped, Request, Response, failure};

/// Why nothing came back.
pub(crate) enum ProxyError {
    /// Nobody listens.
    Connect,
    /// It broke off.
    Response,
}

impl ProxyError {
    pub(crate) fn response(&self) -> Response {
        match self {
            Self::Connect => failure(502, "BACKEND_CONNECTION_FAILED", "the sandbox cannot be reached"),
            Self::Response => failure(502, "BACKEND_RESPONSE_FAILED", "the sandbox broke off"),
        }
    }
}

/// The client of a request for a WebSocket.
pub(crate) struct ClientSocket {
    accept: String,
    upgrade: hyper::upgrade::OnUpgrade,
}

impl ClientSocket {
    /// `None` when the request is for something else, which it stays good for in any case.
    pub(crate) fn of(request: &mut Request) -> Option<Self> {
        let accept = derive_accept_key(request.headers().get("sec-websocket-key")?.as_bytes());
        let upgrade = hyper::upgrade::on(&mut *request);
        request.extensions_mut().insert(upgrade.clone());
        Some(Self { accept, upgrade })
    }

    /// What the real server does when the sandbox refuses: it takes the socket and closes it, without a reason.
    pub(crate) fn refuse(self) -> Response {
        tokio::spawn(async move {
            let Ok(upgraded) = self.upgrade.await else { return };
            let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            let _ = socket.close(Some(CloseFrame { code: CloseCode::Policy, reason: "".into() })).await;
        });
        upgrade_to_socket(&self.accept)
    }
}

/// The answer that makes the connection a WebSocket.
pub(crate) fn upgrade_to_socket(accept: &str) -> Response {
    let mut response = crate::http::empty(101);
    let headers = response.headers_mut();
    headers.insert(UPGRADE, "websocket".parse().expect("a word"));
    headers.insert(CONNECTION, "Upgrade".parse().expect("a word"));
    headers.insert("sec-websocket-accept", accept.parse().expect("base64"));
    response
}

/// Sends a request to a server of this host under another path, without the headers that are named.
pub(crate) async fn forward<B>(
    request: hyper::Request<B>,
    port: u16,
    path: &str,
    without: &[&str],
) -> Result<Answer, ProxyError>
where
    B: hyper::body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    forward_until(request, port, path, without, std::future::pending()).await
}

/// The same; what it upgrades to breaks when `broken` resolves, and so does a stream of events.
pub(crate) async fn forward_until<B>(
    mut request: hyper::Request<B>,
    port: u16,
    path: &str,
    without: &[&str],
    broken: impl Future<Output = ()> + Send + 'static,
) -> Result<Answer, ProxyError>
where
    B: hyper::body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(|_| ProxyError::Connect)?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|_| ProxyError::Response)?;
    tokio::spawn(connection.with_upgrades());
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    *request.uri_mut() = format!("{path}{query}").parse::<Uri>().map_err(|_| ProxyError::Response)?;
    let is_upgrade = request.headers().contains_key(UPGRADE);
    let headers = request.headers_mut();
    headers.insert(HOST, format!("127.0.0.1:{port}").parse().expect("an address"));
    without.iter().for_each(|name| drop(headers.remove(*name)));
    if !is_upgrade {
        headers.remove(CONNECTION);
    }
    let client = is_upgrade.then(|| hyper::upgrade::on(&mut request));
    let mut response = sender.send_request(request).await.map_err(|_| ProxyError::Response)?;
    let Some(client) = client.filter(|_| response.status() == 101) else {
        let is_stream = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        return Ok(Ok(if is_stream { breaking(plain(response), broken) } else { plain(response) }));
    };
    let server = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
            () = broken => {}
        }
    });
    let headers = response.headers().clone();
    Ok(Ok(switching(headers)))
}

fn plain(response: hyper::Response<hyper::body::Incoming>) -> Response {
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(CONNECTION);
    Response::from_parts(parts, body.map_err(|_| std::io::Error::other(Dropped)).boxed_unsync())
}

/// The same response, whose body breaks off when `broken` resolves.
fn breaking(response: Response, broken: impl Future<Output = ()> + Send + 'static) -> Response {
    let (parts, mut body) = response.into_parts();
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    tokio::spawn(async move {
        let mut broken = std::pin::pin!(broken);
        loop {
            let piece = tokio::select! {
                frame = body.frame() => match frame {
                    Some(Ok(frame)) => frame.into_data().map_err(|_| std::io::Error::other(Dropped)),
                    Some(Err(error)) => Err(error),
                    None => return,
                },
                () = &mut broken => Err(std::io::Error::other(Dropped)),
            };
            let is_over = piece.is_err();
            if sender.send(piece).await.is_err() || is_over {
                return;
            }
        }
    });
    Response::from_parts(parts, crate::http::body_of(receiver))
}

fn switching(headers: HeaderMap) -> Response {
    let mut response = crate::http::empty(101);
    *response.headers_mut() = headers;
    response
}
