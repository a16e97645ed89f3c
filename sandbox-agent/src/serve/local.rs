//! An agent behind a program in its own process, which speaks another protocol to the outside.

use sandbox_core::{Result, SandboxError};
use sandbox_protocol::{Client, ClientOptions};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Mutex, mpsc},
};

use super::connections::{Connection, Source};

/// Connections that wait to be taken.
const WAITING_MAX: usize = 16;
/// What a connection within the process holds between its ends, in each direction.
const PIPE_BYTES: usize = 256 * 1024;

/// The way to the agent of this process. Whoever has it decides who may come in: there is no token.
#[derive(Clone)]
pub struct LocalAgent {
    connections: mpsc::Sender<Connection>,
}

impl LocalAgent {
    pub(super) fn new() -> (Self, Source) {
        let (connections, receiver) = mpsc::channel(WAITING_MAX);
        (Self { connections }, Source::Local(Mutex::new(receiver)))
    }

    /// Serves a client in the agent's own protocol for as long as it stays.
    ///
    /// # Errors
    /// `InvalidState` when the sandbox is over.
    pub async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<()> {
        self.send(Connection::Stream(Box::new(stream))).await
    }

    async fn send(&self, connection: Connection) -> Result<()> {
        let sent = self.connections.send(connection).await;
        sent.map_err(|_| SandboxError::invalid_state("the sandbox is over"))
    }

    /// Resolves when the sandbox is over. What is still to be said is to be said within a second.
    pub async fn over(&self) {
        self.connections.closed().await;
    }

    /// A client within this process.
    ///
    /// # Errors
    /// As [`LocalAgent::serve`]; `Unavailable` when the agent ends meanwhile.
    pub async fn connect(&self) -> Result<Client> {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        self.send(Connection::Own(far)).await?;
        Client::connect(near, ClientOptions::default()).await
    }
}
