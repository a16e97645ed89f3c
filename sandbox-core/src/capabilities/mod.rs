//! One trait per optional ability. An author implements those that the backend has.
//!
//! Every trait is a supertrait of nothing: an object of it is had from its accessor on
//! [`SandboxProvider`](crate::SandboxProvider). Their methods may be called at the same time, from any thread, and
//! dropping a future cancels the call unless said otherwise.

mod files;
mod images;
mod jobs;
mod lifecycle;
mod network;
mod services;
mod storage;

pub use files::{DirEntry, FileKind, FileStat, Files, ReadRange, WriteOptions};
pub use images::{BuildEvent, BuildImage, BuildRequest, BuiltImage, ImageConfig, ImageConfigs, ImageHealthcheck};
pub use jobs::{JobInfo, JobOffsets, Jobs};
pub use lifecycle::{
    AttachOptions, Connect, ListFilter, ListSweep, Metrics, PauseResume, Pty, PtyAttach, Renew, SandboxMetrics,
    SandboxRecord, Snapshot, Snapshots, SweepReport,
};
pub use network::{
    Endpoint, NamedNetwork, Network, NetworkPolicies, NetworkPolicy, NetworkRequest, Networks, PolicyRule, PortEvent,
    PortForwarding, PortStream,
};
pub use services::{BackgroundServices, RuntimeRequirements, RuntimeRequirementsSpec, Sidecars};
pub use storage::{NamedVolume, SharedStorage, VolumeRequest, Volumes};
