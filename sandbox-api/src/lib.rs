//! What applications use: sandboxes on any provider.
//!
//! * [`AsyncSandbox`] is one sandbox; [`Sandbox`] is the same for code that blocks.
//! * [`create_provider`] makes a provider by name; [`register_provider`] adds one of the program's own.
//! * [`resolve_provider_config`] and its like read the configuration of a program.
//! * [`compose`] runs stacks of sandboxes that a compose file describes.
//! * [`flush_cleanup`] waits for what was dropped instead of stopped.
//!
//! The types of the contract that a caller needs are here too, so a program depends on this crate alone.
//!
//! ```no_run
//! use sandbox_api::{AsyncSandbox, SandboxSpec};
//!
//! # async fn example() -> sandbox_api::Result<()> {
//! let sandbox = AsyncSandbox::from_config(&serde_json::json!({"local": {}}))?;
//! sandbox.start(Some(SandboxSpec::default().with_env("WHO", "world").with_ttl_s(60.0))).await?;
//! let result = sandbox.run("echo hello $WHO").await?;
//! assert_eq!(result.stdout_text(), "hello world\n");
//! sandbox.stop().await?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod access;
mod admission;
mod async_sandbox;
mod attribution;
mod blocking;
mod builtin;
mod checks;
mod cleanup;
pub mod compose;
mod config;
mod cpu;
mod environment;
mod identity;
mod image;
mod kept;
#[cfg(feature = "opentelemetry")]
mod otlp;
mod pty;
mod reach;
mod staging;
mod supervise;
mod telemetry;
mod timeouts;

pub use access::{DirectKind, DirectSandboxConnection, SandboxAccess};
pub use admission::{Admission, AdmissionLimits};
pub use async_sandbox::{AsyncSandbox, BackgroundChildren, ExecOptions, Ownership, SandboxSidecar};
pub use attribution::{Attribution, log_attribution_once, resolve_attribution, resolve_run_id};
pub use blocking::{
    BlockingExecStream, BlockingPty, BlockingPtySession, BlockingSidecar, DEFAULT_OPERATION_TIMEOUT, Sandbox,
};
pub use builtin::{
    BUILTIN_PROVIDERS, create_provider, default_host, get_provider, host_builder, list_providers, register_provider,
};
pub use cleanup::{CleanupFailure, CleanupItem, CleanupReport, flush_cleanup, flush_cleanup_blocking};
pub use config::{
    Config, ConfigFile, ConfigFileKind, ConfigSources, ResolvedProvider, Sourced, read_config_file,
    resolve_config_values, resolve_provider_config, resolve_provider_metadata,
};
pub use cpu::cpu_cap_env;
pub use environment::Environment;
pub use identity::{may_live, new_identity, process_owner};
pub use image::{ImageRewrite, rewrite_image};
#[cfg(feature = "opentelemetry")]
pub use otlp::{OtlpExport, OtlpOptions, OtlpRecorder};
pub use plugin_host::{
    Origin as ProviderOrigin, Override, PluginHost, PluginHostBuilder, ProviderDescription, ProviderListing,
    ProviderState,
};
pub use pty::{DEFAULT_POLL_INTERVAL, PTY_BUFFER_BYTES, PtyChunk, PtyExec, PtyMode, SandboxPty, SandboxPtySession};
pub use reach::{ReachFrom, restricted_network_policy, sandbox_server_url};
pub use sandbox_core::{
    Admitted, AttachOptions, ByteString, Capability, CapabilitySet, CaptureLimits, ControlRequest,
    DEFAULT_CAPTURE_BYTES, DirEntry, Env, ErrorKind, ExecCommand, ExecEvent, ExecExit, ExecOutcome, ExecRequest,
    ExecResult, ExecStream, Field, FieldSupport, FileKind, FileStat, HostEntry, JobInfo, JobOffsets, ListFilter,
    NetworkMode, NetworkPolicy, Owner, ProviderInfo, ReadRange, ResourceUsage, Result, SandboxEndpoint, SandboxError,
    SandboxExecResult, SandboxHandle, SandboxIdentity, SandboxMetrics, SandboxProvider, SandboxPtySpec, SandboxRecord,
    SandboxResources, SandboxSecurity, SandboxSidecarSpec, SandboxSpec, SandboxStatus, Secret, SessionControl,
    StartFailure, StartupFile, StartupFiles, StdinSource, SweepReport, TextDecoder, VolumeMount, VolumeSource,
    WriteOptions, bytes, serde_json,
};
pub use supervise::{Supervised, SupervisionReceipt};
pub use telemetry::{DURATION_BUCKETS_MS, describe_metrics};
pub use timeouts::{ControlTimeouts, DEFAULT_EXEC_TIMEOUT_S};
