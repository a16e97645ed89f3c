//! What a launch says when it is done, for the provider's `info`.

use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::config::Network;
use crate::error::LaunchError;

/// The JSON lines on the status socket: one of the first two, and the last one for a sandbox that has a keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchStatus {
    /// PID 1 is there.
    Started(Report),
    /// Nothing runs, and nothing is left.
    Failed(LaunchError),
    /// Every process has ended, and the cgroup is gone: PID 1's exit code, 128 + n for signal n.
    Ended(i32),
}

/// A sandbox that runs, and what is in force in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// PID 1 of the sandbox, as the launcher's pid namespace counts.
    pub pid: u32,
    /// When `pid` started, in clock ticks since boot (field 22 of `/proc/PID/stat`): tells a reused pid apart.
    pub start_ticks: u64,
    /// Whether a keeper ends the sandbox when the provider's process ends.
    pub kept: bool,
    /// Whether a keeper waits for [`Launched::commit`](crate::Launched::commit).
    #[serde(default)]
    pub uncommitted: bool,
    /// The ids inside and what they are outside.
    pub ids: IdMap,
    /// The network it has.
    pub network: Network,
    /// Fence around the host's abstract unix sockets.
    pub landlock: Landlock,
    /// The number of system calls that commands are refused, wholly or for some arguments.
    pub seccomp_calls: usize,
    /// Paths below `/proc` that read as empty.
    pub masked_paths: Vec<String>,
    /// Paths below `/proc` that cannot be written.
    pub read_only_paths: Vec<String>,
    /// The cgroup that holds it, if one was asked for.
    pub cgroup: Option<Cgroup>,
}

/// How ids inside relate to ids outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap {
    /// The first uid inside.
    pub inside_uid: u32,
    /// What the first uid inside is outside. Never 0 as the host counts.
    pub outside_uid: u32,
    /// The first gid inside.
    pub inside_gid: u32,
    /// What the first gid inside is outside.
    pub outside_gid: u32,
    /// How many ids are mapped: 65536, or 1 when the launcher has no privileges.
    pub count: u32,
}

/// Landlock's fence around abstract unix sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Landlock {
    /// The network namespace has no host sockets to fence.
    NotNeeded,
    /// In force for every process of the sandbox.
    InForce,
    /// The kernel has none, or an older one (6 is needed): host abstract sockets can be reached.
    Unavailable {
        /// The kernel's Landlock version; 0 when it has none.
        abi: u32,
    },
}
