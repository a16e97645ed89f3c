//! The connection to a sandbox's agent, made again when it broke.

use std::{path::PathBuf, time::Duration};

use bollard::{
    container::LogOutput,
    exec::{CreateExecOptions, StartExecOptions, StartExecResults},
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use sandbox_core::{ErrorKind, Result, SandboxError, Secret};
use sandbox_protocol::{
    Client, ClientOptions, KeepAlive,
    methods::{self, AgentInfo, Nothing},
};
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::UnixStream,
    sync::Mutex,
};

use crate::{
    engine::Engine,
    error::{self, NAME},
    plan::relay_command,
};

/// A paused agent is silent for as long as it is paused. That a sandbox has ended shows at once by its socket's end.
const SILENCE_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How often a quiet connection shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// How long a connection may take to be made again.
const RECONNECT_LIMIT: Duration = Duration::from_secs(15);

/// Where an agent is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A socket of this machine; the agent is the process of this number here.
    Socket { path: PathBuf, pid: i32 },
    /// Inside the container, by a program that the engine runs.
    Relay { container: String },
}

/// The way to one agent.
pub(crate) struct Link {
    pub(crate) place: Place,
    token: Secret,
    incarnation: String,
    client: Mutex<Option<Client>>,
}

impl Link {
    pub(crate) fn new(place: Place, token: Secret, incarnation: String) -> Self {
        Self { place, token, incarnation, client: Mutex::new(None) }
    }

    /// The connection, made if there is none. One that broke is made again, once for all who wait.
    pub(crate) async fn client(&self, engine: &Engine) -> Result<Client> {
        let mut client = self.client.lock().await;
        if let Some(client) = client.as_ref().filter(|client| client.close_reason().is_none()) {
            return Ok(client.clone());
        }
        let made = tokio::time::timeout(RECONNECT_LIMIT, self.connect(engine)).await;
        let made = made.unwrap_or_else(|_| Err(SandboxError::unavailable("the agent does not answer")))?;
        *client = Some(made.clone());
        Ok(made)
    }

    /// Ends the connection.
    pub(crate) async fn close(&self) {
        if let Some(client) = self.client.lock().await.take() {
            client.close().await;
        }
    }

    async fn connect(&self, engine: &Engine) -> Result<Client> {
        let options = ClientOptions::default().with_token(self.token.clone());
        let client = match &self.place {
            Place::Socket { path, pid } => {
                let failed = |error| SandboxError::io("the agent's socket", error).with_kind(ErrorKind::Unavailable);
                let stream = UnixStream::connect(path).await.map_err(failed)?;
                // What runs inside as root could have put a socket of its own there: the token is for PID 1 only.
                let peer = stream.peer_cred().map_err(failed)?.pid();
                if peer != Some(*pid) {
                    return Err(SandboxError::new(
                        ErrorKind::PermissionDenied,
                        "the agent's socket is not the agent's",
                    )
                    .with_provider(NAME)
                    .with_help("if this program runs in a container itself, set transport = \"relay\""));
                }
                let options = options.with_keep_alive(KeepAlive::new(Some(KEEP_ALIVE), SILENCE_MAX));
                // It shares this kernel: a file moves as a descriptor, and the agent copies it.
                Client::connect_unix(stream, options).await?
            }
            Place::Relay { container } => {
                let (read, write) = relay(engine, container).await?;
                Client::connect_halves(read, write, options).await?
            }
        };
        let info: AgentInfo = client.call(methods::INFO, &Nothing {}).await?;
        if info.incarnation != self.incarnation {
            return Err(SandboxError::not_found("another sandbox has taken its place").with_provider(NAME));
        }
        Ok(client)
    }
}

type Input = std::pin::Pin<Box<dyn tokio::io::AsyncWrite + Send>>;
type Chunks = std::pin::Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;

async fn relay(engine: &Engine, container: &str) -> Result<(FromEngine, Input)> {
    let failed = |error| error::engine("reaching the agent through the engine", error);
    let docker = engine.docker().await?;
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(false),
        tty: Some(false),
        cmd: Some(relay_command()),
        user: Some("0:0".to_owned()),
        working_dir: Some("/".to_owned()),
        ..CreateExecOptions::default()
    };
    let exec = docker.create_exec(container, options).await.map_err(failed)?;
    let start = StartExecOptions { output_capacity: Some(128 * 1024), ..StartExecOptions::default() };
    match docker.start_exec(&exec.id, Some(start)).await.map_err(failed)? {
        StartExecResults::Attached { output, input } => Ok((FromEngine { chunks: output, rest: Bytes::new() }, input)),
        StartExecResults::Detached => Err(SandboxError::internal("the engine attached nothing").with_provider(NAME)),
    }
}

/// What the engine passes on, without its own framing.
struct FromEngine {
    chunks: Chunks,
    rest: Bytes,
}

impl AsyncRead for FromEngine {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        use std::task::Poll;
        while self.rest.is_empty() {
            match std::task::ready!(self.chunks.poll_next_unpin(context)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(std::io::Error::other(error))),
                Some(Ok(LogOutput::StdOut { message } | LogOutput::Console { message })) => self.rest = message,
                Some(Ok(_)) => {}
            }
        }
        let count = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest.split_to(count));
        Poll::Ready(Ok(()))
    }
}
