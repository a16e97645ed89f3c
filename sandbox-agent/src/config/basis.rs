//! What many sandboxes have in common, so that a launcher can make it before it knows the one that it is for.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Access, Ids, LaunchConfig, MemoryFolder, Network, Root, SandboxUser, Sizes};
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
    /// Where a root of system folders has to have a folder or a file for what is mounted there.
    pub(crate) targets: Vec<Target>,
}

/// A path inside where something is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) is_folder: bool,
}

impl LaunchConfig {
    /// The part of this configuration that can be made ahead for another sandbox like it. Looks whether the sources of
    /// binds are folders.
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
            targets: self.targets(),
        }
    }

    fn targets(&self) -> Vec<Target> {
        let folder = |path: &Path| Target { path: path.to_owned(), is_folder: true };
        let binds = self.binds.iter();
        // A source that is not there stops the launch, whatever its target is.
        let binds = binds.map(|bind| Target { path: bind.target.clone(), is_folder: !bind.source.is_file() });
        let workdir = self.workdir.iter().map(|workdir| folder(&workdir.target));
        workdir.chain(binds).chain(self.memory.iter().map(|memory| folder(&memory.target))).collect()
    }
}

impl Basis {
    /// The same with a cgroup of this name, if it has one.
    #[must_use]
    pub fn with_cgroup_name(mut self, name: &str) -> Basis {
        self.cgroup = self.cgroup.map(|_| name.to_owned());
        self
    }

    /// Whether they differ in their targets at most.
    pub(crate) fn is_like(&self, other: &Basis) -> bool {
        let without = |basis: &Basis| Basis { targets: Vec::new(), ..basis.clone() };
        without(self) == without(other)
    }

    /// A configuration that it is the basis of, but for what is not checked of one.
    pub(crate) fn config(&self) -> LaunchConfig {
        let target = |target: &Target| MemoryFolder { target: target.path.clone(), mib: 1, access: Access::ReadOnly };
        LaunchConfig {
            network: self.network,
            user: self.user.clone(),
            ids: self.ids.clone(),
            sizes: self.sizes.clone(),
            memory: self.targets.iter().map(target).collect(),
            ..LaunchConfig::default()
        }
    }
}
