//! Volumes on a provider's shared storage, and the filling of empty volumes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use sandbox_core::{
    Capability, ExecOutcome, ExecRequest, Field, Result, SandboxError, SandboxProvider, SandboxSpec, VolumeMount,
    VolumeSource,
};
use serde_json::{Map, Value};

use super::prepare::Prepared;
use crate::{AsyncSandbox, Ownership, checks, compose::ComposePlan};

/// Where a helper sees the volume, or all of the shared storage.
const SEEN_AT: &str = "/.sandbox-volume";

/// Which folder of the shared storage each volume is.
pub(super) type Folders = BTreeMap<String, String>;

/// Makes the folders of volumes on the shared storage, where the provider has that and no volumes.
pub(super) async fn make_folders(
    provider: &Arc<dyn SandboxProvider>,
    plan: &ComposePlan,
    id: &str,
    sources: &BTreeMap<String, String>,
    helper_image: &str,
    noted: &Mutex<Option<String>>,
) -> Result<Folders> {
    if provider.as_volumes().is_some() || plan.volumes.is_empty() {
        return Ok(Folders::new());
    }
    let mut folders = Folders::new();
    let mut own = Vec::new();
    for volume in &plan.volumes {
        let given = sources.get(&volume.key).or(volume.external.as_ref());
        let folder = given.cloned().unwrap_or_else(|| format!("{id}/{}", volume.key));
        if given.is_none() {
            own.push(format!("{SEEN_AT}/{folder}"));
        }
        folders.insert(volume.key.clone(), folder);
    }
    if !own.is_empty() {
        // Noted first: a folder that was made must go also when something fails behind it.
        *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(helper_image.to_owned());
        let argv = ["mkdir".to_owned(), "-p".to_owned(), "--".to_owned()].into_iter().chain(own);
        with_root(provider, helper_image, ExecRequest::argv(argv)).await?;
    }
    Ok(folders)
}

/// Removes the folders that belong to a stack.
pub(super) async fn remove_folders(provider: &Arc<dyn SandboxProvider>, id: &str, helper_image: &str) -> Result<()> {
    let argv = ["rm".to_owned(), "-rf".to_owned(), "--".to_owned(), format!("{SEEN_AT}/{id}")];
    with_root(provider, helper_image, ExecRequest::argv(argv)).await
}

/// Runs a command in a sandbox that sees all of the shared storage.
async fn with_root(provider: &Arc<dyn SandboxProvider>, image: &str, request: ExecRequest) -> Result<()> {
    let storage = checks::require(provider.name(), provider.as_shared_storage(), Capability::SharedStorage)?;
    let mut spec = SandboxSpec::image(image);
    spec.metadata = storage.shared_volume_metadata().await?;
    merge_options(&mut spec.provider_options, storage.shared_volume_options(None, SEEN_AT.to_owned(), false).await?);
    once(provider, spec, request).await.map(drop)
}

/// Replaces named volumes of a spec by the provider's options for its shared storage.
pub(super) async fn use_folders(
    provider: &Arc<dyn SandboxProvider>,
    spec: &mut SandboxSpec,
    folders: &Folders,
) -> Result<()> {
    let Some(storage) = provider.as_shared_storage().filter(|_| !folders.is_empty()) else { return Ok(()) };
    let mut kept = Vec::new();
    for mount in std::mem::take(&mut spec.volumes) {
        match &mount.source {
            VolumeSource::Named(name) if folders.contains_key(name) => {
                let source = Some(folders[name].clone());
                let options = storage.shared_volume_options(source, mount.target.clone(), mount.read_only).await?;
                merge_options(&mut spec.provider_options, options);
                spec.metadata.extend(storage.shared_volume_metadata().await?);
            }
            _ => kept.push(mount),
        }
    }
    spec.volumes = kept;
    Ok(())
}

/// Adds options; lists are joined.
fn merge_options(options: &mut Map<String, Value>, more: Value) {
    let Value::Object(more) = more else { return };
    for (key, value) in more {
        match (options.get_mut(&key), value) {
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more),
            (_, value) => {
                options.insert(key, value);
            }
        }
    }
}

/// Fills empty volumes with what the image of their first service has at the target.
pub(super) async fn copy_up(
    provider: &Arc<dyn SandboxProvider>,
    plan: &ComposePlan,
    prepared: &[Prepared],
    volumes: &BTreeMap<String, String>,
    folders: &Folders,
) -> Result<()> {
    let info = provider.full_info();
    // A provider that does so itself says it.
    if info.fields.contains_key("volumes.copy_up") {
        return Ok(());
    }
    for volume in plan.volumes.iter().filter(|volume| volume.external.is_none()) {
        let Some((service, target)) = &volume.copy_up else { continue };
        let service = prepared.iter().find(|prepared| prepared.service.name == *service);
        let Some(image) = service.and_then(|service| service.service.spec.image.clone()) else { continue };
        let mut spec = SandboxSpec::image(image);
        let name = volumes.get(&volume.key).unwrap_or(&volume.key).clone();
        let source = if folders.contains_key(&volume.key) { volume.key.clone() } else { name };
        spec.volumes.push(VolumeMount {
            source: VolumeSource::Named(source),
            target: SEEN_AT.to_owned(),
            read_only: false,
        });
        use_folders(provider, &mut spec, folders).await?;
        // Nothing to copy, or something there already: nothing to do.
        let script = "[ -d \"$1\" ] || exit 0; [ -z \"$(ls -A \"$2\")\" ] || exit 0; cp -a \"$1/.\" \"$2/\"";
        let mut request = ExecRequest::argv(["/bin/sh", "-c", script, "sh", target, SEEN_AT]);
        if checks::takes_default(&info, Field::ExecUser) {
            request = request.with_user("0:0");
        }
        let outcome = once(provider, spec, request).await;
        // An image without a shell has nothing that could be copied by one: the volume starts empty.
        match outcome {
            Err(error) if error.field() == Some(NO_SHELL) => {
                tracing::debug!(volume = volume.key, "no shell: not filled")
            }
            other => drop(other.map_err(|error| error.context(format!("filling volume {:?}", volume.key)))?),
        }
    }
    Ok(())
}

/// The field of the error of a helper whose image lacks a program.
const NO_SHELL: &str = "helper.program";

/// Runs one command in a sandbox of its own.
async fn once(provider: &Arc<dyn SandboxProvider>, spec: SandboxSpec, request: ExecRequest) -> Result<()> {
    let sandbox = AsyncSandbox::new(provider.clone()).with_ownership(Ownership::Shared);
    sandbox.start(Some(spec)).await?;
    let result = sandbox.exec(request).await;
    let stopped = sandbox.stop().await;
    let result = result?;
    stopped?;
    match result.outcome() {
        ExecOutcome::Exited(0) => Ok(()),
        ExecOutcome::StartFailed { .. } => {
            Err(SandboxError::create("a helper sandbox lacks the program for it").with_field(NO_SHELL))
        }
        _ => Err(SandboxError::create(format!("a helper command ended with {}", result.return_code()))),
    }
}
