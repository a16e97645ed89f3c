//! What the launcher tells the agent that it executes as PID 1.

use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::config::{Network, SandboxUser};
use crate::hardening::Capability;
use crate::report::IdMap;
use crate::sys;

/// The descriptor on which PID 1 finds the provider's socket. 0, 1 and 2 are `/dev/null`; the next one may hold how to
/// serve, and nothing else is open.
pub const SOCKET_FD: i32 = 3;

/// The descriptor from which PID 1 reads how to serve, when it is to serve.
pub(crate) const SERVE_FD: i32 = SOCKET_FD + 1;

const VARIABLE: &str = "SANDBOX_AGENT_HANDOVER";

/// The launcher's message to PID 1, in its environment (which nobody inside can read: the agent is not dumpable).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Handover {
    /// A keeper ends this sandbox with its provider's process. Beside that, PID 1 should end when the socket is at
    /// end-of-file. If false, only end-of-file before the first handshake should end it: then its launcher or provider
    /// died before anybody could know of it.
    pub die_with_parent: bool,
    /// The id map; with `count` 1 there is nobody to switch to.
    pub ids: IdMap,
    /// The user that `/etc/passwd` names beside root.
    pub user: SandboxUser,
    /// Where commands start.
    pub workdir: String,
    /// The network it has.
    pub network: Network,
    /// What [`CommandRestrictions`](crate::CommandRestrictions) has to keep for commands.
    pub capabilities: Vec<Capability>,
}

impl Handover {
    /// Reads the launcher's message from this process's environment; `None` when there is none.
    ///
    /// # Errors
    /// A message that is not understood.
    pub fn from_environment() -> Result<Option<Handover>, serde_json::Error> {
        std::env::var(VARIABLE).ok().map(|text| serde_json::from_str(&text)).transpose()
    }

    pub(crate) fn variable(&self) -> Result<String, serde_json::Error> {
        Ok(format!("{VARIABLE}={}", serde_json::to_string(self)?))
    }
}

/// Takes the provider's socket from descriptor [`SOCKET_FD`], which is closed; call it once, before anything is opened.
///
/// # Errors
/// `EBADF` when this process was not started by a launcher.
pub fn take_socket() -> io::Result<OwnedFd> {
    let socket = sys::duplicate_inherited(SOCKET_FD)?;
    sys::close_inherited(SOCKET_FD as u32, SOCKET_FD as u32)?;
    Ok(socket)
}
