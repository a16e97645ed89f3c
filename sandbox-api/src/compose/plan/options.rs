//! What a caller allows and chooses beyond the document.

use std::collections::{BTreeMap, BTreeSet};

use sandbox_core::SandboxSpec;

/// Something that is refused for the safety of this machine unless it is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ComposeAllow {
    /// `privileged`, devices, the host's namespaces, capabilities as strong as root, no seccomp.
    Privileged,
    /// `network_mode: host`.
    HostNetwork,
    /// Bind mounts outside of the project's folder.
    HostPaths,
    /// Ports that are published on every address of this machine instead of its loopback.
    PublicPorts,
    /// Several networks as one, where the provider cannot keep them apart.
    FlatNetworks,
}

impl ComposeAllow {
    /// All of them.
    pub const ALL: [ComposeAllow; 5] =
        [Self::Privileged, Self::HostNetwork, Self::HostPaths, Self::PublicPorts, Self::FlatNetworks];

    /// The name on a command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::HostNetwork => "host-network",
            Self::HostPaths => "host-paths",
            Self::PublicPorts => "public-ports",
            Self::FlatNetworks => "flat-networks",
        }
    }
}

/// What becomes of bind mounts where the provider has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindPolicy {
    /// They are refused.
    #[default]
    Mount,
    /// Files and folders are copied in at the start; what is written later does not come back.
    Copy,
}

/// What becomes of published ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishPolicy {
    /// As the document says.
    #[default]
    AsWritten,
    /// Every port gets any free one, so that a stack can run several times on one machine.
    Dynamic,
    /// None is published.
    Nothing,
}

/// What a caller allows and chooses beyond the document.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PlanOptions {
    /// What is allowed.
    pub allow: BTreeSet<ComposeAllow>,
    /// What becomes of bind mounts.
    pub bind: BindPolicy,
    /// What becomes of published ports.
    pub publish: PublishPolicy,
    /// Images by service, in place of building or of what the document names.
    pub images: BTreeMap<String, String>,
    /// What each service's sandbox starts from; the document wins over it.
    pub service_specs: BTreeMap<String, SandboxSpec>,
    /// What stands for a volume or a bind source on the provider's shared storage.
    pub volume_sources: BTreeMap<String, String>,
}

impl PlanOptions {
    pub(crate) fn allows(&self, what: ComposeAllow) -> bool {
        self.allow.contains(&what)
    }
}
