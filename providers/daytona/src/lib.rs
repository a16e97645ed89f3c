//! Sandboxes of the Daytona service: its control plane makes them, its toolbox inside each reaches them.
//!
//! Commands do not use the service's own calls for commands, which mix the streams, keep nothing of them after a time limit
//! and tie a command to one connection. Each has a folder of its own inside, see `job`.

#![forbid(unsafe_code)]

mod agent;
mod client;
mod config;
mod create;
mod direct;
mod error;
mod exec;
mod files;
mod folders;
mod gate;
mod info;
mod job;
mod jobs;
mod labels;
mod lifecycle;
mod news;
mod options;
mod provider;
mod pty;
mod random;
mod script;
mod socket;
mod sweep;
mod toolbox;
mod transfer;
mod unpack;
mod wire;

pub use config::{
    BatchConfig, ConnectionConfig, CreateConfig, Credential, DaytonaConfig, ExecMode, OperationsConfig, ProbeConfig,
};
pub use provider::DaytonaProvider;

sandbox_core::export_provider!(DaytonaProvider::new);
