use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{PtyStream, Result, SandboxHandle, SandboxIdentity, SandboxPtySpec, SandboxStatus};

/// Pause and resume. While a sandbox is paused its time to live does not run inside.
#[crate::async_trait]
pub trait PauseResume: Send + Sync {
    /// Freezes the sandbox. Open terminals are detached.
    ///
    /// # Errors
    /// `InvalidState` when it is not running.
    async fn pause(&self, handle: &SandboxHandle) -> Result<()>;

    /// Thaws the sandbox and returns when commands run again. The handle returned replaces the old one.
    ///
    /// # Errors
    /// `InvalidState` when it is not paused; `TimedOut`: ask for its status.
    async fn resume(&self, handle: &SandboxHandle) -> Result<SandboxHandle>;
}

/// Interactive sessions.
#[crate::async_trait]
pub trait Pty: Send + Sync {
    /// Opens a session. The stream's first event is [`PtyEvent::Opened`](crate::PtyEvent::Opened).
    ///
    /// # Errors
    /// `InvalidInput` for a value that the backend cannot honour; `Pty`.
    async fn create_pty(&self, handle: &SandboxHandle, spec: SandboxPtySpec) -> Result<PtyStream>;
}

/// Sessions that outlive their client.
#[crate::async_trait]
pub trait PtyAttach: Send + Sync {
    /// Attaches to a session by its id, from any process.
    ///
    /// # Errors
    /// `NotFound`; `InvalidState` when it is held by another client and no takeover was asked for.
    async fn attach_pty(&self, handle: &SandboxHandle, session_id: String, options: AttachOptions)
    -> Result<PtyStream>;
}

/// How to attach to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttachOptions {
    /// Evict the client that holds it.
    pub takeover: bool,
    /// Replay retained output from this byte offset on; none: only what comes from now on.
    pub since: Option<u64>,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self { takeover: true, since: None }
    }
}

/// Reattach from another process.
#[crate::async_trait]
pub trait Connect: Send + Sync {
    /// A JSON object from which [`Connect::connect`] finds the sandbox again, in another process with the same
    /// configuration. Holds no secret.
    ///
    /// # Errors
    /// `InvalidInput` for a scope that the backend does not have.
    async fn serialize_handle(&self, handle: &SandboxHandle, scope: Option<String>) -> Result<Value>;

    /// Finds the sandbox of a descriptor. Keys that the provider did not write itself are left alone: the host adds its
    /// own.
    ///
    /// # Errors
    /// `InvalidInput` for something that is not a descriptor; `NotFound` when it is gone, was replaced, or is not ours.
    async fn connect(&self, descriptor: Value) -> Result<SandboxHandle>;
}

/// Moving the expiry.
#[crate::async_trait]
pub trait Renew: Send + Sync {
    /// Lets the sandbox live for `ttl_s` seconds from now, and returns the new expiry in milliseconds since the Unix
    /// epoch.
    ///
    /// # Errors
    /// `InvalidInput` beyond the backend's longest life; `NotFound`.
    async fn renew(&self, handle: &SandboxHandle, ttl_s: f64) -> Result<u64>;
}

/// Finding and removing what was left behind.
#[crate::async_trait]
pub trait ListSweep: Send + Sync {
    /// The sandboxes that this system made on this backend, whoever made them.
    ///
    /// # Errors
    /// What the backend said.
    async fn list(&self, filter: ListFilter) -> Result<Vec<SandboxRecord>>;

    /// Removes those whose owner is gone or whose lease is past, and what belongs to them. One whose owner lives is
    /// never touched.
    ///
    /// # Errors
    /// What the backend said; what could not be removed is in the report.
    async fn sweep(&self, filter: ListFilter, dry_run: bool) -> Result<SweepReport>;
}

/// Which sandboxes. Every condition that is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListFilter {
    /// Of this run.
    pub run_id: Option<String>,
    /// With these labels.
    pub metadata: BTreeMap<String, String>,
    /// Older than so many seconds.
    pub older_than_s: Option<f64>,
}

/// A sandbox as the backend knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// How to reach it.
    pub handle: SandboxHandle,
    /// Its state.
    pub status: SandboxStatus,
    /// The name for people.
    #[serde(default)]
    pub name: Option<String>,
    /// The image.
    #[serde(default)]
    pub image: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Who made it and until when, if it says so.
    #[serde(default)]
    pub identity: Option<SandboxIdentity>,
}

/// What a sweep did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SweepReport {
    /// Ids of what was removed (or would be, in a dry run).
    pub removed: Vec<String>,
    /// Id and error text of what could not be removed.
    pub failed: Vec<(String, String)>,
}

/// Snapshots.
#[crate::async_trait]
pub trait Snapshots: Send + Sync {
    /// Keeps the state of a sandbox under a name.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound`.
    async fn create_snapshot(&self, handle: &SandboxHandle, name: String) -> Result<Snapshot>;

    /// All snapshots.
    ///
    /// # Errors
    /// What the backend said.
    async fn list_snapshots(&self) -> Result<Vec<Snapshot>>;

    /// Removes a snapshot. One that is gone is fine.
    ///
    /// # Errors
    /// What the backend said.
    async fn remove_snapshot(&self, id: String) -> Result<()>;
}

/// A kept state of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The backend's id; usable as the image of a new sandbox.
    pub id: String,
    /// The name it was kept under.
    pub name: String,
    /// When it was made, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub created_at_ms: Option<u64>,
    /// Size in bytes.
    #[serde(default)]
    pub size_bytes: Option<u64>,
}

/// What a sandbox uses.
#[crate::async_trait]
pub trait Metrics: Send + Sync {
    /// The use right now.
    ///
    /// # Errors
    /// `NotFound`.
    async fn metrics(&self, handle: &SandboxHandle) -> Result<SandboxMetrics>;
}

/// What a sandbox uses right now. What the backend cannot measure is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxMetrics {
    /// CPU time used so far, in seconds.
    pub cpu_time_s: Option<f64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Number of processes.
    pub processes: Option<u64>,
    /// Disk in bytes.
    pub disk_bytes: Option<u64>,
    /// Bytes received.
    pub received_bytes: Option<u64>,
    /// Bytes sent.
    pub sent_bytes: Option<u64>,
}
