//! What is written on a container, so that any process finds it again and nobody removes it by mistake.

use std::collections::{BTreeMap, HashMap};

use sandbox_core::{Owner, Result, SandboxError, SandboxIdentity, SandboxSpec, Secret};
use serde::{Deserialize, Serialize};

use crate::error::NAME;

/// Labels with this beginning are ours.
const PREFIX: &str = "sandbox.";
/// But these are those of a caller: the stack of a compose document.
const OPEN_PREFIX: &str = "sandbox.compose.";
/// On everything that we make: `sandbox`, `sidecar`, `pool`, `network`, `volume` or `snapshot`.
pub(crate) const KIND: &str = "sandbox.kind";
/// The sandbox that something belongs to.
pub(crate) const ID: &str = "sandbox.id";
const INCARNATION: &str = "sandbox.incarnation";
const IDENTITY: &str = "sandbox.identity";
const TRAITS: &str = "sandbox.traits";
const TOKEN: &str = "sandbox.token";

/// How commands get into a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Via {
    /// Our agent, by a socket in a folder that this machine and the sandbox share.
    Socket,
    /// Our agent, through the engine.
    Relay,
    /// The engine's own exec.
    Engine,
}

/// What a sandbox was made with, as far as later calls need it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Traits {
    pub(crate) via: Via,
    pub(crate) image: String,
    pub(crate) workdir: String,
    #[serde(default)]
    pub(crate) user: Option<String>,
    #[serde(default)]
    pub(crate) ports: Vec<u16>,
    #[serde(default)]
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) metadata: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) sidecars: Vec<String>,
    /// The container whose network this one has joined.
    #[serde(default)]
    pub(crate) holder: Option<String>,
    /// Whether it came from the pool: these labels are on a volume of its id.
    #[serde(default)]
    pub(crate) has_record: bool,
    /// Fixed addresses for networks that are attached later.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) network_addresses: BTreeMap<String, std::net::Ipv4Addr>,
}

/// Everything that the labels of a sandbox's container say.
#[derive(Clone, Debug)]
pub(crate) struct Labels {
    pub(crate) id: String,
    pub(crate) incarnation: String,
    pub(crate) identity: SandboxIdentity,
    pub(crate) traits: Traits,
    /// Shown to the agent. Whoever can read labels may do with the container what they like anyway.
    pub(crate) token: Secret,
}

impl Labels {
    /// As the engine keeps them; the spec's own labels among them.
    pub(crate) fn to_map(&self) -> Result<HashMap<String, String>> {
        let json = |value: serde_json::Result<String>| {
            value.map_err(|_| SandboxError::internal("a label could not be written").with_provider(NAME))
        };
        let mut map: HashMap<String, String> = self.traits.metadata.clone().into_iter().collect();
        map.extend([
            (KIND.to_owned(), "sandbox".to_owned()),
            (ID.to_owned(), self.id.clone()),
            (INCARNATION.to_owned(), self.incarnation.clone()),
            (IDENTITY.to_owned(), json(serde_json::to_string(&self.identity))?),
            (TRAITS.to_owned(), json(serde_json::to_string(&self.traits))?),
            (TOKEN.to_owned(), self.token.expose().to_owned()),
        ]);
        Ok(map)
    }

    /// None for a container that is not a sandbox of this system.
    pub(crate) fn read(map: &HashMap<String, String>) -> Option<Self> {
        let text = |key: &str| map.get(key).cloned();
        (map.get(KIND)? == "sandbox").then_some(())?;
        Some(Self {
            id: text(ID)?,
            incarnation: text(INCARNATION)?,
            identity: serde_json::from_str(map.get(IDENTITY)?).ok()?,
            traits: serde_json::from_str(map.get(TRAITS)?).ok()?,
            token: Secret::new(text(TOKEN)?),
        })
    }
}

/// Of a container that was made ahead by this process.
pub(crate) fn pool_labels(identity: &SandboxIdentity) -> Result<HashMap<String, String>> {
    let identity = serde_json::to_string(identity)
        .map_err(|_| SandboxError::internal("a label could not be written").with_provider(NAME))?;
    Ok([(KIND.to_owned(), "pool".to_owned()), (IDENTITY.to_owned(), identity)].into())
}

/// Who answers for a container that was made ahead. None for any other one.
pub(crate) fn pool_identity(map: &HashMap<String, String>) -> Option<SandboxIdentity> {
    (map.get(KIND)? == "pool").then_some(())?;
    serde_json::from_str(map.get(IDENTITY)?).ok()
}

/// Whether a label cannot be a caller's.
pub(crate) fn is_reserved(key: &str) -> bool {
    key.is_empty() || (key.starts_with(PREFIX) && !key.starts_with(OPEN_PREFIX))
}

/// Refuses labels that would be taken for ours.
pub(crate) fn check_metadata(spec: &SandboxSpec) -> Result<()> {
    match spec.metadata.keys().find(|key| is_reserved(key)) {
        Some(key) => {
            let message = format!("the label {key:?} must not be blank or begin with {PREFIX:?}");
            Err(SandboxError::invalid_input("metadata", message))
        }
        None => Ok(()),
    }
}

/// Who answers for a sandbox whose spec does not say.
pub(crate) fn identity(spec: &SandboxSpec, run_id: &str) -> SandboxIdentity {
    let now = now_ms();
    let mut identity = spec.identity.clone().unwrap_or_else(|| SandboxIdentity {
        run_id: run_id.to_owned(),
        owner: sandbox_agent_client::this_process(),
        created_at_ms: now,
        expires_at_ms: None,
        attribution: BTreeMap::new(),
    });
    if identity.expires_at_ms.is_none() {
        identity.expires_at_ms = spec.ttl().map(|ttl| now + ttl.as_millis() as u64);
    }
    identity
}

/// True if nobody answers for it any more, at this time.
pub(crate) fn is_stale(identity: &SandboxIdentity, expires_at_ms: Option<u64>, now_ms: u64) -> bool {
    match &identity.owner {
        owner @ Owner::Process { .. } => sandbox_agent_client::life(owner) == sandbox_agent_client::Life::Gone,
        Owner::Lease => expires_at_ms.is_some_and(|at| at <= now_ms),
        // A kind of owner that this version does not know.
        _ => false,
    }
}

pub(crate) fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_millis() as u64)
}
