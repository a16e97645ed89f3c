//! The little of an HTTP server that the doubles need.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::Stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    StatusCode,
    body::{Frame, Incoming},
    header::CONTENT_TYPE,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
pub(crate) type Request = hyper::Request<Incoming>;
pub(crate) type Response = hyper::Response<Body>;

/// An answer, or none: the connection is dropped without one.
pub(crate) type Answer = Result<Response, Dropped>;

/// The connection is to end without an answer.
#[derive(Debug)]
pub(crate) struct Dropped;

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is dropped on purpose")
    }
}

impl std::error::Error for Dropped {}

/// A listening server. Dropping it ends it and every connection.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// How many connections have come so far.
    pub(crate) fn connections(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves a listener with a handler.
pub(crate) fn serve_with<F, W>(listener: TcpListener, handler: F) -> io::Result<Server>
where
    F: Fn(Request) -> W + Send + Sync + 'static,
    W: Future<Output = Answer> + Send + 'static,
{
    let address = listener.local_addr()?;
    let handler = Arc::new(handler);
    let accepted = Arc::<AtomicUsize>::default();
    let count = accepted.clone();
    let task = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    count.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.set_nodelay(true);
                    let handler = handler.clone();
                    connections.spawn(async move {
                        let service = service_fn(move |request| handler(request));
                        // A client that goes away is no concern of the server's.
                        let _ = hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .with_upgrades()
                            .await;
                    });
                }
                Some(_) = connections.join_next() => {}
            }
        }
    });
    Ok(Server { address, accepted, task })
}

/// Serves an execd on a listener.
pub(crate) fn serve(execd: Arc<crate::Execd>, listener: TcpListener) -> io::Result<Server> {
    let own = listener.local_addr()?.port();
    serve_with(listener, move |request| {
        let execd = execd.clone();
        async move { execd.handle(request, own).await }
    })
}

pub(crate) fn full(status: u16, kind: Option<&str>, body: impl Into<Bytes>) -> Response {
    let body = Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed_unsync();
    let mut response = hyper::Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("a status of ours");
    if let Some(kind) = kind {
        response.headers_mut().insert(CONTENT_TYPE, kind.parse().expect("a type of ours"));
    }
    response
}

pub(crate) fn empty(status: u16) -> Response {
    full(status, None, Bytes::new())
}

pub(crate) fn json(status: u16, value: &Value) -> Response {
    full(status, Some("application/json"), value.to_string())
}

pub(crate) fn failure(status: u16, code: &str, message: impl AsRef<str>) -> Response {
    json(status, &serde_json::json!({ "code": code, "message": message.as_ref() }))
}

/// A body of the pieces that come.
pub(crate) fn body_of(receiver: mpsc::Receiver<io::Result<Bytes>>) -> Body {
    StreamBody::new(pieces(receiver)).boxed_unsync()
}

fn pieces(receiver: mpsc::Receiver<io::Result<Bytes>>) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
    futures_util::stream::unfold(receiver, |mut receiver| async move {
        let piece = receiver.recv().await?;
        Some((piece.map(Frame::data), receiver))
    })
}

pub(crate) async fn read_all(body: Incoming) -> Option<Bytes> {
    body.collect().await.ok().map(http_body_util::Collected::to_bytes)
}

/// The values of a query, decoded.
pub(crate) fn query(request: &Request) -> Vec<(String, String)> {
    let text = request.uri().query().unwrap_or_default();
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

pub(crate) fn value_of<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

pub(crate) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[at], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 3;
                continue;
            }
            (b'+', _) => decoded.push(b' '),
            (byte, _) => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
