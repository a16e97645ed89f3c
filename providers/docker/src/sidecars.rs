//! Containers beside the main one: they share its network, and end with it.

use std::{collections::HashMap, path::Path, sync::Arc};

use bollard::{
    models::{ContainerCreateBody, HostConfig},
    query_parameters::CreateContainerOptionsBuilder,
};
use sandbox_core::{
    ByteString, ExecRequest, ExecStream, Result, SandboxError, SandboxHandle, SandboxSidecarSpec, Sidecars, async_trait,
};
use tokio::sync::OnceCell;

use crate::{
    bare,
    engine::Engine,
    error::{self, NAME},
    image,
    labels::{ID, KIND},
    plan::variables,
    provider::DockerProvider,
    sandbox::{Sandbox, sidecar_name},
};

const MIB: i64 = 1 << 20;

/// Starts the sidecars of a sandbox. What was made when one fails is removed with the sandbox.
pub(crate) async fn start(engine: &Engine, sandbox: &Sandbox, sidecars: &[SandboxSidecarSpec]) -> Result<()> {
    for (index, sidecar) in sidecars.iter().enumerate() {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !sidecar.name.chars().all(is_plain) {
            let message = "a name must be of a-z A-Z 0-9 . _ -";
            return Err(SandboxError::invalid_input(format!("sidecars[{index}]"), message));
        }
        let wish = image::Wish {
            reference: &sidecar.image,
            pull: engine.config.pull,
            platform: engine.config.platform.as_deref(),
        };
        let image = image::get(engine, &wish).await.map_err(|error| error.context(format!("sidecars[{index}]")))?;
        let resources = &sidecar.resources;
        let memory = resources.memory_mib.map(|mib| i64::try_from(mib).unwrap_or(i64::MAX).saturating_mul(MIB));
        let body = ContainerCreateBody {
            image: Some(image.id),
            env: Some(variables(&sidecar.env)?),
            labels: Some(HashMap::from([
                (KIND.to_owned(), "sidecar".to_owned()),
                (ID.to_owned(), sandbox.id().to_owned()),
            ])),
            host_config: Some(HostConfig {
                network_mode: Some(format!("container:{}", sandbox.container)),
                nano_cpus: resources.cpu.map(|cores| ((cores * 1e9).round() as i64).max(10_000_000)),
                memory,
                memory_swap: memory,
                pids_limit: resources.pids.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX)),
                init: Some(true),
                cap_drop: Some(engine.config.cap_drop.clone()),
                security_opt: Some(engine.config.security_opt.clone()),
                readonly_rootfs: Some(engine.config.read_only),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let failed = |what: &str, error| error::engine(&format!("{what} the sidecar {:?}", sidecar.name), error);
        let options = CreateContainerOptionsBuilder::default().name(&sidecar_name(sandbox.id(), &sidecar.name)).build();
        let docker = engine.docker().await?;
        let made = docker.create_container(Some(options), body).await.map_err(|error| failed("making", error))?;
        docker.start_container(&made.id, None).await.map_err(|error| failed("starting", error))?;
    }
    Ok(())
}

impl DockerProvider {
    async fn sidecar(&self, handle: &SandboxHandle, sidecar: &str) -> Result<bare::Target> {
        let sandbox = self.open(handle).await?;
        if !sandbox.labels.traits.sidecars.iter().any(|name| name == sidecar) {
            let all = sandbox.labels.traits.sidecars.join(", ");
            let message =
                format!("there is no sidecar {sidecar:?}; sidecars: {}", if all.is_empty() { "none" } else { &all });
            return Err(SandboxError::invalid_input("sidecar", message).with_provider(NAME));
        }
        let engine = &self.shared.engine;
        let name = sidecar_name(sandbox.id(), sidecar);
        let inspected = engine.docker().await?.inspect_container(&name, None).await;
        let inspected = inspected.map_err(|error| error::engine("looking at the sidecar", error))?;
        let workdir = inspected.config.and_then(|config| config.working_dir).filter(|folder| !folder.is_empty());
        Ok(bare::Target {
            engine: Arc::clone(engine),
            container: inspected.id.unwrap_or(name),
            workdir: workdir.unwrap_or_else(|| "/".to_owned()),
            shell: None,
        })
    }
}

#[async_trait]
impl Sidecars for DockerProvider {
    async fn sidecar_exec(&self, handle: &SandboxHandle, sidecar: String, request: ExecRequest) -> Result<ExecStream> {
        bare::exec(self.sidecar(handle, &sidecar).await?, &OnceCell::new(), request).await
    }

    async fn download_sidecar_file(
        &self,
        handle: &SandboxHandle,
        sidecar: &str,
        remote: &ByteString,
        local: &Path,
    ) -> Result<()> {
        bare::download_file(&self.sidecar(handle, sidecar).await?, remote, local).await
    }
}
