//! The connection to a sandbox's agent, made again when it broke.

use std::time::Duration;

use sandbox_core::{ErrorKind, Result, SandboxError, Secret};
use sandbox_protocol::{
    Client, ClientOptions,
    methods::{self, AgentInfo, Nothing},
};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    error::NAME,
    transport::{STREAM_WINDOW_BYTES, Stream, Transport},
};

/// How long a connection may take to be made again, tries included.
const RECONNECT_LIMIT: Duration = Duration::from_secs(20);
/// The first and the longest pause between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The way to one agent.
pub(crate) struct Link {
    transport: Box<dyn Transport>,
    token: Secret,
    incarnation: String,
    client: Mutex<Option<Client>>,
}

impl Link {
    pub(crate) fn new(transport: Box<dyn Transport>, token: Secret, incarnation: String) -> Self {
        Self { transport, token, incarnation, client: Mutex::new(None) }
    }

    /// The key by which the other side is known.
    pub(crate) fn host_key(&self) -> Option<String> {
        self.transport.host_key()
    }

    /// The connection, made if there is none. One that broke is made again, once for all who wait.
    pub(crate) async fn client(&self) -> Result<Client> {
        self.client_until(Instant::now() + RECONNECT_LIMIT).await
    }

    /// As [`Link::client`], with tries until a deadline.
    pub(crate) async fn client_until(&self, deadline: Instant) -> Result<Client> {
        let mut client = self.client.lock().await;
        if let Some(client) = client.as_ref().filter(|client| client.close_reason().is_none()) {
            return Ok(client.clone());
        }
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match tokio::time::timeout_at(deadline, self.connect()).await {
                Ok(Ok(made)) => {
                    *client = Some(made.clone());
                    return Ok(made);
                }
                Ok(Err(error)) => error,
                Err(_) => SandboxError::unavailable("the agent does not answer"),
            };
            // One that broke while it was made has done nothing.
            let may_pass = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost);
            if !may_pass || Instant::now() + pause >= deadline {
                return Err(error.with_provider(NAME));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Ends the connection.
    pub(crate) async fn close(&self) {
        if let Some(client) = self.client.lock().await.take() {
            client.close().await;
        }
    }

    async fn connect(&self) -> Result<Client> {
        let Stream { read, write } = self.transport.open().await?;
        let mut options = ClientOptions::default().with_token(self.token.clone());
        options.window_bytes = STREAM_WINDOW_BYTES;
        let client = Client::connect_halves(read, write, options).await?;
        let info: AgentInfo = client.call(methods::INFO, &Nothing {}).await?;
        if info.incarnation != self.incarnation {
            return Err(SandboxError::not_found("another sandbox has taken its place").with_provider(NAME));
        }
        Ok(client)
    }
}
