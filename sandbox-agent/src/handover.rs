//! What PID 1 knows of its launch.

use serde::{Deserialize, Serialize};

use crate::config::{Network, SandboxUser};
use crate::hardening::Capability;
use crate::report::IdMap;

/// What a launch tells its PID 1, beside how to serve.
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
