//! Passing a request on to a port of the sandbox, with what it upgrades to.

use std::{io, time::Duration};

use http_body_util::BodyExt;
use hyper::{
    StatusCode, Uri,
    header::{CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::http::{Refusal, Request, Response};

/// How long a connection inside may take: a listener that is there answers at once.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Headers that are about one connection only.
const HOP_BY_HOP: [&str; 7] = [
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
];

fn unreachable(why: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_GATEWAY, "UNKNOWN", why)
}

/// The answer of a port of this sandbox under another path.
pub(crate) async fn forward(request: Request, port: u16, path: &str) -> Response {
    try_forward(request, port, path).await.unwrap_or_else(|refusal| refusal.response())
}

async fn try_forward(mut request: Request, port: u16, path: &str) -> Result<Response, Refusal> {
    let connecting = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(("127.0.0.1", port))).await;
    let stream = connecting.ok().and_then(Result::ok).ok_or_else(|| unreachable("nobody listens on the port"))?;
    let _ = stream.set_nodelay(true);
    let broken = |_: hyper::Error| unreachable("what listens on the port broke off");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(connection.with_upgrades());
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let target = format!("{path}{query}").parse::<Uri>();
    *request.uri_mut() = target.map_err(|_| Refusal::bad("the path cannot be passed on"))?;
    let is_upgrade = request.headers().contains_key(UPGRADE);
    clean(request.headers_mut(), is_upgrade);
    let host = HeaderValue::from_str(&format!("127.0.0.1:{port}")).map_err(|_| Refusal::bad("the port is none"))?;
    request.headers_mut().insert(HOST, host);
    let client = is_upgrade.then(|| hyper::upgrade::on(&mut request));
    let mut response = sender.send_request(request).await.map_err(broken)?;
    let is_switching = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let Some(client) = client.filter(|_| is_switching) {
        let server = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
            let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
        });
    }
    clean(response.headers_mut(), is_switching);
    let (parts, body) = response.into_parts();
    Ok(Response::from_parts(parts, body.map_err(io::Error::other).boxed_unsync()))
}

/// Takes out what is about the connection; an upgrade is about both.
fn clean(headers: &mut hyper::HeaderMap, is_upgrade: bool) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().filter(|name| !is_upgrade || **name != UPGRADE) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(CONNECTION);
    if is_upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}
