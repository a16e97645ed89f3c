//! The provider contract of the sandbox system.
//!
//! A *provider* is a backend: something that can make a sandbox, run commands in it and move files. This crate
//! holds everything that the two sides of that contract share:
//!
//! * the types ([`SandboxSpec`], [`ExecRequest`], [`SandboxExecResult`], [`SandboxHandle`], …) with their validation,
//! * the traits a provider implements in safe async Rust ([`SandboxProvider`] and one trait per [`Capability`]),
//! * one error type, [`SandboxError`],
//! * the stable ABI over which a provider in a shared library is called ([`export_provider!`], module [`abi`]).
//!
//! The version of this crate is the version of the contract; `docs/abi.md` says how it may move.
//!
//! ```
//! use sandbox_core::{ExecRequest, SandboxSpec};
//!
//! let spec = SandboxSpec::default().with_env("GREETING", "hi").with_ttl_s(60.0);
//! spec.validate()?;
//! let request = ExecRequest::shell("echo $GREETING").with_timeout_s(5.0);
//! request.validate()?;
//! # Ok::<(), sandbox_core::SandboxError>(())
//! ```

#[cfg(feature = "abi")]
pub mod abi;
mod byte_string;
mod capabilities;
mod capability;
mod cause;
mod config;
mod error;
mod exec;
mod handle;
mod info;
mod manifest;
mod provider;
mod pty;
mod resources;
mod secret;
mod session;
mod spec;
mod spec_parts;
mod validate;

#[cfg(feature = "abi")]
pub use abi::plugin_file;
pub use byte_string::ByteString;
pub use capabilities::{
    AttachOptions, BackgroundServices, BuildEvent, BuildImage, BuildRequest, BuiltImage, Connect, DirEntry, Endpoint,
    FileKind, FileStat, Files, ImageConfig, ImageConfigs, ImageHealthcheck, JobInfo, JobOffsets, Jobs, ListFilter,
    ListSweep, Metrics, NamedNetwork, NamedVolume, Network, NetworkPolicies, NetworkPolicy, NetworkRequest, Networks,
    PauseResume, PolicyRule, PortEvent, PortForwarding, PortStream, Pty, PtyAttach, ReadRange, Renew,
    RuntimeRequirements, RuntimeRequirementsSpec, SandboxMetrics, SandboxRecord, SharedStorage, Sidecars, Snapshot,
    Snapshots, SweepReport, VolumeRequest, Volumes, WriteOptions,
};
pub use capability::{Capability, CapabilitySet};
pub use config::from_json;
pub use error::{Admitted, ErrorKind, Result, SandboxError};
pub use exec::{
    CaptureLimits, DEFAULT_CAPTURE_BYTES, ExecCollector, ExecCommand, ExecEvent, ExecExit, ExecOutcome, ExecRequest,
    ExecResult, ExecStream, ResourceUsage, SandboxExecResult, StartFailure, StdinSource, TextDecoder,
};
pub use handle::{SandboxEndpoint, SandboxHandle, SandboxStatus};
pub use info::{Field, FieldSupport, ProviderInfo};
pub use manifest::{CONTRACT_VERSION, ContractVersion, MANIFEST_SECTION, ProviderManifest};
pub use provider::SandboxProvider;
pub use pty::{PtyEvent, PtyStream, SandboxPtySpec};
pub use resources::SandboxResources;
pub use secret::Secret;
pub use session::{
    ControlReply, ControlRequest, SESSION_QUEUE_EVENTS, Session, SessionControl, SessionEvent, SessionSink,
};
pub use spec::SandboxSpec;
pub use spec_parts::{
    Env, HostEntry, NetworkMode, Owner, SandboxIdentity, SandboxSecurity, SandboxSidecarSpec, StartupFile,
    StartupFiles, VolumeMount, VolumeSource,
};
pub use validate::{MAX_ARGUMENT_BYTES, MAX_ARGUMENTS_TOTAL_BYTES, is_loopback_host, near_match};

// Authors use the same releases as the bridge does: one import for each.
pub use async_trait::async_trait;
pub use bytes;
pub use serde;
pub use serde_json;
pub use tokio;
pub use tracing;
