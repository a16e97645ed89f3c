//! Sandboxes on this machine: no daemon, no account, no image.
//!
//! A sandbox is a folder and the processes that were started for it. Commands run in clean surroundings (own folder,
//! own environment, no inherited descriptors) and nothing of them outlives the sandbox, or the program that made it.
//!
//! With `isolation = "namespaces"`, the default, each sandbox has a root, processes, users and a network of its own, and
//! an agent as its PID 1 through which everything goes; see `isolated`. Where that cannot be had it is refused.
//! With `isolation = "none"`, which has to be asked for, commands are this machine's own processes, with its files and
//! its network. What keeps them apart is the user they run as, and nothing else; use it for code that you would run
//! yourself.
//!
//! Without isolation, paths of files are confined to the working folder as long as they are relative or below it: neither `..` nor a link
//! leads out. Other absolute paths are this machine's own.

#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("sandbox-provider-local needs Linux: process trees, openat2 and /proc");

mod close;
mod config;
mod copy;
mod create;
mod dropped;
mod environment;
mod error;
mod exec;
mod fate;
mod files;
mod folder;
mod info;
mod isolated;
mod paths;
mod provider;
mod record;
mod records;
mod remove;
mod sandbox;
mod state;
mod sweep;
mod transfer;
mod tree;
mod user;
mod workspace;

pub use config::{BindSetting, LocalConfig, NetworkDefault};
pub use provider::LocalProvider;
pub use sandbox_agent::Sizes;

sandbox_core::export_provider!(LocalProvider::new);
