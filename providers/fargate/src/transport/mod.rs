//! Ways to an agent. Each gives a stream of bytes; everything else goes over that.

mod direct;
mod prompt;
mod ssh;

use std::{net::SocketAddr, time::Duration};

use sandbox_core::{ErrorKind, Result, SandboxError, async_trait};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

pub(crate) use self::{direct::Direct, ssh::Ssh};

/// What one stream may have under way, in each direction: it moves so much in each round trip at most, and the way to a
/// task may take some milliseconds. The SSH server's own window, which all share, is twice as much.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// How long a connection to a task may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// Both halves of a stream. It ends when they are dropped.
pub(crate) struct Stream {
    pub(crate) read: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) write: Box<dyn AsyncWrite + Send + Unpin>,
}

/// A way to one agent.
#[async_trait]
pub(crate) trait Transport: Send + Sync {
    /// Opens a stream to the agent.
    ///
    /// # Errors
    /// `Unavailable` when nothing listens, or not yet; `PermissionDenied` when whoever listens is not the one meant.
    async fn open(&self) -> Result<Stream>;

    /// The key by which the other side is known, once it is.
    fn host_key(&self) -> Option<String> {
        None
    }
}

/// Connects to a port of a task.
async fn connect(address: SocketAddr) -> Result<TcpStream> {
    let unavailable = |why: String| SandboxError::unavailable(format!("the task's port {}: {why}", address.port()));
    let stream = match tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
        Err(_) => return Err(unavailable("does not answer".to_owned()).with_help("do the security groups let it in?")),
        Ok(connected) => connected.map_err(|error| {
            let kind = SandboxError::io("", std::io::Error::from(error.kind())).kind();
            let error = unavailable(error.to_string());
            if kind == ErrorKind::Exhausted { error.with_kind(kind) } else { error }
        })?,
    };
    // A frame is not held back to be sent with others; a socket that cannot promise that works too.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}
