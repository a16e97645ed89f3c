//! What names a sandbox, and what state it is in.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{Result, SandboxError};

/// Names one sandbox on its provider's side. Bound to one incarnation: after the sandbox was replaced or restarted a
/// provider refuses a handle of an older `generation`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxHandle {
    /// The provider's id of the sandbox. Unique for that provider.
    pub sandbox_id: String,
    /// The name of the provider that made it.
    pub provider_name: String,
    /// Which incarnation this handle belongs to.
    #[serde(default)]
    pub generation: u64,
    /// Whatever the provider needs to find it again. Opaque to everybody else.
    #[serde(default)]
    pub state: serde_json::Value,
}

impl SandboxHandle {
    /// A handle without provider state, of the first generation.
    pub fn new(sandbox_id: impl Into<String>, provider_name: impl Into<String>) -> Self {
        Self {
            sandbox_id: sandbox_id.into(),
            provider_name: provider_name.into(),
            generation: 0,
            state: serde_json::Value::Null,
        }
    }

    /// The same handle with provider state.
    #[must_use]
    pub fn with_state(mut self, state: serde_json::Value) -> Self {
        self.state = state;
        self
    }
}

impl fmt::Debug for SandboxHandle {
    // The state may hold tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxHandle")
            .field("sandbox_id", &self.sandbox_id)
            .field("provider_name", &self.provider_name)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// The state of a sandbox. One that is gone is `Stopped`; one that cannot be reached is `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SandboxStatus {
    /// Being made; commands do not run yet.
    Starting,
    /// Commands run.
    Running,
    /// Frozen; see [`PauseResume`](crate::PauseResume).
    Paused,
    /// Gone, or never to run again.
    Stopped,
    /// The backend reports a failure.
    Error,
    /// The backend did not answer, or answered something that this version does not know.
    #[serde(other)]
    Unknown,
}

impl SandboxStatus {
    /// The name used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Error => "error",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for SandboxStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a port of a sandbox can be reached: an absolute URL and the headers that a request must carry.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxEndpoint {
    /// `scheme://host[:port][/path]`.
    pub endpoint: String,
    /// Headers to send, credentials among them.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

impl SandboxEndpoint {
    /// Checks the URL and trims blanks around it.
    ///
    /// # Errors
    /// `InvalidInput` when there is no scheme or no host.
    pub fn new(endpoint: impl AsRef<str>, headers: BTreeMap<String, String>) -> Result<Self> {
        let endpoint = endpoint.as_ref().trim();
        let valid = endpoint.split_once("://").is_some_and(|(scheme, rest)| {
            let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let first_is_letter = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
            first_is_letter
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
                && !host.is_empty()
                && !endpoint.contains(char::is_whitespace)
        });
        if !valid {
            return Err(SandboxError::invalid_input("endpoint", "must be an absolute URL such as http://host:8000"));
        }
        Ok(Self { endpoint: endpoint.to_owned(), headers })
    }
}

impl fmt::Debug for SandboxEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.keys().collect();
        f.debug_struct("SandboxEndpoint").field("headers", &names).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{SandboxEndpoint, SandboxStatus};

    #[test]
    fn an_endpoint_needs_a_scheme_and_a_host() {
        for good in ["http://h", " tcp://h:1 ", "https://h/p?q", "a+b://h"] {
            assert!(SandboxEndpoint::new(good, Default::default()).is_ok(), "{good}");
        }
        for bad in ["", "h:80", "/x", "http://", "http:///x", "://h", "1a://h", "http://a b"] {
            assert!(SandboxEndpoint::new(bad, Default::default()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_status_of_a_newer_peer_reads_as_unknown() {
        assert_eq!(serde_json::from_str::<SandboxStatus>("\"hibernating\"").unwrap(), SandboxStatus::Unknown);
        assert_eq!(serde_json::to_string(&SandboxStatus::Paused).unwrap(), "\"paused\"");
    }
}
