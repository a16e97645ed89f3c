//! What a sandbox of a stack is doing.

use serde::Serialize;

/// What a sandbox of a stack is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ServicePhase {
    /// Its sandbox is there; its program waits for others.
    Waiting,
    /// Its program runs.
    Running,
    /// Its program ended, with this code.
    Exited(i32),
    /// It could not be started, or contact with it broke off.
    Failed(String),
}

/// Whether a service is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ServiceHealth {
    /// It has no health check.
    Unchecked,
    /// No check has passed yet, and not enough have failed.
    Starting,
    /// The last check passed.
    Healthy,
    /// Too many checks in a row failed.
    Unhealthy,
}

/// The state of one sandbox of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServiceState {
    /// What its program does.
    pub phase: ServicePhase,
    /// Whether it is well.
    pub health: ServiceHealth,
    /// How often it was started again.
    pub restarts: u32,
}

impl ServiceState {
    pub(super) const fn new() -> Self {
        Self { phase: ServicePhase::Waiting, health: ServiceHealth::Unchecked, restarts: 0 }
    }

    /// Whether the program has ended and will not be started again.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, ServicePhase::Exited(_) | ServicePhase::Failed(_))
    }
}

/// One line of `ps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServiceStatus {
    /// The service.
    pub service: String,
    /// Which of its sandboxes, from 1.
    pub replica: u32,
    /// The sandbox.
    pub sandbox_id: String,
    /// Its state.
    #[serde(flatten)]
    pub state: ServiceState,
}

/// Something that happened to a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ComposeEvent {
    /// In milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The service; none: the stack itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Which of its sandboxes, from 1; 0 for the stack itself.
    pub replica: u32,
    /// `building`, `built`, `created`, `started`, `restarted`, `exited`, `failed`, `healthy`, `unhealthy`, `stopping`, `removed`.
    pub what: &'static str,
    /// The exit code, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}
