//! Networks, as the contract has them.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

use sandbox_core::{
    NamedNetwork, Network, NetworkRequest, Networks as NamedNetworks, Result, SandboxError, SandboxHandle, async_trait,
};

use super::{
    Networks, hosts,
    members::{is_used, join, part},
    store::Locked,
};
use crate::{config::NetworkDefault, error::NAME, provider::LocalProvider, record::Record, sandbox::Sandbox};

impl LocalProvider {
    /// Does work on networks where it may block.
    async fn on_networks<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Networks) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let networks = Networks::new(&self.shared.root, &self.shared.records);
        let done = tokio::task::spawn_blocking(move || work(&networks)).await;
        done.unwrap_or_else(|_| Err(SandboxError::internal("work on networks panicked")))
            .map_err(|error| error.with_provider(NAME))
    }

    /// Does work on the record of an open sandbox; a close waits for it.
    async fn on_member<T: Send + 'static>(
        &self,
        handle: &SandboxHandle,
        work: impl FnOnce(&Networks, &mut Record) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let sandbox: Arc<Sandbox> = self.open(handle).await?;
        let busy = sandbox.enter()?;
        self.on_networks(move |networks| {
            let mut record = sandbox.record.lock().unwrap_or_else(PoisonError::into_inner);
            let done = work(networks, &mut record);
            drop(busy);
            done
        })
        .await
    }
}

#[async_trait]
impl Network for LocalProvider {
    async fn validate_networking(&self) -> Result<()> {
        match self.shared.config.network {
            Some(NetworkDefault::Private) => Ok(()),
            _ => Err(SandboxError::unsupported_field(
                NAME,
                "network",
                "sandboxes that name no network are not connected to one another",
            )
            .with_help("set network = \"private\", or name a network in each spec")),
        }
    }

    async fn network_address(&self, handle: &SandboxHandle) -> Result<String> {
        let sandbox = self.open(handle).await?;
        let record = sandbox.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.networks.first().map(|attachment| attachment.address.to_string()).ok_or_else(|| {
            SandboxError::invalid_state(format!("sandbox {} is in no network", sandbox.id))
                .with_provider(NAME)
                .with_help("set network = \"private\", or name a network in its spec")
        })
    }

    async fn set_hosts(&self, handle: &SandboxHandle, hosts: BTreeMap<String, String>) -> Result<()> {
        hosts::check(&hosts)?;
        self.on_member(handle, |networks, record| {
            let locked = networks.lock()?;
            let records = networks.records.clone();
            let before = std::mem::replace(&mut record.hosts, hosts);
            let done = records.read_all().and_then(|all| hosts::put(record, &all, &locked));
            let done = done.and_then(|()| records.write(record));
            if done.is_err() {
                record.hosts = before;
            }
            done
        })
        .await
    }
}

#[async_trait]
impl NamedNetworks for LocalProvider {
    async fn create_network(&self, request: NetworkRequest) -> Result<NamedNetwork> {
        self.on_networks(|networks| networks.create(&networks.lock()?, request)).await
    }

    async fn list_networks(&self) -> Result<Vec<NamedNetwork>> {
        self.on_networks(|networks| networks.list()).await
    }

    async fn remove_network(&self, name: String) -> Result<()> {
        self.on_networks(move |networks| {
            crate::isolated::volume::check_name("name", &name)?;
            let locked: Locked = networks.lock()?;
            if is_used(networks, &locked, &name)? {
                return Err(SandboxError::invalid_state(format!("sandboxes are in network {name}"))
                    .with_help("close or detach them first"));
            }
            networks.forget(&locked, &name)
        })
        .await
    }

    async fn attach_network(&self, handle: &SandboxHandle, name: String, aliases: Vec<String>) -> Result<()> {
        self.on_member(handle, move |networks, record| join(networks, record, &name, aliases)).await
    }

    async fn detach_network(&self, handle: &SandboxHandle, name: String) -> Result<()> {
        self.on_member(handle, move |networks, record| part(networks, record, &name)).await
    }
}
