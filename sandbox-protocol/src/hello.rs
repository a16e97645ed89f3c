//! The handshake: the client shows who it is, then the server does.

use std::collections::BTreeSet;

use sandbox_core::{ErrorKind, Result, SandboxError, Secret};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::{
    CloseCause, CloseReason, FrameReader, ServerOptions, Violation,
    frame::{Frame, FrameKind},
    limits::{HANDSHAKE_LIMIT, MAX_WINDOW_BYTES, MIN_WINDOW_BYTES},
    wire_error,
};

/// What a HELLO must name.
pub const MAGIC: &str = "sandbox-protocol";

/// The generation of this side. The lower one of both sides is spoken.
pub const GENERATION: u32 = 1;

/// The oldest generation that this side still speaks.
pub const MIN_GENERATION: u32 = 1;

/// The feature of a server that takes file descriptors: the connection is a unix socket between two processes of one
/// kernel, and [`Client::connect_unix`](crate::Client::connect_unix) sends them beside its frames.
pub const FEATURE_FD_PASSING: &str = "fd_passing";

/// The first frame of a side, as JSON. Keys of a newer peer are skipped.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hello {
    pub(crate) magic: String,
    pub(crate) generation: u32,
    /// The newest release text, for people only.
    pub(crate) version: String,
    pub(crate) features: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Secret>,
    pub(crate) limits: HelloLimits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HelloLimits {
    /// Credit that the peer starts with on each stream.
    pub(crate) window_bytes: u32,
    /// Streams that the peer may have open.
    pub(crate) max_streams: u32,
}

/// What the other side said of itself, and what both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    generation: u32,
    version: String,
    features: BTreeSet<String>,
    pub(crate) limits: HelloLimits,
}

impl PeerInfo {
    fn new(hello: Hello) -> Self {
        let generation = hello.generation.min(GENERATION);
        Self { generation, version: hello.version, features: hello.features, limits: hello.limits }
    }

    /// The generation that is spoken: the lower one of both sides.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The release of the other side, for people.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Everything that the other side can do: names of methods, and of features beyond them.
    pub fn features(&self) -> impl Iterator<Item = &str> {
        self.features.iter().map(String::as_str)
    }

    /// Whether the other side can do this.
    pub fn has(&self, feature: &str) -> bool {
        self.features.contains(feature)
    }

    /// Checks that the other side can do this, without asking it.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn require(&self, feature: &str) -> Result<()> {
        if self.has(feature) {
            return Ok(());
        }
        let message = format!("the agent (version {}) does not support {feature:?}", self.version);
        Err(SandboxError::new(ErrorKind::Unsupported, message)
            .with_help("the agent is of another release; make the sandbox again, or update the agent"))
    }
}

/// The client's half.
pub(crate) async fn as_client<R, W>(reader: &mut FrameReader<R>, writer: &mut W, ours: Hello) -> Result<PeerInfo>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let work = async {
        send_hello(writer, &ours).await?;
        check(read_hello(reader).await?)
    };
    match tokio::time::timeout(HANDSHAKE_LIMIT, work).await {
        Ok(result) => result.map_err(|reason| reason.unavailable()),
        Err(_) => Err(CloseReason::idle(HANDSHAKE_LIMIT).unavailable()),
    }
}

/// The server's half: nothing is said before the client has shown the token.
pub(crate) async fn as_server<R, W>(
    reader: &mut FrameReader<R>,
    writer: &mut W,
    options: &ServerOptions,
) -> Result<PeerInfo, CloseReason>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let work = async {
        let theirs = read_hello(reader).await?;
        let accepted = match is_welcome(options, theirs.token.as_ref()) {
            false => Err(refused(ErrorKind::Unauthorized, "the token is missing or wrong")),
            true => check(theirs),
        };
        match accepted {
            Ok(peer) => {
                send_hello(writer, &Hello { token: None, ..options.hello() }).await?;
                Ok(peer)
            }
            Err(reason) => {
                let goodbye = Frame::new(FrameKind::Goodbye, 0, wire_error::encode(&reason.unavailable()));
                // The refusal stands whether or not the peer hears of it.
                let _ = send(writer, &goodbye).await;
                Err(reason)
            }
        }
    };
    let limit = options.handshake_limit;
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(CloseReason::idle(limit)))
}

/// Whether a client may come in that shows this token.
fn is_welcome(options: &ServerOptions, given: Option<&Secret>) -> bool {
    let given = given.map_or("", Secret::expose).as_bytes();
    let fits = |expected: &Secret| is_same_secret(expected.expose().as_bytes(), given);
    options.token.as_ref().is_none_or(fits)
        && options.token_sha256.is_none_or(|digest| is_same_secret(&digest, &Sha256::digest(given)))
}

fn refused(kind: ErrorKind, message: impl Into<String>) -> CloseReason {
    CloseReason::new(CloseCause::Refused(kind), message)
}

fn check(theirs: Hello) -> Result<PeerInfo, CloseReason> {
    if theirs.generation < MIN_GENERATION {
        let message = format!("the peer speaks generation {}; at least {MIN_GENERATION} is needed", theirs.generation);
        return Err(refused(ErrorKind::Unsupported, message));
    }
    if !(MIN_WINDOW_BYTES..=MAX_WINDOW_BYTES).contains(&theirs.limits.window_bytes) {
        return Err(Violation::BadFrame("a window out of range").into());
    }
    Ok(PeerInfo::new(theirs))
}

async fn read_hello<R: AsyncRead + Unpin>(reader: &mut FrameReader<R>) -> Result<Hello, CloseReason> {
    let Some(frame) = reader.next_of(|kind| matches!(kind, FrameKind::Hello | FrameKind::Goodbye)).await? else {
        return Err(CloseReason::new(CloseCause::Transport, "the peer closed during the handshake"));
    };
    if frame.kind == FrameKind::Goodbye {
        let error = wire_error::decode(&frame.payload);
        return Err(refused(error.kind(), error.message()));
    }
    let hello: Hello = serde_json::from_slice(&frame.payload).map_err(|_| Violation::NotHello)?;
    if hello.magic != MAGIC { Err(Violation::NotHello.into()) } else { Ok(hello) }
}

async fn send_hello<W: AsyncWrite + Unpin>(writer: &mut W, hello: &Hello) -> Result<(), CloseReason> {
    let json = serde_json::to_vec(hello).map_err(|_| Violation::BadFrame("a HELLO that cannot be written"))?;
    send(writer, &Frame::new(FrameKind::Hello, 0, json)).await
}

pub(crate) async fn send<W: AsyncWrite + Unpin>(writer: &mut W, frame: &Frame) -> Result<(), CloseReason> {
    let sent = async {
        writer.write_all(&frame.encode()).await?;
        writer.flush().await
    };
    sent.await.map_err(|error| CloseReason::transport(&error))
}

/// Compares without telling by time where two secrets differ. Their lengths are no secret.
fn is_same_secret(expected: &[u8], given: &[u8]) -> bool {
    let mut difference = u8::from(expected.len() != given.len());
    for (index, byte) in expected.iter().enumerate() {
        difference |= std::hint::black_box(byte ^ given.get(index).copied().unwrap_or(0));
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use sandbox_core::Secret;

    use super::{Hello, PeerInfo, is_welcome};
    use crate::ServerOptions;

    #[test]
    fn only_the_same_secret_is_the_same() {
        let plain = ServerOptions::default().with_token(Secret::new("abc"));
        // That of "abc", as FIPS 180-2 has it.
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let digest = std::array::from_fn(|at| u8::from_str_radix(&digest[2 * at..2 * at + 2], 16).unwrap());
        let hashed = ServerOptions::default().with_token_sha256(digest);
        for options in [&plain, &hashed, &hashed.clone().with_token(Secret::new("abc"))] {
            assert!(is_welcome(options, Some(&Secret::new("abc"))));
            for other in ["", "ab", "abd", "abcd", "abc\0", "xbc"] {
                assert!(!is_welcome(options, Some(&Secret::new(other))), "{other:?}");
            }
            assert!(!is_welcome(options, None));
        }
        assert!(is_welcome(&ServerOptions::default(), None));
    }

    #[test]
    fn a_hello_of_the_future_is_read_and_the_lower_generation_wins() {
        let json =
            r#"{"magic":"sandbox-protocol","generation":7,"new":{"x":[1]},"limits":{"window_bytes":1,"more":2}}"#;
        let hello: Hello = serde_json::from_str(json).unwrap();
        assert_eq!(PeerInfo::new(hello).generation(), 1);
    }

    #[test]
    fn debug_never_shows_the_token() {
        let hello = Hello { token: Some(Secret::new("canary")), ..Hello::default() };
        assert!(!format!("{hello:?}").contains("canary"));
    }
}
