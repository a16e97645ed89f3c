//! Named volumes and shared storage, as the contract has them.

use std::collections::BTreeMap;

use sandbox_core::{
    NamedVolume, Result, SandboxError, SharedStorage, VolumeRequest, Volumes, async_trait, serde_json::Value,
};

use crate::{
    error::NAME,
    isolated::volume::{self, check_shared},
    provider::LocalProvider,
};

impl LocalProvider {
    async fn volumes<T: Send + 'static>(
        &self,
        work: impl FnOnce(&volume::Volumes) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let volumes = volume::Volumes::new(&self.shared.root, &self.shared.records);
        let done = tokio::task::spawn_blocking(move || work(&volumes)).await;
        done.unwrap_or_else(|_| Err(SandboxError::internal("work on volumes panicked")))
            .map_err(|error| error.with_provider(NAME))
    }
}

#[async_trait]
impl Volumes for LocalProvider {
    async fn create_volume(&self, request: VolumeRequest) -> Result<NamedVolume> {
        self.volumes(move |volumes| volumes.create(request)).await
    }

    async fn list_volumes(&self) -> Result<Vec<NamedVolume>> {
        self.volumes(|volumes| volumes.list()).await
    }

    async fn remove_volume(&self, name: String) -> Result<()> {
        self.volumes(move |volumes| volumes.remove(&name)).await
    }
}

#[async_trait]
impl SharedStorage for LocalProvider {
    async fn shared_volume_options(&self, source: Option<String>, target: String, read_only: bool) -> Result<Value> {
        check_shared(&self.shared.config, source, target, read_only)
    }

    /// None is needed: the options say everything.
    async fn shared_volume_metadata(&self) -> Result<BTreeMap<String, String>> {
        check_shared(&self.shared.config, None, "/".to_owned(), true).map(|_| BTreeMap::new())
    }
}
