//! The server's side: one connection, and a task for each of its streams.

use std::sync::Arc;

use sandbox_core::SandboxError;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use crate::{
    CloseCause, CloseReason, FrameReader, ServerOptions, Service,
    conn::{Conn, ConnParts, Role},
    dispatch, hello,
    limits::{DETACH_LIMIT, HANDSHAKE_LIMIT, LINGER},
    options, server_stream, write,
};

/// Serves one client until the connection ends, and returns why. Nothing is left running then: streams of a client that
/// has gone had time to detach. Dropping the future ends the connection and cancels its streams.
pub async fn serve(
    io: impl AsyncRead + AsyncWrite + Send + 'static,
    options: ServerOptions,
    service: Arc<dyn Service>,
) -> CloseReason {
    let (read, write) = tokio::io::split(io);
    serve_halves(read, write, options, service).await
}

/// As [`serve`], for a transport in two halves: standard input and output, a socket's own halves.
pub async fn serve_halves(
    read: impl AsyncRead + Send + 'static,
    write: impl AsyncWrite + Send + 'static,
    options: ServerOptions,
    service: Arc<dyn Service>,
) -> CloseReason {
    let keep_alive = options.keep_alive;
    let mut reader = FrameReader::new(Box::pin(read), keep_alive.idle_limit.max(HANDSHAKE_LIMIT));
    let mut writer = Box::pin(write);
    let handshake = hello::as_server(&mut reader, &mut writer, &options);
    let peer = match handshake.await {
        Ok(peer) => peer,
        Err(reason) => {
            tracing::debug!(cause = ?reason.cause(), "client refused");
            return reason;
        }
    };
    reader.set_idle_limit(keep_alive.idle_limit);
    let window = options::window(options.window_bytes);
    let max_streams = options.max_streams;
    let conn = Conn::new(ConnParts { role: Role::Server, peer, window, max_streams, keep_alive });
    let ending = EndOnDrop(conn.clone());
    let writing = conn.clone();
    let mut writing = tokio::spawn(async move { write::run(&writing, writer).await });
    let _abort = AbortOnDrop(writing.abort_handle());
    let mut streams = JoinSet::new();
    let reason = dispatch::run(&conn, reader, |opened| {
        // Done ones are collected on the way, so that the set does not grow.
        while streams.try_join_next().is_some() {}
        let end = EndStream { conn: conn.clone(), id: opened.link.id };
        let (conn, service) = (conn.clone(), service.clone());
        streams.spawn(async move {
            let end = end;
            if let Err(error) = server_stream::run(&conn, &*service, opened).await {
                conn.end_with(end.id, &error);
            }
        });
    })
    .await;
    let finished = async { while streams.join_next().await.is_some() {} };
    if timeout(DETACH_LIMIT + LINGER, finished).await.is_err() {
        tracing::warn!("streams of a closed connection did not end in time");
    }
    let _ = timeout(3 * LINGER, &mut writing).await;
    drop(ending);
    reason
}

/// Ends a stream whose worker is gone without having ended it: it panicked.
struct EndStream {
    conn: Arc<Conn>,
    id: u32,
}

impl Drop for EndStream {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.conn.end_with(self.id, &SandboxError::internal("the agent's worker panicked"));
        }
    }
}

struct EndOnDrop(Arc<Conn>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.fail(CloseReason::new(CloseCause::Local, "this side closed the connection"));
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
