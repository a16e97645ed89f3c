//! What the service says, read leniently: unknown keys are ignored, unknown words are no error.

use std::collections::BTreeMap;

use sandbox_core::SandboxStatus;
use serde::Deserialize;

/// A sandbox as the control plane tells it. Everything but the id may be missing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SandboxDto {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) state: Option<String>,
    pub(crate) desired_state: Option<String>,
    pub(crate) error_reason: Option<String>,
    pub(crate) toolbox_proxy_url: Option<String>,
}

/// A page of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Page {
    pub(crate) items: Vec<SandboxDto>,
    pub(crate) next_cursor: Option<String>,
}

/// An answer with a URL.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Link {
    pub(crate) url: String,
    pub(crate) token: Option<String>,
}

/// A volume.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VolumeDto {
    pub(crate) id: String,
    pub(crate) state: Option<String>,
}

/// The answer to a command in one request. Very old daemons say `code`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Executed {
    #[serde(default, alias = "code")]
    pub(crate) exit_code: Option<i32>,
    #[serde(default)]
    pub(crate) result: String,
}

/// What a sandbox uses.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct MetricsDto {
    pub(crate) mem_used: Option<f64>,
    pub(crate) disk_used: Option<f64>,
}

/// A message about a terminal.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct TerminalMessage {
    pub(crate) r#type: String,
    pub(crate) status: String,
    pub(crate) exit_code: Option<i32>,
}

/// Where a sandbox is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Commands run.
    Ready,
    /// It may still become ready by itself.
    OnTheWay,
    /// It will not become ready.
    Failed,
    /// It is stopped, or going there.
    Halted,
    /// Frozen, or going there.
    Frozen,
    /// Deleted, or going there.
    Gone,
}

impl SandboxDto {
    pub(crate) fn state(&self) -> &str {
        self.state.as_deref().unwrap_or("unknown")
    }

    pub(crate) fn phase(&self) -> Phase {
        let wants_to_run = self.desired_state.as_deref() == Some("started");
        match self.state() {
            "started" => Phase::Ready,
            "resizing" | "snapshotting" | "forking" if wants_to_run => Phase::Ready,
            "creating" | "restoring" | "starting" | "pending_build" | "building_snapshot" | "pulling_snapshot"
            | "resuming" => Phase::OnTheWay,
            "paused" | "pausing" => Phase::Frozen,
            "destroyed" | "destroying" => Phase::Gone,
            "stopped" | "stopping" | "archived" | "archiving" | "resizing" | "snapshotting" | "forking" => {
                Phase::Halted
            }
            "error" | "build_failed" => Phase::Failed,
            // A word of a newer service, or none: what is wanted decides.
            _ => Phase::OnTheWay,
        }
    }

    /// The state in the contract's words. `was_paused`: the provider stopped it to pause it.
    pub(crate) fn status(&self, was_paused: bool) -> SandboxStatus {
        let is_known = !matches!(self.state(), "unknown");
        match self.phase() {
            Phase::Ready => SandboxStatus::Running,
            Phase::OnTheWay if is_known || self.desired_state.as_deref() == Some("started") => match self.state() {
                "creating" | "restoring" | "starting" | "pending_build" | "building_snapshot" | "pulling_snapshot"
                | "resuming" | "unknown" => SandboxStatus::Starting,
                _ => SandboxStatus::Unknown,
            },
            Phase::OnTheWay => SandboxStatus::Unknown,
            Phase::Failed => SandboxStatus::Error,
            Phase::Frozen => SandboxStatus::Paused,
            Phase::Halted if was_paused => SandboxStatus::Paused,
            Phase::Halted | Phase::Gone => SandboxStatus::Stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::SandboxStatus;

    use super::SandboxDto;

    fn status(state: Option<&str>, desired: Option<&str>) -> SandboxStatus {
        let dto = SandboxDto {
            state: state.map(str::to_owned),
            desired_state: desired.map(str::to_owned),
            ..SandboxDto::default()
        };
        dto.status(false)
    }

    #[test]
    fn defect_12_every_state_of_the_service_has_a_status() {
        use SandboxStatus::{Error, Paused, Running, Starting, Stopped, Unknown};
        for (states, expected) in [
            (&["started"][..], Running),
            (
                &[
                    "creating",
                    "restoring",
                    "starting",
                    "pending_build",
                    "building_snapshot",
                    "pulling_snapshot",
                    "resuming",
                ],
                Starting,
            ),
            (&["paused", "pausing"], Paused),
            (&["stopped", "stopping", "archived", "archiving", "destroyed", "destroying"], Stopped),
            (&["error", "build_failed"], Error),
            (&["hibernating"], Unknown),
        ] {
            for state in states {
                assert_eq!(status(Some(state), None), expected, "{state}");
            }
        }
        assert_eq!(status(None, Some("started")), Starting);
        assert_eq!(status(None, None), Unknown);
        assert_eq!(status(Some("unknown"), Some("started")), Starting);
        assert_eq!(status(Some("resizing"), Some("started")), Running);
        assert_eq!(status(Some("forking"), Some("stopped")), Stopped);
    }

    #[test]
    fn a_sandbox_is_read_with_unknown_keys_and_without_most_known_ones() {
        let dto: SandboxDto = serde_json::from_str(r#"{"id":"x","future":{"a":1},"autoStopInterval":1.0}"#).unwrap();
        assert_eq!((dto.id.as_str(), dto.state()), ("x", "unknown"));
    }
}
