//! Snapshots, which are images of the engine, and what an image says of itself.

use bollard::{
    models::ContainerConfig,
    query_parameters::{CommitContainerOptionsBuilder, ListImagesOptionsBuilder, RemoveImageOptionsBuilder},
};
use sandbox_core::{ImageConfig, ImageConfigs, Result, SandboxError, SandboxHandle, Snapshot, Snapshots, async_trait};

use crate::{
    error::{self, NAME},
    image,
    labels::KIND,
    network::{check_name, ours},
    provider::DockerProvider,
};

const REPOSITORY: &str = "sandbox-snapshot";
const NAME_LABEL: &str = "sandbox.name";

#[async_trait]
impl Snapshots for DockerProvider {
    async fn create_snapshot(&self, handle: &SandboxHandle, name: String) -> Result<Snapshot> {
        check_name(&name)?;
        let sandbox = self.open(handle).await?;
        let docker = self.shared.engine.docker().await?;
        let reference = format!("{REPOSITORY}:{name}");
        if docker.inspect_image(&reference).await.is_ok() {
            let message = format!("there is a snapshot {name:?} already");
            return Err(SandboxError::already_exists(message).with_provider(NAME));
        }
        let original = docker.inspect_image(&sandbox.labels.traits.image).await.ok();
        let config = original.and_then(|image| image.config).unwrap_or_default();
        let options = CommitContainerOptionsBuilder::default()
            .container(&sandbox.container)
            .repo(REPOSITORY)
            .tag(&name)
            .pause(true)
            .build();
        // The image's own settings, not those with which the agent runs; and none of its labels.
        let mut labels = config.labels.unwrap_or_default();
        labels.insert(KIND.to_owned(), "snapshot".to_owned());
        labels.insert(NAME_LABEL.to_owned(), name.clone());
        let settings = ContainerConfig {
            entrypoint: Some(config.entrypoint.unwrap_or_default()),
            cmd: Some(config.cmd.unwrap_or_default()),
            user: Some(config.user.unwrap_or_default()),
            working_dir: Some(config.working_dir.unwrap_or_default()),
            env: config.env,
            labels: Some(labels),
            ..ContainerConfig::default()
        };
        let made = docker.commit_container(options, settings).await;
        made.map_err(|error| error::engine("keeping the sandbox's state", error))?;
        let all = self.list_snapshots().await?;
        let made = all.into_iter().find(|snapshot| snapshot.name == name);
        made.ok_or_else(|| SandboxError::internal("the snapshot is not there after it was made").with_provider(NAME))
    }

    async fn list_snapshots(&self) -> Result<Vec<Snapshot>> {
        let options = ListImagesOptionsBuilder::default().filters(&ours("snapshot")).build();
        let all = self.shared.engine.docker().await?.list_images(Some(options)).await;
        let all = all.map_err(|error| error::engine("listing snapshots", error))?;
        let describe = |image: bollard::models::ImageSummary| {
            let name = image.labels.get(NAME_LABEL)?.clone();
            let id = image.repo_tags.iter().find(|tag| **tag == format!("{REPOSITORY}:{name}"))?.clone();
            let created_at_ms = u64::try_from(image.created).ok().map(|seconds| seconds * 1000);
            Some(Snapshot { id, name, created_at_ms, size_bytes: u64::try_from(image.size).ok() })
        };
        Ok(all.into_iter().filter_map(describe).collect())
    }

    async fn remove_snapshot(&self, id: String) -> Result<()> {
        if !self.list_snapshots().await?.iter().any(|snapshot| snapshot.id == id) {
            return Ok(());
        }
        let options = RemoveImageOptionsBuilder::default().force(true).build();
        match self.shared.engine.docker().await?.remove_image(&id, Some(options), None).await {
            Err(error) if !error::is_missing(&error) => Err(error::engine("removing the snapshot", error)),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl ImageConfigs for DockerProvider {
    async fn image_config(&self, image: String) -> Result<ImageConfig> {
        let config = &self.shared.engine.config;
        let wish = image::Wish { reference: &image, pull: config.pull, platform: config.platform.as_deref() };
        Ok(image::get(&self.shared.engine, &wish).await?.config)
    }
}
