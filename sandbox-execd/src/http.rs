//! Requests and answers.

use std::{convert::Infallible, io, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    StatusCode,
    body::{Frame, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
};
use sandbox_core::{ErrorKind, SandboxError};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
pub(crate) type Request = hyper::Request<Incoming>;
pub(crate) type Response = hyper::Response<Body>;

/// What is read of a request that is JSON.
const JSON_BYTES: usize = 64 * 1024 * 1024;

/// Pieces of an answer that wait for a slow client before their source waits.
const WAITING_PIECES: usize = 4;

/// What is gathered at most before the start of an answer is sent.
const GATHERED_BYTES: usize = 64 * 1024;

/// Feeds the body of an answer. An error in place of a piece cuts the connection.
pub(crate) type Pieces = mpsc::Sender<io::Result<Bytes>>;

fn with(status: StatusCode, kind: Option<&'static str>, body: Body) -> Response {
    let mut response = hyper::Response::new(body);
    *response.status_mut() = status;
    if let Some(kind) = kind {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    response
}

fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

pub(crate) fn empty(status: StatusCode) -> Response {
    with(status, None, whole(Bytes::new()))
}

pub(crate) fn ok() -> Response {
    empty(StatusCode::OK)
}

pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Response {
    with(status, Some("text/plain"), whole(text))
}

pub(crate) fn json(status: StatusCode, value: &Value) -> Response {
    with(status, Some("application/json"), whole(value.to_string()))
}

/// An answer whose body comes in pieces.
pub(crate) fn streamed(kind: &'static str) -> (Pieces, Response) {
    let (sender, receiver) = pieces();
    (sender, with(StatusCode::OK, Some(kind), in_pieces([], receiver)))
}

/// The pieces of a body, on their way from who feeds it.
pub(crate) fn pieces() -> (Pieces, mpsc::Receiver<io::Result<Bytes>>) {
    mpsc::channel(WAITING_PIECES)
}

/// An answer whose pieces of the first moments wait for each other and are sent as one: a proxy has the same work with each
/// of them. One that has ended by then is sent whole, with its length.
pub(crate) async fn gathered(
    kind: &'static str,
    mut receiver: mpsc::Receiver<io::Result<Bytes>>,
    time: Duration,
) -> Response {
    if time.is_zero() {
        return with(StatusCode::OK, Some(kind), in_pieces([], receiver));
    }
    let (mut first, end) = (BytesMut::new(), Instant::now() + time);
    let over = loop {
        match tokio::time::timeout_at(end, receiver.recv()).await {
            Ok(Some(Ok(piece))) if first.len() + piece.len() <= GATHERED_BYTES => first.extend_from_slice(&piece),
            Ok(Some(piece)) => break Some(piece),
            Ok(None) => return with(StatusCode::OK, Some(kind), whole(first)),
            Err(_) => break None,
        }
    };
    let first = (!first.is_empty()).then(|| Ok(first.freeze()));
    let there: Vec<_> = first.into_iter().chain(over).collect();
    with(StatusCode::OK, Some(kind), in_pieces(there, receiver))
}

/// A body of what is there already, and what is still to come.
fn in_pieces(
    there: impl IntoIterator<Item = io::Result<Bytes>, IntoIter: Send + 'static>,
    receiver: mpsc::Receiver<io::Result<Bytes>>,
) -> Body {
    let rest = stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    let all = stream::iter(there).chain(rest).map(|piece| piece.map(Frame::data));
    StreamBody::new(all).boxed_unsync()
}

/// Why a request is refused, in the words of the API.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

/// What a route gives.
pub(crate) type Answer = Result<Response, Refusal>;

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// A request that cannot be meant.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID_REQUEST_BODY", message)
    }

    /// Work that failed.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", message)
    }

    pub(crate) fn missing_query(name: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "MISSING_QUERY", format!("missing query parameter '{name}'"))
    }

    /// A session that is not there.
    pub(crate) fn no_context() -> Self {
        Self::new(StatusCode::NOT_FOUND, "CONTEXT_NOT_FOUND", "context not found")
    }

    pub(crate) fn response(&self) -> Response {
        json(self.status, &json!({ "code": self.code, "message": self.message }))
    }
}

/// What the agent said no to.
impl From<SandboxError> for Refusal {
    fn from(error: SandboxError) -> Self {
        match error.kind() {
            ErrorKind::InvalidInput => Self::bad(error.message()),
            _ => Self::failed(error.message()),
        }
    }
}

/// The body of a request as JSON; of an empty one the default.
pub(crate) async fn read_json<T: DeserializeOwned + Default>(body: Incoming) -> Result<T, Refusal> {
    let read = Limited::new(body, JSON_BYTES).collect().await;
    let bytes = read.map_err(|_| Refusal::bad(format!("the body broke off, or has more than {JSON_BYTES} bytes")))?;
    let bytes = bytes.to_bytes();
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    parse(&bytes).ok_or_else(|| Refusal::bad("error parsing request: the body is no JSON of the right form"))
}

/// JSON as its type. A member that is null counts as left out, as with execd; what is wrong with the rest is not told: the
/// text of an error could quote it.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let mut value = serde_json::from_slice(bytes).ok()?;
    leave_nulls_out(&mut value);
    serde_json::from_value(value).ok()
}

fn leave_nulls_out(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(leave_nulls_out);
        }
        Value::Array(items) => items.iter_mut().for_each(leave_nulls_out),
        _ => {}
    }
}

/// The values of a query, decoded.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn of(request: &Request) -> Self {
        let text = request.uri().query().unwrap_or_default();
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(name, value)| (decode(name, true), decode(value, true)))
                .collect(),
        )
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        let parse = |text: &str| text.parse().map_err(|_| Refusal::bad(format!("{name} must be a number")));
        self.get(name).filter(|text| !text.is_empty()).map(parse).transpose()
    }
}

/// Text with `%41` and, in a query, `+` put right.
pub(crate) fn decode(text: &str, is_query: bool) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[at], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 2;
            }
            (b'+', _) if is_query => decoded.push(b' '),
            (byte, _) => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{decode, parse};

    #[test]
    fn a_null_is_as_if_it_were_not_there() {
        let read: Option<std::collections::BTreeMap<String, u8>> = parse(br#"{"a": null, "b": 1}"#);
        assert_eq!(read, Some([("b".to_owned(), 1)].into()));
        assert_eq!(parse::<Vec<u8>>(b"[null]"), None);
    }

    #[test]
    fn what_is_encoded_is_decoded_and_the_rest_is_left() {
        assert_eq!(decode("a%2Fb+c%zz%", true), "a/b c%zz%");
        assert_eq!(decode("a+b%C3%A9", false), "a+b\u{e9}");
    }
}
