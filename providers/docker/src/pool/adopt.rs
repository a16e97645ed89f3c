//! A sandbox from what was made ahead.

use std::{path::PathBuf, sync::Arc};

use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType};
use sandbox_core::{Result, tracing};

use super::{
    Pools,
    member::{Member, Recipe, key},
    record,
};
use crate::{
    found::Found,
    labels::Labels,
    plan::{Plan, is_of_agent},
    provider::Shared,
};

/// Where the folder of the agent's socket will stand.
const PLACEHOLDER: &str = "/";

/// What could be made ahead for sandboxes like this one.
pub(crate) struct Draft {
    /// None where a sandbox is not like others: it has a name.
    ready: Option<Recipe>,
    /// None where its network is not like others.
    network: Option<Recipe>,
}

/// A member of the pool that serves from now on.
pub(crate) struct Woken {
    pub(crate) labels: Labels,
    pub(crate) found: Found,
    pub(crate) folder: PathBuf,
}

impl Draft {
    /// For a plan whose agent is reached by a socket.
    pub(crate) fn of(plan: Plan<'_>, platform: Option<&str>, agent: PathBuf) -> Result<Option<Self>> {
        let pool = &plan.config.pool;
        if pool.ready == 0 && pool.network == 0 {
            return Ok(None);
        }
        let (spec, network) = (plan.spec, plan.config.network.clone());
        let counts = (pool.ready, pool.network);
        let body = Plan { shared: Some((agent, PLACEHOLDER.into())), ..plan }.body()?;
        let recipe = |kind, body: &ContainerCreateBody, count| {
            let key = key(kind, body, platform)?;
            Ok::<_, sandbox_core::SandboxError>(Recipe {
                key,
                body: ContainerCreateBody { labels: None, ..body.clone() },
                platform: platform.map(str::to_owned),
                count,
            })
        };
        let is_alike = counts.0 > 0 && body.hostname.is_none() && !is_in_the_way(&body, &network);
        let can_join = counts.1 > 0 && network != "none" && spec.sidecars.is_empty() && is_plain(&body, &network);
        Ok(Some(Self {
            ready: if is_alike { Some(recipe("ready", &body, counts.0)?) } else { None },
            network: if can_join { Some(recipe("network", &holder(&body), counts.1)?) } else { None },
        }))
    }

    /// A ready container that has become the sandbox of these labels. Those that are dead are removed on the way.
    ///
    /// # Errors
    /// What the engine failed with: nothing is left then.
    pub(crate) async fn wake(&self, shared: &Shared, labels: &Labels, told: &[u8]) -> Result<Option<Woken>> {
        let Some(recipe) = &self.ready else { return Ok(None) };
        while let Some(member) = shared.pools.take(&recipe.key) {
            let mut labels = labels.clone();
            labels.id.clone_from(&member.id);
            labels.token = member.token.clone();
            labels.traits.has_record = true;
            // It gets ready while that is written down. Before both are done nobody has it: should this process die, it is
            // swept as a member of the pool.
            let woken =
                futures_util::future::join(record::write(&shared.engine, &labels), member.wake(&shared.engine, told));
            let (written, woken) = woken.await;
            match written.and(woken) {
                Ok(()) => return Ok(Some(Woken { labels, found: member.found, folder: member.folder })),
                Err(error) => {
                    tracing::warn!(kind = %error.kind(), "a container of the pool cannot be used");
                    member.remove(&shared.engine).await?;
                    record::remove(&shared.engine, &member.id).await?;
                }
            }
        }
        Ok(None)
    }

    /// A network that a new container can join.
    pub(crate) async fn holder(&self, shared: &Shared) -> Result<Option<Member>> {
        let Some(recipe) = &self.network else { return Ok(None) };
        while let Some(member) = shared.pools.take(&recipe.key) {
            if member.lives(&shared.engine).await {
                return Ok(Some(member));
            }
            member.remove(&shared.engine).await?;
        }
        Ok(None)
    }

    /// Makes more of what was taken.
    pub(crate) fn refill(self, shared: &Arc<Shared>) {
        self.ready.into_iter().chain(self.network).for_each(|recipe| Pools::refill(shared, recipe));
    }
}

/// True if a container that waits would keep somebody from removing what has a name: a volume, a network.
fn is_in_the_way(body: &ContainerCreateBody, network: &str) -> bool {
    let HostConfig { network_mode, mounts, .. } = body.host_config.clone().unwrap_or_default();
    let is_named = |mount: &Mount| mount.typ == Some(MountType::VOLUME) && mount.source.is_some();
    let is_other = network_mode.is_some_and(|mode| mode != network && mode != "none" && mode != "host");
    is_other || mounts.unwrap_or_default().iter().any(is_named)
}

/// True if nothing of a container is about its own network: one that joins another's must not say any of it.
fn is_plain(body: &ContainerCreateBody, network: &str) -> bool {
    let HostConfig { network_mode, port_bindings, dns, dns_options, dns_search, extra_hosts, links, sysctls, .. } =
        body.host_config.clone().unwrap_or_default();
    body.hostname.is_none()
        && body.domainname.is_none()
        && body.networking_config.is_none()
        && body.exposed_ports.as_ref().is_none_or(Vec::is_empty)
        && network_mode.as_deref() == Some(network)
        && port_bindings.unwrap_or_default().is_empty()
        && [dns, dns_options, dns_search, extra_hosts, links].into_iter().flatten().all(|list| list.is_empty())
        && sysctls.unwrap_or_default().is_empty()
}

/// The container that holds a network for one of this body. It needs nothing but the agent, which waits in it.
fn holder(body: &ContainerCreateBody) -> ContainerCreateBody {
    let host = body.host_config.clone().unwrap_or_default();
    let is_ours = |mount: &Mount| mount.typ == Some(MountType::BIND) && is_of_agent(mount);
    ContainerCreateBody {
        image: body.image.clone(),
        user: body.user.clone(),
        entrypoint: body.entrypoint.clone(),
        cmd: body.cmd.clone(),
        working_dir: Some("/".to_owned()),
        host_config: Some(HostConfig {
            network_mode: host.network_mode,
            mounts: Some(host.mounts.unwrap_or_default().into_iter().filter(is_ours).collect()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            // Its files belong to this user.
            cap_add: Some(vec!["DAC_OVERRIDE".to_owned()]),
            security_opt: host.security_opt,
            readonly_rootfs: Some(true),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::{ContainerCreateBody, HostConfig};

    use super::{holder, is_plain, key};

    fn body(host: HostConfig) -> ContainerCreateBody {
        let host = HostConfig { network_mode: Some("bridge".to_owned()), ..host };
        ContainerCreateBody { host_config: Some(host), ..ContainerCreateBody::default() }
    }

    #[test]
    fn only_a_container_that_says_nothing_of_its_network_joins_anothers() {
        assert!(is_plain(&body(HostConfig::default()), "bridge"));
        assert!(!is_plain(&body(HostConfig::default()), "other"));
        let dns = HostConfig { dns: Some(vec!["1.1.1.1".to_owned()]), ..HostConfig::default() };
        assert!(!is_plain(&body(dns), "bridge"));
        let named = ContainerCreateBody { hostname: Some("x".to_owned()), ..body(HostConfig::default()) };
        assert!(!is_plain(&named, "bridge"));
    }

    #[test]
    fn limits_tell_ready_containers_apart_and_labels_do_not() {
        let key_of = |body: &ContainerCreateBody| key("ready", body, None).unwrap();
        let plain = body(HostConfig::default());
        let labelled = ContainerCreateBody { labels: Some([("a".into(), "b".into())].into()), ..plain.clone() };
        assert_eq!(key_of(&plain), key_of(&labelled));
        let limited = body(HostConfig { memory: Some(1 << 30), ..HostConfig::default() });
        assert_ne!(key_of(&plain), key_of(&limited));
        assert_eq!(key_of(&holder(&plain)), key_of(&holder(&limited)), "one network is like another");
    }
}
