//! A little of HTTP/1.1, over a unix socket that leads to a server: one request, one answer, in constant memory.
//!
//! Without TLS, names and redirects: whatever serves the socket does the first two, and a redirect is a failure.

use std::{ffi::OsString, io, os::unix::ffi::OsStringExt, path::PathBuf, time::Duration};

use bytes::{Bytes, BytesMut};
use sandbox_core::{ErrorKind, Result, SandboxError};
use sandbox_protocol::{Body, BodySender, methods::HttpPlace};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use super::port::CONNECT_LIMIT;

/// How long nothing may move.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// The longest head of an answer, in bytes.
const HEAD_MAX_BYTES: usize = 16 * 1024;
/// How much of a refusal is read.
const REFUSAL_MAX_BYTES: usize = 4 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;

/// A server and what is meant of it, checked.
pub(super) struct Request {
    socket: PathBuf,
    host: String,
    target: String,
}

/// An answer whose head has come.
#[derive(Debug)]
pub(super) struct Answer {
    stream: UnixStream,
    /// What came behind the head already.
    rest: BytesMut,
    length: u64,
}

impl Request {
    /// # Errors
    /// `InvalidInput` for what cannot stand in a request.
    pub(super) fn new(place: HttpPlace) -> Result<Self> {
        let target = place.target.expose().to_owned();
        let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_plain(&place.host) || !is_plain(&target) || !target.starts_with('/') {
            return Err(SandboxError::invalid_input("place", "needs a host and a path without blanks"));
        }
        if !place.socket.as_bytes().starts_with(b"/") {
            return Err(SandboxError::invalid_input("place.socket", "must be an absolute path"));
        }
        let socket = PathBuf::from(OsString::from_vec(place.socket.into_bytes()));
        Ok(Self { socket, host: place.host, target })
    }

    async fn connect(&self) -> Result<UnixStream> {
        let failed = |why: String| SandboxError::unavailable(format!("the way to the HTTP server: {why}"));
        match timeout(CONNECT_LIMIT, UnixStream::connect(&self.socket)).await {
            Ok(stream) => stream.map_err(|error| failed(error.to_string())),
            Err(_) => Err(failed("no answer in time".to_owned())),
        }
    }

    fn head(&self, method: &str, more: &str) -> String {
        let Self { target, host, .. } = self;
        format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAccept: */*\r\n{more}\r\n")
    }

    /// Asks for the object; its bytes are still to be read.
    ///
    /// # Errors
    /// What the server refuses with; `Unavailable` where it is not reached.
    pub(super) async fn get(self) -> Result<Answer> {
        let mut stream = self.connect().await?;
        in_time(stream.write_all(self.head("GET", "").as_bytes())).await?;
        Answer::read(stream).await
    }

    /// Sends so many bytes of a body as the object.
    ///
    /// # Errors
    /// As [`Request::get`]; what the body fails with, and `Lost` where it is shorter.
    pub(super) async fn put(self, size: u64, mut body: Body) -> Result<()> {
        let mut stream = self.connect().await?;
        let head = self.head("PUT", &format!("Content-Length: {size}\r\n"));
        let mut left = size;
        let mut sent = in_time(stream.write_all(head.as_bytes())).await;
        while sent.is_ok() && left > 0 {
            let Some(bytes) = body.next().await? else {
                return Err(SandboxError::invalid_state("the file became shorter while it was sent"));
            };
            let part = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            left -= part.len() as u64;
            sent = in_time(stream.write_all(part)).await;
        }
        // A server that takes no more says why, often.
        match (Answer::read(stream).await, sent) {
            (Ok(_), Ok(())) => Ok(()),
            (Ok(_), Err(error)) => Err(error),
            (Err(error), Err(broken)) if is_broken(&error) => Err(broken),
            (Err(error), _) => Err(error),
        }
    }
}

impl Answer {
    async fn read(mut stream: UnixStream) -> Result<Self> {
        let mut text = BytesMut::with_capacity(HEAD_MAX_BYTES);
        let end = loop {
            if let Some(at) = text.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if text.len() >= HEAD_MAX_BYTES {
                return Err(broken("an answer without an end of its head"));
            }
            if in_time(stream.read_buf(&mut text)).await? == 0 {
                return Err(broken("it closed the connection without an answer"));
            }
        };
        let head = text.split_to(end);
        let (status, length) = parse(&head).ok_or_else(|| broken("an answer that is none"))?;
        let mut answer = Self { stream, rest: text, length: length.unwrap_or(0) };
        match status {
            200..300 => Ok(answer),
            status => Err(answer.refusal(status).await),
        }
    }

    /// How many bytes it says that it has.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    async fn refusal(&mut self, status: u16) -> SandboxError {
        let mut text = std::mem::take(&mut self.rest);
        while text.len() < REFUSAL_MAX_BYTES.min(usize::try_from(self.length).unwrap_or(REFUSAL_MAX_BYTES)) {
            match in_time(self.stream.read_buf(&mut text)).await {
                Ok(1..) => {}
                _ => break,
            }
        }
        let text = String::from_utf8_lossy(&text);
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
        let code: String = code.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).take(64).collect();
        let kind = match status {
            401 | 403 => ErrorKind::PermissionDenied,
            404 => ErrorKind::NotFound,
            429 | 503 => ErrorKind::Exhausted,
            500.. => ErrorKind::Unavailable,
            _ => ErrorKind::Internal,
        };
        SandboxError::new(kind, format!("the HTTP server refused: {status} {code}").trim_end().to_owned())
    }

    /// Hands the bytes on; fewer than were said are a failure.
    pub(super) async fn send_to(mut self, sender: BodySender) {
        let mut left = self.length;
        while left > 0 {
            if self.rest.is_empty() {
                self.rest.reserve(CHUNK_BYTES);
                match in_time(self.stream.read_buf(&mut self.rest)).await {
                    Ok(1..) => {}
                    Ok(0) => return sender.fail(broken("its answer broke off")).await,
                    Err(error) => return sender.fail(error).await,
                }
            }
            let count = self.rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let bytes: Bytes = self.rest.split_to(count).freeze();
            left -= count as u64;
            if !sender.send(bytes).await {
                return;
            }
        }
        sender.finish().await;
    }
}

/// Status and length of an answer.
fn parse(head: &[u8]) -> Option<(u16, Option<u64>)> {
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let status = words.next().filter(|version| version.starts_with("HTTP/1.")).and_then(|_| words.next())?;
    let mut length = None;
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = Some(value.trim().parse().ok()?),
            // Whoever asks knows how long it is; so does the server.
            "transfer-encoding" => return None,
            _ => {}
        }
    }
    Some((status.parse().ok()?, length))
}

fn broken(what: &str) -> SandboxError {
    SandboxError::unavailable(format!("the HTTP server: {what}"))
}

fn is_broken(error: &SandboxError) -> bool {
    error.kind() == ErrorKind::Unavailable
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> Result<T> {
    match timeout(IDLE_LIMIT, work).await {
        Ok(done) => done.map_err(|error| broken(&error.to_string())),
        Err(_) => Err(SandboxError::timed_out(format!("the HTTP server: nothing moved for {IDLE_LIMIT:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn only_an_answer_of_this_protocol_with_a_plain_length_is_one() {
        for (head, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 12\r\nA: b\r\n\r\n", Some((200, Some(12)))),
            ("HTTP/1.0 403 no\r\n\r\n", Some((403, None))),
            ("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", None),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None),
            ("HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", None),
            ("SSH-2.0 200\r\n\r\n", None),
            ("HTTP/1.1\r\n\r\n", None),
            ("\r\n\r\n", None),
        ] {
            assert_eq!(parse(head.as_bytes()), expected, "{head:?}");
        }
        assert_eq!(parse(b"HTTP/1.1 200 \xff\r\n\r\n"), None);
    }
}
