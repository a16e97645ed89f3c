//! Sandboxes as containers of a Docker Engine (or of what speaks its API: Podman).
//!
//! A sandbox is one container whose main process is our agent: commands, terminals, files and ports go over one
//! connection to it, which is a unix socket in a shared folder where the engine runs on this machine, and else a stream
//! through the engine. Where the agent cannot run, commands go through the engine's own exec, which is declared.
//!
//! Everything that is made carries labels: who made it, until when, and which incarnation it is. So any process finds
//! it again, a handle never means another container, and what nobody answers for any more can be swept.

#![forbid(unsafe_code)]

mod auth;
mod bare;
mod build;
mod config;
mod create;
mod credential_helper;
mod engine;
mod entrypoint;
mod error;
mod failed;
mod files;
mod found;
mod image;
mod info;
mod inject;
mod jobs;
mod kernel;
mod labels;
mod lifecycle;
mod link;
mod made;
mod network;
mod options;
mod plan;
mod pool;
mod provider;
mod requirements;
mod run_folder;
mod sandbox;
mod sessions;
mod sidecars;
mod snapshots;
mod storage;
mod sweep;
mod tls;

pub use config::{
    AgentMode, DockerConfig, PoolConfig, PullPolicy, RegistryAuth, SharedStorageConfig, TlsFiles, Transport,
};
pub use provider::DockerProvider;

sandbox_core::export_provider!(DockerProvider::new);
