//! What many sandboxes have in common, so that a launcher can make it before it knows the one that it is for.

use serde::{Deserialize, Serialize};

use super::{Ids, LaunchConfig, Network, Root, SandboxUser, Sizes};
use crate::hardening::Capability;

/// The part of a [`LaunchConfig`] that a waiting launcher makes ahead: namespaces, id maps, cgroup and, of a root of
/// system folders, all that is not one sandbox's own; then the processes that will start commands in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Basis {
    pub(crate) is_system: bool,
    pub(crate) network: Network,
    pub(crate) user: SandboxUser,
    pub(crate) ids: Ids,
    pub(crate) sizes: Sizes,
    pub(crate) cgroup: Option<String>,
    pub(crate) capabilities: Vec<Capability>,
    /// PID 1 is the agent, and serves.
    pub(crate) serves: bool,
}

impl LaunchConfig {
    /// The part of this configuration that can be made ahead for another sandbox like it.
    pub fn basis(&self) -> Basis {
        Basis {
            is_system: self.root == Root::System,
            network: self.network,
            user: self.user.clone(),
            ids: self.ids.clone(),
            sizes: self.sizes.clone(),
            cgroup: self.cgroup.as_ref().map(|cgroup| cgroup.name.clone()),
            capabilities: self.capabilities.clone(),
            serves: self.serve.is_some() && self.init.is_none(),
        }
    }
}

impl Basis {
    /// The same with a cgroup of this name, if it has one.
    #[must_use]
    pub fn with_cgroup_name(mut self, name: &str) -> Basis {
        self.cgroup = self.cgroup.map(|_| name.to_owned());
        self
    }

    /// The smallest configuration that it is the basis of, for what is checked of one.
    pub(crate) fn config(&self) -> LaunchConfig {
        LaunchConfig { network: self.network, ids: self.ids.clone(), ..LaunchConfig::default() }
    }
}
