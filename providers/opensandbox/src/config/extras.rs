//! Attribution, networking, shared storage, runtime requirements.

use std::collections::BTreeMap;

use sandbox_core::Result;
use serde::Deserialize;

use super::invalid;

/// Who the sandboxes belong to: labels for people and for cleaning up.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct AttributionConfig {
    /// Whether the labels are set. Default: true.
    pub enabled: bool,
    /// The team. Default: none.
    pub team: Option<String>,
    /// The user. Default: what the host says.
    pub user: Option<String>,
    /// The workload. Default: what the host says.
    pub workload: Option<String>,
    /// The run. Default: what the host says.
    pub run: Option<String>,
    /// What is in front of the keys: a DNS name and a slash. Default: `sandbox/`.
    pub key_prefix: String,
}

impl Default for AttributionConfig {
    fn default() -> Self {
        Self { enabled: true, team: None, user: None, workload: None, run: None, key_prefix: "sandbox/".to_owned() }
    }
}

impl AttributionConfig {
    pub(super) fn validate(&self) -> Result<()> {
        const KEY: &str = "attribution.key_prefix";
        let name = self.key_prefix.strip_suffix('/').unwrap_or(&self.key_prefix);
        let is_part = |part: &str| {
            !part.is_empty()
                && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
                && !part.starts_with('-')
                && !part.ends_with('-')
        };
        if name.len() > 253 || !name.split('.').all(is_part) {
            return Err(invalid(KEY, "must be a DNS name of at most 253 characters and a slash, such as example.org/"));
        }
        if name == "opensandbox.io" {
            return Err(invalid(KEY, "opensandbox.io/ is the server's own"));
        }
        Ok(())
    }

    /// The key of a label.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.key_prefix.trim_end_matches('/'))
    }
}

/// Traffic between sandboxes. Needs a server whose sandboxes have addresses that others reach: Kubernetes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct NetworkingConfig {
    /// Whether sandboxes can reach each other. Default: false.
    pub enabled: bool,
    /// Whether ports of another sandbox may be brought to a sandbox's own loopback. Default: false.
    pub loopback_forwarding: bool,
    /// The Python of the sandboxes that does it. Default: `python3`.
    pub python_executable: String,
    /// A script that is run first, as root, where Python has to be installed. Default: none.
    pub setup_command: Option<String>,
}

impl Default for NetworkingConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            loopback_forwarding: false,
            python_executable: "python3".to_owned(),
            setup_command: None,
        }
    }
}

impl NetworkingConfig {
    pub(super) fn validate(&self) -> Result<()> {
        if self.python_executable.trim().is_empty() || self.python_executable.contains('\0') {
            return Err(invalid("networking.python_executable", "must name a program"));
        }
        if self.loopback_forwarding && !self.enabled {
            return Err(invalid("networking.loopback_forwarding", "needs networking.enabled = true"));
        }
        if self.setup_command.as_deref().is_some_and(|script| script.trim().is_empty()) {
            return Err(invalid("networking.setup_command", "must be a script, or be left out"));
        }
        Ok(())
    }
}

/// Storage that several sandboxes share: a folder of the server's hosts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SharedStorageConfig {
    /// The folder, absolute; the server must allow it. Default: none.
    pub host_path: Option<String>,
    /// Labels for sandboxes that use it, such as those that place them. Default: none.
    pub metadata: BTreeMap<String, String>,
}

impl SharedStorageConfig {
    pub(super) fn validate(&self) -> Result<()> {
        let Some(path) = &self.host_path else {
            if self.metadata.is_empty() {
                return Ok(());
            }
            return Err(invalid("shared_storage.metadata", "has no effect without shared_storage.host_path"));
        };
        if !path.starts_with('/') || path.contains(['\0', '\\']) || path.split('/').any(|part| part == "..") {
            return Err(invalid("shared_storage.host_path", "must be an absolute path without \"..\""));
        }
        Ok(())
    }
}

/// What services need of the kernel, and how a sandbox shows that it has it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RuntimeRequirementsConfig {
    /// By capability (without `CAP_`): a script, run as root, that succeeds where the capability is there.
    pub capability_probes: BTreeMap<String, String>,
    /// By capability: labels that make the server give it.
    pub capability_metadata: BTreeMap<String, BTreeMap<String, String>>,
    /// The key of the label that tells the server the size of `/dev/shm`, such as `64Mi`.
    pub shm_size_metadata_key: Option<String>,
}

impl RuntimeRequirementsConfig {
    pub(super) fn validate(&self) -> Result<()> {
        for (name, script) in &self.capability_probes {
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_uppercase() || c == '_') || name.starts_with("CAP_")
            {
                let key = format!("runtime_requirements.capability_probes.{name}");
                return Err(invalid(&key, "must be a capability in capitals, without CAP_"));
            }
            if script.trim().is_empty() {
                return Err(invalid(&format!("runtime_requirements.capability_probes.{name}"), "must be a script"));
            }
        }
        if let Some(name) = self.capability_metadata.keys().find(|name| !self.capability_probes.contains_key(*name)) {
            let key = format!("runtime_requirements.capability_metadata.{name}");
            return Err(invalid(&key, "has no probe in runtime_requirements.capability_probes"));
        }
        if self.shm_size_metadata_key.as_deref().is_some_and(|key| key.trim().is_empty()) {
            return Err(invalid("runtime_requirements.shm_size_metadata_key", "must not be blank"));
        }
        Ok(())
    }
}
