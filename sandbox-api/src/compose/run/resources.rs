//! Networks and volumes of a stack.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use sandbox_core::{Capability, ErrorKind, NetworkRequest, Result, SandboxError, SandboxProvider, VolumeRequest};

use crate::{
    checks,
    compose::{ComposePlan, Networking, PlannedNetwork},
    timeouts::within,
};

/// How long making or removing a network or volume may take.
const RESOURCE_LIMIT: Duration = Duration::from_secs(60);

/// How many address ranges are tried before the engine is said to have none.
const MOST_RANGES: usize = 64;

/// Networks and volumes of a stack, by their key in the document.
#[derive(Clone, Debug, Default)]
pub(super) struct Resources {
    pub(super) networks: BTreeMap<String, Named>,
    pub(super) volumes: BTreeMap<String, Named>,
}

/// A network or volume on the provider's side.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) name: String,
    /// Whether the stack made it, and so removes it.
    pub(super) is_own: bool,
}

impl Resources {
    /// Makes what a plan names. What was made when something fails is in `self`.
    pub(super) async fn make(
        &mut self,
        provider: &Arc<dyn SandboxProvider>,
        plan: &ComposePlan,
        id: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<()> {
        if plan.networking == Networking::Networks {
            for network in &plan.networks {
                let named = self.network(provider, plan, network, id, labels).await?;
                self.networks.insert(network.key.clone(), named);
            }
        }
        let Some(volumes) = provider.as_volumes() else { return Ok(()) };
        for volume in &plan.volumes {
            if let Some(name) = &volume.external {
                // One with this option looks for it itself, whoever made it.
                let looks = provider.full_info().fields.contains_key("provider_options.external_volumes");
                let known = within("listing volumes", RESOURCE_LIMIT, volumes.list_volumes()).await?;
                if !looks && !known.iter().any(|known| known.name == *name) {
                    let message = format!("external volume {name:?} does not exist");
                    return Err(SandboxError::not_found(message)
                        .with_field(format!("volumes.{}", volume.key))
                        .with_help("make it first, or leave external out"));
                }
                self.volumes.insert(volume.key.clone(), Named { name: name.clone(), is_own: false });
                continue;
            }
            let name = format!("{id}_{}", volume.key);
            let request = VolumeRequest { name: name.clone(), metadata: labels.clone(), size_gib: None };
            within("making a volume", RESOURCE_LIMIT, volumes.create_volume(request))
                .await
                .map_err(|error| error.context(format!("volume {:?}", volume.key)))?;
            self.volumes.insert(volume.key.clone(), Named { name, is_own: true });
        }
        Ok(())
    }

    async fn network(
        &self,
        provider: &Arc<dyn SandboxProvider>,
        plan: &ComposePlan,
        network: &PlannedNetwork,
        id: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<Named> {
        if let Some(name) = &network.external {
            return Ok(Named { name: name.clone(), is_own: false });
        }
        let networks = checks::require(provider.name(), provider.as_networks(), Capability::Networks)?;
        let members: u32 = plan
            .services
            .iter()
            .filter(|service| service.networks.iter().any(|(key, _)| *key == network.key))
            .map(|service| service.replicas)
            .sum();
        let name = format!("{id}_{}", network.key);
        let mut ranges = Ranges::for_members(members);
        let mut last = None;
        for _ in 0..MOST_RANGES {
            let subnet = network.subnet.clone().unwrap_or_else(|| ranges.next_range());
            let request = NetworkRequest {
                name: name.clone(),
                internal: network.internal,
                subnet: Some(subnet),
                metadata: labels.clone(),
            };
            match within("making a network", RESOURCE_LIMIT, networks.create_network(request)).await {
                Ok(_) => return Ok(Named { name, is_own: true }),
                // The name is ours alone, so what is taken is the range.
                Err(error) if network.subnet.is_none() && is_range_taken(&error) => last = Some(error),
                Err(error) => return Err(error.context(format!("network {:?}", network.key))),
            }
        }
        let error = SandboxError::exhausted(format!("no address range is free for network {:?}", network.key));
        let error = error.with_help("remove networks that nobody uses, for example those of old stacks");
        Err(match last {
            Some(last) => error.with_source(last),
            None => error,
        })
    }

    /// Removes what the stack made. Everything is tried; the first error is told.
    pub(super) async fn remove(&mut self, provider: &Arc<dyn SandboxProvider>) -> Result<()> {
        let mut first = Ok(());
        if let Some(networks) = provider.as_networks() {
            for (key, network) in std::mem::take(&mut self.networks) {
                if network.is_own {
                    let removal = networks.remove_network(network.name.clone());
                    if let Err(error) = within("removing a network", RESOURCE_LIMIT, removal).await {
                        self.networks.insert(key, network);
                        first = first.and(Err(error));
                    }
                }
            }
        }
        if let Some(volumes) = provider.as_volumes() {
            for (key, volume) in std::mem::take(&mut self.volumes) {
                if volume.is_own {
                    let removal = volumes.remove_volume(volume.name.clone());
                    if let Err(error) = within("removing a volume", RESOURCE_LIMIT, removal).await {
                        self.volumes.insert(key, volume);
                        first = first.and(Err(error));
                    }
                }
            }
        }
        first
    }
}

fn is_range_taken(error: &SandboxError) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::Exhausted)
        || (error.kind() == ErrorKind::InvalidInput && error.field().is_some_and(|field| field.contains("subnet")))
}

/// Address ranges out of 10.128.0.0/9, from a random one on: several stacks do not try the same ones.
struct Ranges {
    next: u32,
    bits: u32,
}

impl Ranges {
    /// As small as the members allow: a network has three addresses of its own.
    fn for_members(members: u32) -> Self {
        let needed = (members + 3).next_power_of_two().max(16);
        let bits = 32 - needed.trailing_zeros();
        let random = RandomState::new().hash_one(0_u8) as u32;
        Self { next: random % Self::count(bits), bits }
    }

    fn count(bits: u32) -> u32 {
        1 << (bits - 9)
    }

    fn next_range(&mut self) -> String {
        let start = (10_u32 << 24 | 128 << 16) + (self.next << (32 - self.bits));
        // A step that visits every range once.
        self.next = (self.next + 7919) % Self::count(self.bits);
        let [a, b, c, d] = start.to_be_bytes();
        format!("{a}.{b}.{c}.{d}/{}", self.bits)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Ranges;

    #[test]
    fn h10_ranges_are_small_and_differ() {
        let mut ranges = Ranges::for_members(3);
        let seen: BTreeSet<String> = (0..1000).map(|_| ranges.next_range()).collect();
        assert_eq!(seen.len(), 1000);
        assert!(seen.iter().all(|range| range.starts_with("10.") && range.ends_with("/28")), "{seen:?}");
        assert!(Ranges::for_members(13).next_range().ends_with("/28"));
        assert!(Ranges::for_members(14).next_range().ends_with("/27"));
        assert!(Ranges::for_members(100).next_range().ends_with("/25"));
    }
}
