//! Optional abilities of a provider.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

macro_rules! capabilities {
    ($($(#[$doc:meta])* $variant:ident = $wire:literal;)*) => {
        /// An optional ability of a provider: a declared one works, an undeclared one is refused with
        /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Capability {
            $($(#[$doc])* $variant,)*
        }

        impl Capability {
            /// Every capability that this version of the contract knows.
            pub const ALL: &[Capability] = &[$(Capability::$variant),*];

            /// The versioned name on the wire and in manifests, such as `sandbox.pty/1`.
            pub const fn wire_name(self) -> &'static str {
                match self { $(Self::$variant => concat!("sandbox.", $wire, "/1")),* }
            }

            /// The short name for people, such as `pty`.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $wire),* }
            }

            /// The capability for a name on the wire, if this version knows it.
            pub fn from_wire_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|capability| capability.wire_name() == name)
            }
        }
    };
}

capabilities! {
    /// [`Endpoint`](crate::Endpoint): a URL for a declared port.
    Endpoint = "endpoint";
    /// [`PauseResume`](crate::PauseResume).
    PauseResume = "pause_resume";
    /// [`Pty`](crate::Pty): interactive sessions.
    Pty = "pty";
    /// [`PtyAttach`](crate::PtyAttach): sessions that outlive their client.
    PtyAttach = "pty_attach";
    /// [`Connect`](crate::Connect): reattach from another process.
    Connect = "connect";
    /// [`BackgroundServices`](crate::BackgroundServices): an exec that leaves services running.
    BackgroundServices = "background_services";
    /// [`Network`](crate::Network): direct traffic between sandboxes.
    Network = "network";
    /// [`PortForwarding`](crate::PortForwarding).
    PortForwarding = "port_forwarding";
    /// [`SharedStorage`](crate::SharedStorage).
    SharedStorage = "shared_storage";
    /// [`RuntimeRequirements`](crate::RuntimeRequirements).
    RuntimeRequirements = "runtime_requirements";
    /// [`Sidecars`](crate::Sidecars).
    Sidecars = "sidecars";
    /// [`Files`](crate::Files): file operations by bytes and directory transfer.
    Files = "files";
    /// [`Jobs`](crate::Jobs): commands that run on without a client and keep their output.
    Jobs = "jobs";
    /// [`ListSweep`](crate::ListSweep): find and remove what was left behind.
    ListSweep = "list_sweep";
    /// [`Renew`](crate::Renew): move the expiry.
    Renew = "renew";
    /// [`Snapshots`](crate::Snapshots).
    Snapshots = "snapshots";
    /// [`ImageConfigs`](crate::ImageConfigs): what an image says of itself.
    ImageConfig = "image_config";
    /// [`BuildImage`](crate::BuildImage).
    BuildImage = "build_image";
    /// [`Networks`](crate::Networks): named networks.
    Networks = "networks";
    /// [`Volumes`](crate::Volumes): named volumes.
    Volumes = "volumes";
    /// [`Metrics`](crate::Metrics).
    Metrics = "metrics";
    /// [`NetworkPolicies`](crate::NetworkPolicies): egress rules.
    NetworkPolicy = "network_policy";
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The capabilities of a provider as names on the wire. Names that this version does not know are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CapabilitySet(BTreeSet<String>);

impl CapabilitySet {
    /// True if the capability is in the set.
    pub fn contains(&self, capability: Capability) -> bool {
        self.0.contains(capability.wire_name())
    }

    /// Adds a capability.
    pub fn insert(&mut self, capability: Capability) {
        self.0.insert(capability.wire_name().to_owned());
    }

    /// Adds a name as it stands on the wire: `acme.gpu_snapshot/1`.
    pub fn insert_name(&mut self, name: impl Into<String>) {
        self.0.insert(name.into());
    }

    /// The capabilities that this version of the contract knows.
    pub fn known(&self) -> impl Iterator<Item = Capability> + '_ {
        Capability::ALL.iter().copied().filter(|capability| self.contains(*capability))
    }

    /// All names, sorted, those included that this version does not know.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// True if every name of this set is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Capability> for CapabilitySet {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        Self(capabilities.into_iter().map(|capability| capability.wire_name().to_owned()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{Capability, CapabilitySet};

    #[test]
    fn names_are_unique_and_unknown_ones_are_kept() {
        for capability in Capability::ALL {
            assert_eq!(Capability::from_wire_name(capability.wire_name()), Some(*capability));
        }
        let set: CapabilitySet = serde_json::from_str(r#"["sandbox.pty/1","acme.x/2"]"#).unwrap();
        assert!(set.contains(Capability::Pty));
        assert_eq!(set.known().collect::<Vec<_>>(), [Capability::Pty]);
        assert_eq!(set.names().collect::<Vec<_>>(), ["acme.x/2", "sandbox.pty/1"]);
    }
}
