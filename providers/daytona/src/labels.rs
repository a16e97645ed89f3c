//! What a sandbox carries at the service: who answers for it, and what a handle needs.

use std::collections::BTreeMap;

use sandbox_agent_client::this_process;
use sandbox_core::{Owner, Result, SandboxError, SandboxHandle, SandboxIdentity, SandboxSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{error::NAME, wire::SandboxDto};

/// Labels of this system start with this.
const PREFIX: &str = "sandbox.";

/// The label that every sandbox of this system has.
pub(crate) const MANAGED: &str = "sandbox.managed";
pub(crate) const NONCE: &str = "sandbox.nonce";
pub(crate) const PAUSED: &str = "sandbox.paused";
pub(crate) const RUN: &str = "sandbox.run";
pub(crate) const EXPIRES: &str = "sandbox.expires_at_ms";
const OWNER: &str = "sandbox.owner";
const CREATED: &str = "sandbox.created_at_ms";
const ATTRIBUTION: &str = "sandbox.attribution";
const PERSON_NAME: &str = "sandbox.name";
const IMAGE: &str = "sandbox.image";
const WORKDIR: &str = "sandbox.workdir";
const PORTS: &str = "sandbox.ports";

/// The label by which the official client knows the language. It takes no sandbox without.
const LANGUAGE: &str = "code-toolbox-language";

/// What a handle knows beside the id. Holds no secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HandleState {
    /// Base of the toolbox's proxy, as the service said it.
    pub(crate) proxy: Option<String>,
    pub(crate) workdir: Option<String>,
    pub(crate) ports: Vec<u16>,
    /// Bound to this very sandbox.
    pub(crate) nonce: Option<String>,
}

pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The labels of a new sandbox.
///
/// # Errors
/// `InvalidInput` for a label of the spec that is one of this system's.
pub(crate) fn labels(spec: &SandboxSpec, nonce: &str, language: &str) -> Result<BTreeMap<String, String>> {
    for key in spec.metadata.keys() {
        if key.starts_with(PREFIX) || key == LANGUAGE {
            return Err(SandboxError::invalid_input(format!("metadata.{key}"), "is a label that the provider sets"));
        }
    }
    let mut labels = spec.metadata.clone();
    let identity = identity(spec);
    let mut add = |key: &str, value: String| drop(labels.insert(key.to_owned(), value));
    add(MANAGED, "1".to_owned());
    add(NONCE, nonce.to_owned());
    add(RUN, identity.run_id.clone());
    add(OWNER, serde_json::to_string(&identity.owner).unwrap_or_default());
    add(CREATED, identity.created_at_ms.to_string());
    add(LANGUAGE, language.to_owned());
    if let Some(expires) = identity.expires_at_ms {
        add(EXPIRES, expires.to_string());
    }
    if !identity.attribution.is_empty() {
        add(ATTRIBUTION, serde_json::to_string(&identity.attribution).unwrap_or_default());
    }
    for (key, value) in [(PERSON_NAME, &spec.name), (IMAGE, &spec.image), (WORKDIR, &spec.workdir)] {
        if let Some(value) = value {
            add(key, value.clone());
        }
    }
    if !spec.ports.is_empty() {
        add(PORTS, spec.ports.iter().map(u16::to_string).collect::<Vec<_>>().join(","));
    }
    Ok(labels)
}

/// Who answers for it: as the host says, else this process.
fn identity(spec: &SandboxSpec) -> SandboxIdentity {
    let mut identity = spec.identity.clone().unwrap_or_else(|| SandboxIdentity {
        run_id: String::new(),
        owner: this_process(),
        created_at_ms: now_ms(),
        expires_at_ms: None,
        attribution: BTreeMap::new(),
    });
    if let Some(ttl) = spec.ttl() {
        identity.expires_at_ms = Some(now_ms().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)));
    }
    identity
}

impl SandboxDto {
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    /// Labels that the caller gave.
    pub(crate) fn metadata(&self) -> BTreeMap<String, String> {
        let is_theirs = |key: &str| !key.starts_with(PREFIX) && key != LANGUAGE;
        self.labels.iter().filter(|(key, _)| is_theirs(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    pub(crate) fn person_name(&self) -> Option<String> {
        self.label(PERSON_NAME).map(str::to_owned)
    }

    pub(crate) fn image(&self) -> Option<String> {
        self.label(IMAGE).map(str::to_owned)
    }

    /// None where the labels are not those that this system writes.
    pub(crate) fn identity(&self) -> Option<SandboxIdentity> {
        let owner: Owner = serde_json::from_str(self.label(OWNER)?).ok()?;
        Some(SandboxIdentity {
            run_id: self.label(RUN).unwrap_or_default().to_owned(),
            owner,
            created_at_ms: self.label(CREATED)?.parse().ok()?,
            expires_at_ms: self.label(EXPIRES).and_then(|text| text.parse().ok()),
            attribution: self.label(ATTRIBUTION).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
        })
    }

    pub(crate) fn handle(&self) -> SandboxHandle {
        let ports = self.label(PORTS).unwrap_or_default();
        let state = HandleState {
            proxy: self.toolbox_proxy_url.clone().filter(|url| !url.is_empty()),
            workdir: self.label(WORKDIR).map(str::to_owned),
            ports: ports.split(',').filter_map(|port| port.parse().ok()).collect(),
            nonce: self.label(NONCE).map(str::to_owned),
        };
        SandboxHandle::new(self.id.as_str(), NAME).with_state(json!(state))
    }
}

/// The state of a handle; an empty one where it is not ours.
pub(crate) fn state(handle: &SandboxHandle) -> HandleState {
    serde_json::from_value(handle.state.clone()).unwrap_or_default()
}

/// The descriptor of a sandbox.
pub(crate) fn descriptor(handle: &SandboxHandle) -> Value {
    json!({"provider": NAME, "sandbox_id": handle.sandbox_id, "nonce": state(handle).nonce})
}
