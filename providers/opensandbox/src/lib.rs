//! Sandboxes of an OpenSandbox server, on Docker or Kubernetes.
//!
//! The server's lifecycle API makes, finds and removes sandboxes; the daemon inside each of them (`execd`) runs commands
//! and moves files. It is reached through the server or directly. The server's key goes to the server only.
//!
//! What the daemon cannot say is never made up: a stream of events that ends without the end of its command is lost, and a
//! command whose start may have reached the sandbox is never started twice.

#![forbid(unsafe_code)]

mod config;
mod create;
mod create_request;
mod daemon;
mod error;
mod exec;
mod forward;
mod http;
mod info;
mod labels;
mod lifecycle;
mod native;
mod network;
mod options;
mod provider;
mod pty;
mod renewal;
mod retry;
mod services;
mod shared;
mod snapshots;
mod starts;
mod state;
mod storage;
mod sweep;
mod transfer;
mod websocket;

pub use config::{
    AttributionConfig, ConnectionConfig, CreateConfig, ImagePullPolicy, NativeSetting, NetworkingConfig, OnUnverified,
    OpenSandboxConfig, OperationsConfig, OutputDialectSetting, ProbeConfig, Protocol, RuntimeRequirementsConfig,
    SharedStorageConfig, TransportBackend,
};
pub use provider::OpenSandboxProvider;

sandbox_core::export_provider!(OpenSandboxProvider::new);
