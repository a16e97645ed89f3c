//! The configuration of one launch.

mod basis;
mod mounts;
mod validate;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cgroup::Limits;
use crate::hardening::Capability;
use crate::serve::ServeConfig;

pub use basis::Basis;
pub(crate) use basis::Target;
pub use mounts::{Access, Bind, BindOwner, MemoryFolder};
pub use validate::ConfigError;

/// For what need not be told: each sandbox's halves read it anew.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Everything that `sandbox-agent launch` has to know, as one JSON document. Unknown keys are refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LaunchConfig {
    /// What the sandbox sees as `/`. Default: the host's system folders, read-only.
    #[serde(skip_serializing_if = "is_default")]
    pub root: Root,
    /// Default: none but a loopback of its own.
    #[serde(skip_serializing_if = "is_default")]
    pub network: Network,
    /// 1..=64 letters, digits, `-` and `.`. Default `sandbox`.
    #[serde(skip_serializing_if = "is_default")]
    pub hostname: Option<String>,
    /// The one folder of the host that commands work in. Without it they start in `/` (or the user's home).
    #[serde(skip_serializing_if = "is_default")]
    pub workdir: Option<Workdir>,
    /// More files and folders of the host. Everything is mounted outermost first, whatever it is.
    #[serde(skip_serializing_if = "is_default")]
    pub binds: Vec<Bind>,
    /// More folders in memory.
    #[serde(skip_serializing_if = "is_default")]
    pub memory: Vec<MemoryFolder>,
    /// The user that `/etc/passwd` names beside root and nobody.
    #[serde(skip_serializing_if = "is_default")]
    pub user: SandboxUser,
    /// Which ids the sandbox gets.
    #[serde(skip_serializing_if = "is_default")]
    pub ids: Ids,
    /// Sizes of the private folders in memory.
    #[serde(skip_serializing_if = "is_default")]
    pub sizes: Sizes,
    /// More lines for `/etc/hosts`.
    #[serde(skip_serializing_if = "is_default")]
    pub hosts: Vec<HostEntry>,
    /// Capabilities inside the sandbox that commands keep. Default: none.
    #[serde(skip_serializing_if = "is_default")]
    pub capabilities: Vec<Capability>,
    /// A cgroup to make for the sandbox; limits that cannot be honoured stop the launch. Default: none is made.
    #[serde(skip_serializing_if = "is_default")]
    pub cgroup: Option<CgroupConfig>,
    /// Pid of the process that starts the launcher: the sandbox ends when that process ends (a thread's end does
    /// not count), and the launcher stays as its keeper until then. `None`: the launcher ends once the
    /// sandbox runs, and the sandbox outlives its client; see `outlives_parent`.
    #[serde(skip_serializing_if = "is_default")]
    pub die_with_parent: Option<u32>,
    /// Without `die_with_parent`: the launcher stays as the keeper of a sandbox that outlives its client, and removes the
    /// cgroup at its end. It keeps nothing before [`Launched::commit`](crate::Launched::commit): a provider that is
    /// killed before it wrote down what it has launched leaves nothing. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub outlives_parent: bool,
    /// How the agent serves as PID 1. Without it PID 1 only holds the sandbox open until its provider lets go of it.
    #[serde(skip_serializing_if = "is_default")]
    pub serve: Option<ServeConfig>,
    /// A program and its arguments to run as PID 1 instead of the agent, restricted like a command. Its output goes
    /// to the socket. The program is an absolute path inside.
    #[serde(skip_serializing_if = "is_default")]
    pub init: Option<Vec<String>>,
    /// Environment of `init` (PATH, HOME and LANG have defaults). Never shown by `Debug`.
    #[serde(skip_serializing_if = "is_default")]
    pub env: Environment,
}

/// What becomes `/`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum Root {
    /// The host's `/usr`, `/bin`, `/sbin` and `/lib*` read-only, a made-up `/etc`, everything else private.
    #[default]
    System,
    /// A folder that holds a whole system, below an overlay: everything can be written, the folder never changes.
    Rootfs {
        /// The folder; absolute, without links.
        lower: PathBuf,
        /// Takes what is written (`upper` and `work` are made in it); absolute, without links, for this sandbox only,
        /// on a file system that overlay accepts. Written without syncing: lost with the host's power.
        upper: PathBuf,
    },
}

/// What network the sandbox has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// A loopback of its own.
    #[default]
    None,
    /// The host's, with every address and listener; abstract unix sockets are fenced where the kernel can.
    Host,
}

/// The folder that commands work in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workdir {
    /// A folder of the host; absolute, without links.
    pub source: PathBuf,
    /// Where it is inside; absolute. Default `/workspace`.
    #[serde(default = "default_workdir")]
    pub target: PathBuf,
    /// As root: gives the folder itself (not its contents) to the sandbox's root. For folders made for the sandbox.
    #[serde(default)]
    pub chown: bool,
}

fn default_workdir() -> PathBuf {
    PathBuf::from("/workspace")
}

/// A line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxUser {
    /// 1..=32 of `a-z 0-9 _ -`. Default `sandbox`.
    pub name: String,
    /// 1..=65533. Default 1000. Where only one id is mapped, that one is used instead.
    pub uid: u32,
    /// 1..=65533. Default 1000.
    pub gid: u32,
}

impl Default for SandboxUser {
    fn default() -> SandboxUser {
        SandboxUser { name: "sandbox".to_owned(), uid: 1000, gid: 1000 }
    }
}

/// Which ids the sandbox gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ids {
    /// As root: the first of 65,536 host ids that are the sandbox's 0..=65535; 65536..=4294836224 and no account's.
    /// Default: root's first range of `/etc/subuid` that is long enough, else 1879048192.
    pub host_base: Option<u32>,
    /// Without privileges: what the caller's own uid is inside; 0..=65534. Default 0. PID 1 has no capabilities if it
    /// is not 0.
    pub inside_uid: u32,
    /// Without privileges: what the caller's own gid is inside; 0..=65534. Default 0.
    pub inside_gid: u32,
}

/// Sizes of the folders in memory, in MiB; 1..=1048576. They count against the memory limit, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sizes {
    /// `/tmp`. Default 512.
    pub tmp_mib: u32,
    /// `/var/tmp`. Default 512.
    pub var_tmp_mib: u32,
    /// `/run`. Default 64.
    pub run_mib: u32,
    /// `/home`. Default 512.
    pub home_mib: u32,
    /// `/root`. Default 512.
    pub root_mib: u32,
    /// `/dev/shm`. Default 64.
    pub shm_mib: u32,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { tmp_mib: 512, var_tmp_mib: 512, run_mib: 64, home_mib: 512, root_mib: 512, shm_mib: 64 }
    }
}

/// A line of `/etc/hosts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostEntry {
    /// The address.
    pub address: IpAddr,
    /// Its names, each like a host name.
    pub names: Vec<String>,
}

/// A cgroup for the sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupConfig {
    /// Its folder's name, 1..=128 of `A-Z a-z 0-9 _ -`. It must not exist yet.
    pub name: String,
    /// What it may use.
    #[serde(default)]
    pub limits: Limits,
}

/// Environment variables, which `Debug` does not show.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Environment(pub BTreeMap<String, String>);

impl fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} variables", self.0.len())
    }
}
