//! The client's side: opens streams.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use sandbox_core::{Admitted, Result, SandboxError, Session, SessionEvent};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    Body, ClientOptions, CloseReason, ConnectionStats, FrameReader, PeerInfo,
    client_session::{self, RemoteControl},
    conn::{Conn, ConnParts, Role},
    descriptors::SentDescriptors,
    dispatch::{self, AcceptPayload, OpenPayload, to_json},
    frame::FLAG_END,
    hello,
    inbox::Inbox,
    limits::INLINE_JSON_BYTES,
    link::Link,
    options, write,
};

/// A connection to an agent. Clones share it; it ends when the last clone and the last stream are gone.
///
/// Calls have no deadline of their own: drop their future, which cancels the work at the agent at once.
///
/// **After a loss** every stream fails with `Lost` and [`Client::closed`] tells why. Nothing reconnects by itself, and
/// nothing is ever sent twice. To go on: make a new transport, call [`Client::connect`] again, and attach to what
/// still runs by its id ([`methods::EXEC_ATTACH`](crate::methods::EXEC_ATTACH) with the offsets that were read,
/// [`methods::PTY_ATTACH`](crate::methods::PTY_ATTACH)). The agent keeps execs and sessions of a lost connection for a
/// grace period. An exec whose start was `Lost` is started again under the same `exec_id`: the agent runs an id once.
#[derive(Clone)]
pub struct Client {
    pub(crate) handle: Handle,
}

/// Keeps the connection open.
pub(crate) type Handle = Arc<HandleInner>;

pub(crate) struct HandleInner {
    pub(crate) conn: Arc<Conn>,
    /// Takes descriptors along, where the transport can.
    pub(crate) descriptors: Option<Arc<SentDescriptors>>,
}

impl Drop for HandleInner {
    fn drop(&mut self) {
        self.conn.close();
    }
}

/// Cancels a stream that is not over yet.
pub(crate) struct CancelOnDrop {
    pub(crate) handle: Handle,
    pub(crate) link: Arc<Link>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.handle.conn.cancel(self.link.id);
    }
}

/// A stream whose request was taken on.
struct Accepted {
    reply: Value,
    inbox: Inbox,
    cancel: Arc<CancelOnDrop>,
}

impl Client {
    /// Shakes hands over a byte stream and starts the two tasks of the connection on the current tokio runtime.
    ///
    /// # Errors
    /// `Unavailable` when the transport fails or nothing answers; `Unauthorized` for a wrong token; `Unsupported` when
    /// the releases are too far apart. Nothing has happened then.
    pub async fn connect(
        io: impl AsyncRead + AsyncWrite + Send + 'static,
        options: ClientOptions,
    ) -> Result<Self, SandboxError> {
        let (read, write) = tokio::io::split(io);
        Self::connect_halves(read, write, options).await
    }

    /// As [`Client::connect`], for a transport in two halves: the pipes of a process, a socket's own halves (which are
    /// faster than one stream split by a lock).
    ///
    /// # Errors
    /// As there.
    pub async fn connect_halves(
        read: impl AsyncRead + Send + 'static,
        write: impl AsyncWrite + Send + 'static,
        options: ClientOptions,
    ) -> Result<Self, SandboxError> {
        Self::connect_with(read, write, options, None).await
    }

    pub(crate) async fn connect_with(
        read: impl AsyncRead + Send + 'static,
        write: impl AsyncWrite + Send + 'static,
        options: ClientOptions,
        descriptors: Option<Arc<SentDescriptors>>,
    ) -> Result<Self, SandboxError> {
        let keep_alive = options.keep_alive;
        let mut reader = FrameReader::new(Box::pin(read), keep_alive.idle_limit.max(crate::limits::HANDSHAKE_LIMIT));
        let mut writer = Box::pin(write);
        let peer = hello::as_client(&mut reader, &mut writer, options.hello()).await?;
        reader.set_idle_limit(keep_alive.idle_limit);
        let max_streams = options.max_streams.min(peer.limits.max_streams);
        let window = options::window(options.window_bytes);
        let conn = Conn::new(ConnParts { role: Role::Client, peer, window, max_streams, keep_alive });
        let writing = conn.clone();
        tokio::spawn(async move { write::run(&writing, writer).await });
        let reading = conn.clone();
        tokio::spawn(async move { dispatch::run(&reading, reader, |_| {}).await });
        Ok(Self { handle: Arc::new(HandleInner { conn, descriptors }) })
    }

    /// What the agent said of itself.
    pub fn peer(&self) -> &PeerInfo {
        &self.handle.conn.parts.peer
    }

    /// Resolves when the connection has ended, with the reason.
    pub async fn closed(&self) -> CloseReason {
        self.handle.conn.closed().await
    }

    /// Why the connection has ended; none while it lives.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.handle.conn.reason()
    }

    /// Sends what waits, cancels of dropped streams among it, then closes. Streams that are open detach.
    pub async fn close(&self) {
        self.handle.conn.close();
        self.handle.conn.closed().await;
    }

    /// What the connection holds right now.
    pub fn stats(&self) -> ConnectionStats {
        self.handle.conn.stats()
    }

    /// Opens a session. Input goes by [`Session::write`], control by [`Session::control`]; dropping the session cancels
    /// it at the agent at once.
    ///
    /// Writes return when there is credit, so a reader inside that is slow slows the writer down; what is wrong with
    /// them (`InvalidState`: the input is closed) is told to the write after the agent said so.
    ///
    /// # Errors
    /// What the agent refuses with; `Unsupported` when it does not have the method (nothing is sent);
    /// `Exhausted` when too many streams are open; `Unavailable` when provably nothing was sent; `Lost` when the
    /// connection breaks before the answer (admitted: unknown).
    pub async fn open<E: SessionEvent>(&self, method: &str, request: &impl Serialize) -> Result<Session<E>> {
        Ok(self.open_with_reply::<E, Value>(method, request).await?.1)
    }

    /// As [`Client::open`], with what the agent replied beside the session.
    ///
    /// # Errors
    /// As there.
    pub async fn open_with_reply<E: SessionEvent, R: DeserializeOwned>(
        &self,
        method: &str,
        request: &impl Serialize,
    ) -> Result<(R, Session<E>)> {
        let (inbox, cancel) = self.start(method, request, true).await?;
        let accepted = accepted(method, inbox, cancel).await?;
        let control = RemoteControl::new(accepted.cancel.clone());
        let session = client_session::start(accepted.inbox, accepted.cancel, control);
        Ok((from_json(method, accepted.reply)?, session))
    }

    /// Asks and gets the answer.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn call<R: DeserializeOwned>(&self, method: &str, request: &impl Serialize) -> Result<R> {
        let (inbox, cancel) = self.start(method, request, false).await?;
        from_json(method, accepted(method, inbox, cancel).await?.reply)
    }

    /// Asks, with bytes behind the request. The answer comes when the agent has taken what it wants of them.
    ///
    /// # Errors
    /// As [`Client::open`]; what the body failed with: the call is cancelled then, and the agent never takes the part
    /// for the whole.
    pub async fn call_with_body<R: DeserializeOwned>(
        &self,
        method: &str,
        request: &impl Serialize,
        mut body: Body,
    ) -> Result<R> {
        let (inbox, cancel) = self.start(method, request, true).await?;
        let (conn, link) = (&self.handle.conn, cancel.link.clone());
        let mut answer = std::pin::pin!(accepted(method, inbox, cancel));
        let sending = async {
            while let Some(bytes) = body.next().await? {
                if conn.send_bytes(&link, 0, bytes, false, false).await.is_err() {
                    // The answer tells why no more is taken.
                    return Ok::<(), SandboxError>(());
                }
            }
            let _ = conn.send_data(&link, 0, FLAG_END, Bytes::new()).await;
            Ok(())
        };
        let reply = tokio::select! {
            biased;
            answer = &mut answer => answer?,
            sent = sending => {
                sent?;
                answer.await?
            }
        };
        from_json(method, reply.reply)
    }

    /// Asks for bytes. Dropping the body before its end cancels the call.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn call_for_body<R: DeserializeOwned>(
        &self,
        method: &str,
        request: &impl Serialize,
    ) -> Result<(R, Body)> {
        let (inbox, cancel) = self.start(method, request, false).await?;
        let accepted = accepted(method, inbox, cancel).await?;
        Ok((from_json(method, accepted.reply)?, Body::remote(accepted.inbox, Some(accepted.cancel))))
    }

    /// Sends OPEN, and the request behind it if it is large.
    async fn start(
        &self,
        method: &str,
        request: &impl Serialize,
        has_input: bool,
    ) -> Result<(Inbox, Arc<CancelOnDrop>)> {
        let conn = &self.handle.conn;
        conn.parts.peer.require(method)?;
        let mut open = OpenPayload {
            method: method.to_owned(),
            request: serde_json::to_value(request)
                .map_err(|_| SandboxError::internal(format!("the request of {method} could not be written")))?,
            request_bytes: None,
        };
        let mut payload = to_json("request", &open)?;
        let mut large = None;
        if payload.len() > INLINE_JSON_BYTES {
            let request = to_json("request", &std::mem::take(&mut open.request))?;
            open.request_bytes = Some(request.len() as u64);
            payload = to_json("request", &open)?;
            large = Some(request);
        }
        let flags = if has_input || large.is_some() { 0 } else { FLAG_END };
        let (link, incoming) = conn.open(payload, flags).await?;
        let cancel = Arc::new(CancelOnDrop { handle: self.handle.clone(), link });
        let inbox = Inbox::new(conn.clone(), cancel.link.id, incoming, false);
        if let Some(request) = large {
            // Failing here means that the stream is over: its answer tells why.
            let _ = conn.send_bytes(&cancel.link, 0, request, false, !has_input).await;
        }
        Ok((inbox, cancel))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("peer", self.peer()).finish_non_exhaustive()
    }
}

async fn accepted(method: &str, mut inbox: Inbox, cancel: Arc<CancelOnDrop>) -> Result<Accepted> {
    let (payload, _) = inbox.accepted().await?;
    let accept: AcceptPayload = serde_json::from_slice(&payload).map_err(|_| unreadable(method))?;
    let reply = match accept.reply_bytes {
        None => accept.reply,
        Some(length) => serde_json::from_slice(&inbox.json_bytes(length).await?).map_err(|_| unreadable(method))?,
    };
    Ok(Accepted { reply, inbox, cancel })
}

fn from_json<R: DeserializeOwned>(method: &str, reply: Value) -> Result<R> {
    // A null is also the reply that says nothing.
    let is_null = reply.is_null();
    serde_json::from_value(reply)
        .or_else(|error| if is_null { serde_json::from_value(Value::Object(Default::default())) } else { Err(error) })
        .map_err(|_| unreadable(method))
}

/// The text of the JSON error is left out: it may quote values.
fn unreadable(method: &str) -> SandboxError {
    SandboxError::lost(format!("the reply to {method} could not be read"), Admitted::Yes)
}
