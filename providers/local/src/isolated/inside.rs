//! The running half of an isolated sandbox: its processes, and the connection to its PID 1.

use std::{os::unix::net::UnixStream as StdUnixStream, sync::Mutex, sync::PoisonError, time::Duration};

use sandbox_agent::{Cgroup, IdMap};
use sandbox_core::{ErrorKind, Result, SandboxError, Secret};
use sandbox_protocol::{Client, ClientOptions, KeepAlive};

use super::{
    endpoint::Endpoints,
    memory::MemoryWatch,
    running::{Leftover, Running},
};

/// A paused agent is silent for as long as it is paused. That the sandbox has ended shows at once by the socket's end.
const SILENCE_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How often a quiet connection shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// An isolated sandbox, seen from outside.
pub(crate) struct Inside {
    pub(crate) client: Client,
    pub(crate) running: Running,
    pub(crate) ids: IdMap,
    pub(crate) endpoints: Endpoints,
    /// Where memory is limited.
    pub(crate) memory: Option<MemoryWatch>,
    /// One pause or resume at a time.
    pausing: Mutex<()>,
}

impl Inside {
    /// Shakes hands with the agent on the other end of `socket`.
    pub(crate) async fn connect(running: Running, ids: IdMap, socket: StdUnixStream, token: Secret) -> Result<Self> {
        let failed = |error| SandboxError::io("the socket of the agent", error).with_kind(ErrorKind::Create);
        socket.set_nonblocking(true).map_err(failed)?;
        let socket = tokio::net::UnixStream::from_std(socket).map_err(failed)?;
        let keep_alive = KeepAlive::new(Some(KEEP_ALIVE), SILENCE_MAX);
        let options = ClientOptions::default().with_keep_alive(keep_alive).with_token(token);
        let client = Client::connect_unix(socket, options)
            .await
            .map_err(|error| error.with_kind(ErrorKind::Create).context("the agent of the sandbox does not answer"))?;
        let (endpoints, memory) = (Endpoints::default(), None);
        Ok(Self { client, running, ids, endpoints, memory, pausing: Mutex::new(()) })
    }

    /// Whether its PID 1 still serves.
    pub(crate) fn is_alive(&self) -> bool {
        self.client.close_reason().is_none()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.running.is_paused()
    }

    /// Refuses work on a sandbox that is frozen: it would wait for ever.
    pub(crate) fn check_not_paused(&self, id: &str) -> Result<()> {
        if self.is_paused() { Err(paused(id)) } else { Ok(()) }
    }

    /// Whether only one id is mapped, so that there is nobody to switch to.
    pub(crate) fn has_one_user(&self) -> bool {
        self.ids.count == 1
    }

    pub(crate) fn cgroup(&self) -> Option<&Cgroup> {
        self.running.cgroup()
    }

    /// Freezes or thaws every process. Blocks.
    pub(crate) fn set_paused(&self, id: &str, paused: bool) -> Result<()> {
        let _one_at_a_time = self.pausing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_paused() == paused {
            let state = if paused { "is paused already" } else { "is not paused" };
            return Err(SandboxError::invalid_state(format!("sandbox {id} {state}")));
        }
        self.running.set_paused(id, paused)
    }

    pub(crate) fn leftover(&self) -> Leftover {
        self.running.leftover().clone()
    }
}

/// The refusal of work on a frozen sandbox.
pub(crate) fn paused(id: &str) -> SandboxError {
    SandboxError::invalid_state(format!("sandbox {id} is paused")).with_help("resume it first")
}
