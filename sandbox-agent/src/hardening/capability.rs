//! The capabilities that commands may be left, all of them harmless within a user namespace of their own.

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

/// A capability over the sandbox's own ids and namespaces that commands keep. `SYS_ADMIN` and the like are not
/// offered: with the system calls that they are for refused, they would only widen what the kernel exposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Capability {
    /// Change owners.
    Chown,
    /// Read and write files of every mapped owner.
    DacOverride,
    /// Change modes and times of every mapped owner's files.
    Fowner,
    /// Keep setuid bits on changed files.
    Fsetid,
    /// Signal every process inside.
    Kill,
    /// Become another mapped group.
    Setgid,
    /// Become another mapped user.
    Setuid,
    /// Bind ports below 1024 (allowed without it where the network is the sandbox's own).
    NetBindService,
    /// Raw sockets in the sandbox's own network.
    NetRaw,
    /// `chroot`.
    SysChroot,
    /// Set file capabilities.
    Setfcap,
}

impl Capability {
    pub(crate) fn flag(self) -> CapabilitySet {
        match self {
            Capability::Chown => CapabilitySet::CHOWN,
            Capability::DacOverride => CapabilitySet::DAC_OVERRIDE,
            Capability::Fowner => CapabilitySet::FOWNER,
            Capability::Fsetid => CapabilitySet::FSETID,
            Capability::Kill => CapabilitySet::KILL,
            Capability::Setgid => CapabilitySet::SETGID,
            Capability::Setuid => CapabilitySet::SETUID,
            Capability::NetBindService => CapabilitySet::NET_BIND_SERVICE,
            Capability::NetRaw => CapabilitySet::NET_RAW,
            Capability::SysChroot => CapabilitySet::SYS_CHROOT,
            Capability::Setfcap => CapabilitySet::SETFCAP,
        }
    }
}
