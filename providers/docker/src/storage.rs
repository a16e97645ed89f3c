//! Volumes, and storage that several sandboxes share.

use std::collections::BTreeMap;

use bollard::{
    models::VolumeCreateRequest,
    query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptionsBuilder},
};
use sandbox_core::{
    NamedVolume, Result, SandboxError, SharedStorage, VolumeRequest, Volumes, async_trait,
    serde_json::{Value, json},
};

use crate::{
    error::{self, NAME},
    network::{check_name, labels_of, metadata_of, ours},
    provider::DockerProvider,
};

#[async_trait]
impl Volumes for DockerProvider {
    async fn create_volume(&self, request: VolumeRequest) -> Result<NamedVolume> {
        check_name(&request.name)?;
        if request.size_gib.is_some() {
            let why = "a volume of the engine's own driver has no size limit";
            return Err(SandboxError::unsupported_field(NAME, "size_gib", why));
        }
        let docker = self.shared.engine.docker().await?;
        if docker.inspect_volume(&request.name).await.is_ok() {
            let message = format!("there is a volume {:?} already", request.name);
            return Err(SandboxError::already_exists(message).with_provider(NAME));
        }
        let config = VolumeCreateRequest {
            name: Some(request.name.clone()),
            labels: Some(labels_of("volume", &request.metadata)?),
            ..VolumeCreateRequest::default()
        };
        let made = docker.create_volume(config).await.map_err(|error| error::engine("making the volume", error))?;
        Ok(NamedVolume { id: made.name.clone(), name: made.name, metadata: request.metadata })
    }

    async fn list_volumes(&self) -> Result<Vec<NamedVolume>> {
        let options = ListVolumesOptionsBuilder::default().filters(&ours("volume")).build();
        let all = self.shared.engine.docker().await?.list_volumes(Some(options)).await;
        let all = all.map_err(|error| error::engine("listing volumes", error))?;
        let describe = |volume: bollard::models::Volume| NamedVolume {
            id: volume.name.clone(),
            name: volume.name,
            metadata: metadata_of(volume.labels),
        };
        Ok(all.volumes.unwrap_or_default().into_iter().map(describe).collect())
    }

    async fn remove_volume(&self, name: String) -> Result<()> {
        check_name(&name)?;
        if !self.list_volumes().await?.iter().any(|volume| volume.name == name) {
            return Ok(());
        }
        let options = RemoveVolumeOptionsBuilder::default().force(false).build();
        match self.shared.engine.docker().await?.remove_volume(&name, Some(options)).await {
            Err(error) if !error::is_missing(&error) => Err(error::engine("removing the volume", error)),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl SharedStorage for DockerProvider {
    async fn shared_volume_options(&self, source: Option<String>, target: String, read_only: bool) -> Result<Value> {
        let storage = self.shared.engine.config.shared_storage.as_ref();
        let storage =
            storage.ok_or_else(|| SandboxError::unsupported_field(NAME, "shared_storage", "none is configured"))?;
        if !target.starts_with('/') || target.contains("/../") || target.ends_with("/..") {
            return Err(SandboxError::invalid_input("target", "must be an absolute path").with_provider(NAME));
        }
        let part = source.as_deref().unwrap_or("").trim_matches('/');
        if part.split('/').any(|name| name == "..") || part.contains('\0') {
            return Err(SandboxError::invalid_input("source", "must be below the shared storage").with_provider(NAME));
        }
        let from = match (&storage.folder, &storage.volume) {
            (Some(folder), _) => json!({ "bind": folder.join(part).to_string_lossy() }),
            (None, Some(volume)) if part.is_empty() => json!({ "named": volume }),
            _ => {
                let message = "a part of a volume cannot be mounted: use its root, or shared_storage.folder";
                return Err(SandboxError::invalid_input("source", message).with_provider(NAME));
            }
        };
        Ok(json!({ "volumes": [{ "source": from, "target": target, "read_only": read_only }] }))
    }

    async fn shared_volume_metadata(&self) -> Result<BTreeMap<String, String>> {
        match &self.shared.engine.config.shared_storage {
            Some(_) => Ok(BTreeMap::new()),
            None => Err(SandboxError::unsupported_field(NAME, "shared_storage", "none is configured")),
        }
    }
}
