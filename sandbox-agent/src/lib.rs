//! The static program inside a sandbox, and what a provider needs to start it isolated on Linux.
//!
//! `sandbox-agent launch` makes the namespaces and the root of each sandbox that it is asked for, in processes of their
//! own, of which one becomes PID 1 there. It then serves commands and files, and applies [`CommandRestrictions`] to what
//! it runs. A provider starts all of it with [`Launcher`] from safe code, and limits it with [`Cgroup`].
//!
//! - Host root is never mapped into a sandbox, and nothing falls back to less isolation: what cannot be had is a
//!   [`LaunchError`] that names the stage, the path, the errno and the setting to change.
//! - Only `sys.rs` and `serve/sys.rs` hold unsafe code.

#[cfg(not(all(target_os = "linux", target_endian = "little", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("sandbox-agent needs Linux on x86_64 or aarch64");

mod cgroup;
mod config;
mod error;
mod handover;
mod hardening;
mod hint;
mod hold;
mod kernel_file;
mod launch;
mod launcher;
mod relay;
mod report;
mod serve;
mod sys;

pub use cgroup::{Cgroup, CgroupError, CgroupErrorKind, Limit, Limits, Metrics, Probe, Version, probe};
pub use config::{
    Access, Basis, Bind, BindOwner, CgroupConfig, ConfigError, Environment, HostEntry, Ids, LaunchConfig, MemoryFolder,
    Network, Root, SandboxUser, Sizes, Workdir,
};
pub use error::{LaunchError, Stage};
pub use handover::Handover;
pub use hardening::{Capability, CommandRestrictions, RestrictError, landlock_abi, protect_agent};
pub use launch::run as run_launch;
pub use launcher::{Launched, Launcher, Prepared};
pub use relay::relay;
pub use report::{IdMap, Landlock, LaunchStatus, Report};
pub use serve::{
    CommandLimits, ConfigSource, Endpoint, Entrypoint, LocalAgent, ServeArguments, ServeConfig, ServeConfigError,
    TokenSource, run as run_serve, run_behind,
};
