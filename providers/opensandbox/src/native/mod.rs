//! The agent's own protocol, where the daemon of a sandbox is ours: through a WebSocket of the daemon, by the server or
//! directly. What runs inside goes on when the connection breaks, and is found again.

mod files;
mod jobs;
mod ports;

use std::{sync::Arc, time::Duration};

use sandbox_agent_client::AgentWay;
use sandbox_core::{
    ByteString, ErrorKind, ExecRequest, ExecStream, Result, SandboxError, SandboxPtySpec, SandboxStatus, async_trait,
};
use sandbox_protocol::{Client, ClientOptions, WebSocketIo};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    config::NativeSetting,
    daemon::DIAGNOSIS_WITHIN,
    error::{Failure, NAME},
    shared::Shared,
    state::State,
};

/// The route of the daemon.
const ROUTE: &str = "/sandbox-agent";

/// What a stream may hold on its way: the server may be far away.
const WINDOW_BYTES: u32 = 1024 * 1024;

/// How long a connection may take to be made again, and one try of it.
const RECONNECT_WITHIN: Duration = Duration::from_secs(20);
const TRY_WITHIN: Duration = Duration::from_secs(10);

/// The first and the longest pause between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The connection to the agent of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Link(Mutex<Option<Client>>);

/// The agent of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Native {
    shared: Arc<Shared>,
    id: String,
    link: Arc<Link>,
}

impl Shared {
    /// The agent of a sandbox; none where its daemon is another one, or its protocol is turned off.
    ///
    /// # Errors
    /// `Unsupported` where the settings require it.
    pub(crate) async fn native(self: &Arc<Self>, id: &str) -> Result<Option<Native>> {
        let setting = self.config.operations.native;
        if setting == NativeSetting::Off {
            return Ok(None);
        }
        if self.daemon(id).await?.kind().await?.native {
            return Ok(Some(Native { shared: self.clone(), id: id.to_owned(), link: self.link(id) }));
        }
        match setting {
            NativeSetting::Required => Err(without_agent(id)),
            _ => Ok(None),
        }
    }

    /// The same for commands, which the settings may want in the background of the daemon.
    pub(crate) async fn native_exec(self: &Arc<Self>, id: &str) -> Result<Option<Native>> {
        let operations = &self.config.operations;
        match operations.background_exec && operations.native == NativeSetting::Auto {
            true => Ok(None),
            false => self.native(id).await,
        }
    }

    /// The same for what only the agent does.
    pub(crate) async fn agent(self: &Arc<Self>, id: &str) -> Result<Native> {
        self.native(id).await?.ok_or_else(|| without_agent(id))
    }
}

fn without_agent(id: &str) -> SandboxError {
    let text = format!("the daemon of sandbox {id} does not speak the agent's own protocol");
    SandboxError::new(ErrorKind::Unsupported, text)
        .with_help("give the server an execd_image of ours, or set operations.native = \"off\"")
        .with_provider(NAME)
}

/// A path as the agent takes it: relative ones are below the sandbox's folder.
fn absolute(state: &State, path: &ByteString) -> ByteString {
    match &state.workdir {
        Some(workdir) if !path.as_bytes().starts_with(b"/") => {
            ByteString::new([workdir.trim_end_matches('/').as_bytes(), b"/", path.as_bytes()].concat())
        }
        _ => path.clone(),
    }
}

/// What the sandbox says and the request does not.
fn surrounded(state: &State, mut request: ExecRequest) -> ExecRequest {
    request.cwd = match &request.cwd {
        Some(cwd) => Some(absolute(state, cwd)),
        None => state.workdir.as_deref().map(ByteString::from),
    };
    request.user = request.user.or_else(|| state.user.clone());
    request
}

impl Native {
    /// Runs a command.
    pub(crate) async fn exec(self, state: &State, request: ExecRequest) -> Result<ExecStream> {
        sandbox_agent_client::exec(Arc::new(self), surrounded(state, request)).await
    }

    /// A terminal as this sandbox has it.
    pub(crate) fn terminal(state: &State, mut spec: SandboxPtySpec) -> SandboxPtySpec {
        spec.cwd = match &spec.cwd {
            Some(cwd) => Some(absolute(state, cwd)),
            None => state.workdir.as_deref().map(ByteString::from),
        };
        spec.user = spec.user.or_else(|| state.user.clone());
        spec
    }

    /// Does work through the agent. Nothing is done twice: what breaks off under way is told.
    pub(crate) async fn ask<T>(&self, work: impl AsyncFnOnce(Client) -> Result<T>) -> Result<T> {
        let done = async { work(self.client().await?).await };
        match done.await {
            Ok(done) => Ok(done),
            Err(error) => Err(self.explain(error).await),
        }
    }

    async fn connect(&self) -> Result<Client, Failure> {
        let daemon =
            self.shared.daemon(&self.id).await.map_err(|error| Failure::NeverReached(error.message().to_owned()))?;
        let socket = crate::websocket::upgrade(&daemon, daemon.call(reqwest::Method::GET, ROUTE)).await?;
        let mut options = ClientOptions::default();
        options.window_bytes = WINDOW_BYTES;
        let connected = Client::connect(WebSocketIo::new(socket), options).await;
        connected.map_err(|error| Failure::Broke(error.message().to_owned()))
    }

    /// Why it can be of no use to try again; none: it can. Waits while the sandbox is paused.
    async fn fate(&self) -> Option<SandboxError> {
        let error = || SandboxError::unavailable(format!("the agent of sandbox {} cannot be reached", self.id));
        loop {
            let seen = tokio::time::timeout(DIAGNOSIS_WITHIN, self.shared.look(&self.id)).await;
            match seen {
                Ok(Ok(seen)) if matches!(seen.status, SandboxStatus::Stopped | SandboxStatus::Error) => {
                    return Some(seen.explain(&self.id, error()));
                }
                Ok(Ok(seen)) if seen.status == SandboxStatus::Paused => tokio::time::sleep(LONGEST_PAUSE).await,
                _ => return None,
            }
        }
    }
}

#[async_trait]
impl AgentWay for Native {
    /// The connection, made if there is none. One that broke is made again, once for all who wait.
    async fn client(&self) -> Result<Client> {
        let mut client = self.link.0.lock().await;
        if let Some(client) = client.as_ref().filter(|client| client.close_reason().is_none()) {
            return Ok(client.clone());
        }
        let mut deadline = Instant::now() + RECONNECT_WITHIN;
        let mut pause = FIRST_PAUSE;
        loop {
            let tried = tokio::time::timeout(TRY_WITHIN, self.connect()).await;
            let failure = match tried.unwrap_or(Err(Failure::TimedOut(TRY_WITHIN))) {
                Ok(made) => {
                    *client = Some(made.clone());
                    return Ok(made);
                }
                Err(failure) => failure,
            };
            let before = Instant::now();
            if let Some(error) = self.fate().await {
                return Err(error);
            }
            // That it was paused does not count.
            deadline += before.elapsed().saturating_sub(DIAGNOSIS_WITHIN);
            if Instant::now() + pause >= deadline {
                return Err(failure.error("reaching the agent of the sandbox").with_kind(ErrorKind::Unavailable));
            }
            // It may have another address by now.
            self.shared.forget_target(&self.id);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn explain(&self, error: SandboxError) -> SandboxError {
        if !matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable | ErrorKind::InvalidState) {
            return error.with_provider(NAME);
        }
        match tokio::time::timeout(DIAGNOSIS_WITHIN, self.shared.look(&self.id)).await {
            Ok(Ok(seen)) => seen.explain(&self.id, error),
            _ => error,
        }
        .with_provider(NAME)
    }
}
