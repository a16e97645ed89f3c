use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Result, SandboxEndpoint, SandboxHandle, Session, SessionEvent};

/// URLs for declared ports.
#[crate::async_trait]
pub trait Endpoint: Send + Sync {
    /// Where a declared port can be reached by the caller.
    ///
    /// # Errors
    /// `InvalidInput` for a port that was not declared; `NotFound`.
    async fn endpoint(&self, handle: &SandboxHandle, port: u16) -> Result<SandboxEndpoint>;
}

/// Direct traffic between sandboxes, service ports unchanged.
#[crate::async_trait]
pub trait Network: Send + Sync {
    /// Whether sandboxes of this configuration can reach each other. Asked before anything is created.
    ///
    /// # Errors
    /// `Unsupported` or `InvalidInput`, saying which setting is missing.
    async fn validate_networking(&self) -> Result<()>;

    /// The address under which other sandboxes reach this one.
    ///
    /// # Errors
    /// `NotFound`, `InvalidState` (none yet).
    async fn network_address(&self, handle: &SandboxHandle) -> Result<String>;

    /// Makes names resolve inside the sandbox; replaces what an earlier call set.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`.
    async fn set_hosts(&self, handle: &SandboxHandle, hosts: BTreeMap<String, String>) -> Result<()>;
}

/// Port forwarding.
#[crate::async_trait]
pub trait PortForwarding: Send + Sync {
    /// Whether ports can be forwarded with this configuration. Asked before anything is created.
    ///
    /// # Errors
    /// `Unsupported` or `InvalidInput`, saying which setting is missing.
    async fn validate_port_forwarding(&self) -> Result<()>;

    /// Opens one connection to a TCP port inside the sandbox. Bytes come as [`PortEvent::Data`] and go by `write`;
    /// `close_input` closes one direction.
    ///
    /// # Errors
    /// `Unavailable` when nothing listens there.
    async fn open_port(&self, handle: &SandboxHandle, port: u16) -> Result<PortStream>;

    /// Lets programs inside `handle` reach the ports of `target` (an address that this sandbox's backend knows) on
    /// their own loopback. Returns when that works; forwarding ends when the stream is dropped.
    ///
    /// # Errors
    /// `AlreadyExists` when a port is taken inside; `Unavailable`.
    async fn forward_ports(&self, handle: &SandboxHandle, target: String, ports: Vec<u16>) -> Result<PortStream>;
}

/// What comes out of a forwarded connection.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortEvent {
    /// Bytes from inside.
    Data(Bytes),
    /// The inside closed its direction. Last.
    End,
}

impl std::fmt::Debug for PortEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Data(bytes) => write!(f, "Data({} bytes)", bytes.len()),
            Self::End => f.write_str("End"),
        }
    }
}

impl SessionEvent for PortEvent {
    const WHAT: &'static str = "forwarded connection";

    fn is_last(&self) -> bool {
        matches!(self, Self::End)
    }

    fn into_frame(self) -> (u32, Bytes) {
        match self {
            Self::End => (0, Bytes::new()),
            Self::Data(bytes) => (1, bytes),
        }
    }

    fn from_frame(channel: u32, data: Bytes) -> Result<Option<Self>> {
        Ok(match channel {
            0 => Some(Self::End),
            1 => Some(Self::Data(data)),
            _ => None,
        })
    }
}

/// A connection to a port inside a sandbox.
pub type PortStream = Session<PortEvent>;

/// Named networks.
#[crate::async_trait]
pub trait Networks: Send + Sync {
    /// Makes a network.
    ///
    /// # Errors
    /// `AlreadyExists`; `Exhausted` when no address range is free.
    async fn create_network(&self, request: NetworkRequest) -> Result<NamedNetwork>;

    /// All networks that this system made.
    ///
    /// # Errors
    /// What the backend said.
    async fn list_networks(&self) -> Result<Vec<NamedNetwork>>;

    /// Removes a network. One that is gone is fine.
    ///
    /// # Errors
    /// `InvalidState` while sandboxes are attached.
    async fn remove_network(&self, name: String) -> Result<()>;

    /// Attaches a sandbox, under these further names.
    ///
    /// # Errors
    /// `NotFound`.
    async fn attach_network(&self, handle: &SandboxHandle, name: String, aliases: Vec<String>) -> Result<()>;

    /// Detaches a sandbox.
    ///
    /// # Errors
    /// `NotFound`.
    async fn detach_network(&self, handle: &SandboxHandle, name: String) -> Result<()>;
}

/// A network to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkRequest {
    /// Its name.
    pub name: String,
    /// No way out of it.
    pub internal: bool,
    /// Address range, such as `10.10.0.0/24`; none: the backend chooses.
    pub subnet: Option<String>,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
}

/// A network that is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedNetwork {
    /// Its name.
    pub name: String,
    /// The backend's id.
    pub id: String,
    /// Address range.
    #[serde(default)]
    pub subnet: Option<String>,
    /// Labels.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// Egress rules.
#[crate::async_trait]
pub trait NetworkPolicies: Send + Sync {
    /// Replaces the rules of a sandbox. In force when this returns.
    ///
    /// # Errors
    /// `InvalidInput` for a rule that cannot be enforced.
    async fn set_network_policy(&self, handle: &SandboxHandle, policy: NetworkPolicy) -> Result<()>;

    /// The rules in force.
    ///
    /// # Errors
    /// `NotFound`.
    async fn network_policy(&self, handle: &SandboxHandle) -> Result<NetworkPolicy>;
}

/// What a sandbox may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkPolicy {
    /// What happens with traffic that no rule names: true lets it pass.
    pub default_allow: bool,
    /// First match wins.
    pub rules: Vec<PolicyRule>,
}

/// One egress rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRule {
    /// True lets it pass.
    pub allow: bool,
    /// Host name (`*.example.org` for all below), address or range.
    pub target: String,
    /// Ports; empty: all.
    #[serde(default)]
    pub ports: Vec<u16>,
}
