//! Folders that outlive a task: file systems of EFS, in its definition.

use std::collections::{BTreeMap, BTreeSet};

use sandbox_core::{
    Result, SandboxError, SandboxSpec, SharedStorage, VolumeSource, async_trait,
    serde_json::{Value, json},
};

use crate::{
    config::{EfsConfig, FargateConfig},
    definition::FOLDER,
    error::NAME,
    key::sha256,
    options::{FargateOptions, SharedVolume},
    provider::FargateProvider,
    settings::Settings,
};

/// Digits of the hash in a volume's name.
const HASH_DIGITS: usize = 16;

/// A folder of a file system, and where a sandbox sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    system: EfsConfig,
    target: String,
    is_read_only: bool,
}

fn invalid(field: &str, why: impl Into<String>) -> SandboxError {
    SandboxError::invalid_input(field, why).with_provider(NAME)
}

/// What the spec and its options want mounted.
///
/// # Errors
/// `InvalidInput`, naming the field; `Unsupported` for storage that is not configured.
pub(crate) fn mounts(spec: &SandboxSpec, options: &FargateOptions, config: &FargateConfig) -> Result<Vec<Mount>> {
    let mut mounts = Vec::new();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let field = format!("volumes[{index}]");
        let VolumeSource::Named(name) = &volume.source else {
            return Err(invalid(&format!("{field}.source"), "must be named: a task mounts nothing else"));
        };
        let system = config.volumes.get(name).ok_or_else(|| {
            let known: Vec<_> = config.volumes.keys().collect();
            let error =
                invalid(&format!("{field}.source"), format!("{name:?} is no volume of the settings: {known:?}"));
            error.with_help(format!("name a file system of EFS by volumes.{name} in the settings of fargate"))
        })?;
        let mount = Mount { system: system.clone(), target: volume.target.clone(), is_read_only: volume.read_only };
        mounts.push((format!("{field}.target"), mount));
    }
    for (index, volume) in options.shared_volumes.iter().enumerate() {
        let field = format!("provider_options.shared_volumes[{index}]");
        let system = part(config, volume, &format!("{field}.source"))?;
        let mount = Mount { system, target: volume.target.clone(), is_read_only: volume.read_only };
        mounts.push((format!("{field}.target"), mount));
    }
    let mut targets = BTreeSet::new();
    for (field, mount) in &mounts {
        check_target(field, &mount.target)?;
        if !targets.insert(mount.target.trim_end_matches('/')) {
            return Err(invalid(field, format!("{} is mounted twice", mount.target)));
        }
    }
    Ok(mounts.into_iter().map(|(_, mount)| mount).collect())
}

/// A part of the shared storage, which must be below it.
fn part(config: &FargateConfig, volume: &SharedVolume, field: &str) -> Result<EfsConfig> {
    let storage = config.shared_storage.as_ref().ok_or_else(none_configured)?;
    let part = volume.source.as_deref().unwrap_or_default();
    if part.starts_with('/') || part.split('/').any(|name| name == "..") || part.contains('\0') {
        return Err(invalid(field, "must be a path below the shared storage, without \"..\""));
    }
    let part = part.split('/').filter(|name| !name.is_empty() && *name != ".").collect::<Vec<_>>().join("/");
    if part.is_empty() {
        return Ok(storage.clone());
    }
    if storage.access_point_id.is_some() {
        let error = invalid(field, "must be left out: an access point is mounted as a whole");
        return Err(error.with_help("set shared_storage.root_directory instead of access_point_id"));
    }
    let root = format!("{}/{part}", storage.root_directory.trim_end_matches('/'));
    if root.len() > EfsConfig::ROOT_MAX {
        return Err(invalid(field, format!("with the root directory at most {} characters", EfsConfig::ROOT_MAX)));
    }
    Ok(EfsConfig { root_directory: root, ..storage.clone() })
}

fn none_configured() -> SandboxError {
    SandboxError::unsupported_field(NAME, "shared_storage", "none is configured")
        .with_help("name a file system of EFS by shared_storage.file_system_id in the settings of fargate")
}

fn check_target(field: &str, target: &str) -> Result<()> {
    let is_plain = target.starts_with('/') && !target.contains('\0') && !target.split('/').any(|name| name == "..");
    let is_ours = target == FOLDER || target.starts_with(&format!("{FOLDER}/"));
    match is_plain && !is_ours && !target.trim_matches('/').is_empty() {
        true => Ok(()),
        false => Err(invalid(field, format!("must be an absolute path without \"..\", neither / nor {FOLDER}"))),
    }
}

/// Checks what only the settings tell.
///
/// # Errors
/// `InvalidInput`, naming the setting.
pub(crate) fn check_role(mounts: &[Mount], settings: &Settings) -> Result<()> {
    match mounts.iter().any(|mount| mount.system.iam) && settings.task_role_arn.is_none() {
        true => {
            Err(invalid("task_role_arn", "is needed: a file system that asks for rights asks for those of this role"))
        }
        false => Ok(()),
    }
}

impl Mount {
    fn name(&self) -> String {
        let hash = sha256(self.volume("").to_string().as_bytes());
        format!("efs-{}", &hash[..HASH_DIGITS])
    }

    fn volume(&self, name: &str) -> Value {
        let system = &self.system;
        let mut authorization = json!({ "iam": if system.iam { "ENABLED" } else { "DISABLED" } });
        if let Some(point) = &system.access_point_id {
            authorization["accessPointId"] = point.as_str().into();
        }
        let mut configuration = json!({
            "fileSystemId": system.file_system_id,
            "rootDirectory": system.root_directory,
            // Never in plain text.
            "transitEncryption": "ENABLED",
            "authorizationConfig": authorization,
        });
        if let Some(port) = system.transit_encryption_port {
            configuration["transitEncryptionPort"] = port.into();
        }
        json!({ "name": name, "efsVolumeConfiguration": configuration })
    }
}

/// The volumes of a definition, each once.
pub(crate) fn volumes(mounts: &[Mount]) -> Vec<Value> {
    let all: BTreeMap<String, &Mount> = mounts.iter().map(|mount| (mount.name(), mount)).collect();
    all.iter().map(|(name, mount)| mount.volume(name)).collect()
}

/// Where the sandbox sees them.
pub(crate) fn mount_points(mounts: &[Mount]) -> impl Iterator<Item = Value> + '_ {
    mounts.iter().map(
        |mount| json!({ "sourceVolume": mount.name(), "containerPath": mount.target, "readOnly": mount.is_read_only }),
    )
}

#[async_trait]
impl SharedStorage for FargateProvider {
    async fn shared_volume_options(&self, source: Option<String>, target: String, read_only: bool) -> Result<Value> {
        let volume = SharedVolume { source, target, read_only };
        part(&self.shared.config, &volume, "source")?;
        check_target("target", &volume.target)?;
        let SharedVolume { source, target, read_only } = volume;
        Ok(json!({ "shared_volumes": [{ "source": source, "target": target, "read_only": read_only }] }))
    }

    async fn shared_volume_metadata(&self) -> Result<BTreeMap<String, String>> {
        match self.shared.config.shared_storage.is_some() {
            true => Ok(BTreeMap::new()),
            false => Err(none_configured()),
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, SandboxSpec, from_json};
    use serde_json::{Value, json};

    use super::{Mount, mount_points, mounts, volumes};
    use crate::{config::FargateConfig, options::FargateOptions};

    fn read(settings: Value, spec: Value) -> sandbox_core::Result<Vec<Mount>> {
        let config: FargateConfig = from_json(settings, "config")?;
        config.validate()?;
        let spec = SandboxSpec::from_json(spec)?;
        mounts(&spec, &FargateOptions::of(&spec)?, &config)
    }

    fn shared(source: Value, target: &str) -> Value {
        json!({"provider_options": {"shared_volumes": [{"source": source, "target": target}]}})
    }

    #[test]
    fn a_part_of_the_storage_is_a_folder_of_its_own_and_always_encrypted_on_its_way() {
        let storage = json!({"shared_storage": {"file_system_id": "fs-1a", "root_directory": "/boxes"}});
        let spec = json!({"provider_options": {"shared_volumes": [
            {"source": "a/./b/", "target": "/x", "read_only": true}, {"source": "a/b", "target": "/y"}, {"target": "/z"},
        ]}});
        let mounts = read(storage, spec).unwrap();
        let volumes = volumes(&mounts);
        assert_eq!(volumes.len(), 2, "the same folder is one volume: {volumes:?}");
        let roots: Vec<_> = volumes.iter().map(|one| &one["efsVolumeConfiguration"]["rootDirectory"]).collect();
        assert!(roots.contains(&&json!("/boxes/a/b")) && roots.contains(&&json!("/boxes")), "{roots:?}");
        assert!(volumes.iter().all(|one| one["efsVolumeConfiguration"]["transitEncryption"] == "ENABLED"));
        let points: Vec<_> = mount_points(&mounts).collect();
        assert_eq!((&points[0]["containerPath"], &points[0]["readOnly"]), (&json!("/x"), &json!(true)));
        assert_eq!((&points[1]["readOnly"], &points[0]["sourceVolume"]), (&json!(false), &points[1]["sourceVolume"]));
    }

    #[test]
    fn a_named_volume_is_one_of_the_settings_with_its_access_point_and_rights() {
        let volume = json!({"file_system_id": "fs-1", "access_point_id": "fsap-1", "iam": true});
        let spec = json!({"volumes": [{"source": {"named": "data"}, "target": "/data"}]});
        let mounts = read(json!({"volumes": {"data": volume}}), spec).unwrap();
        let volumes = volumes(&mounts);
        let expected = json!({"iam": "ENABLED", "accessPointId": "fsap-1"});
        assert_eq!(volumes[0]["efsVolumeConfiguration"]["authorizationConfig"], expected);
        assert_eq!(volumes[0]["efsVolumeConfiguration"]["rootDirectory"], "/");
    }

    #[test]
    fn what_is_not_configured_or_leads_elsewhere_is_refused_by_its_field() {
        let plain = || json!({"shared_storage": {"file_system_id": "fs-1"}});
        let point = json!({"shared_storage": {"file_system_id": "fs-1", "access_point_id": "fsap-1"}});
        let named = |name: &str| json!({"volumes": [{"source": {"named": name}, "target": "/x"}]});
        let (source, target) =
            ("provider_options.shared_volumes[0].source", "provider_options.shared_volumes[0].target");
        for (settings, spec, kind, field) in [
            (json!({}), shared(json!("a"), "/x"), ErrorKind::Unsupported, "shared_storage"),
            (json!({}), named("data"), ErrorKind::InvalidInput, "volumes[0].source"),
            (plain(), shared(json!("../a"), "/x"), ErrorKind::InvalidInput, source),
            (plain(), shared(json!("/a"), "/x"), ErrorKind::InvalidInput, source),
            (point, shared(json!("a"), "/x"), ErrorKind::InvalidInput, source),
            (plain(), shared(json!(null), "x"), ErrorKind::InvalidInput, target),
            (plain(), shared(json!(null), "/"), ErrorKind::InvalidInput, target),
            (plain(), shared(json!(null), "/.sandbox/x"), ErrorKind::InvalidInput, target),
        ] {
            let error = read(settings, spec.clone()).unwrap_err();
            assert_eq!((error.kind(), error.field()), (kind, Some(field)), "{spec}: {error}");
        }
        let twice = json!({"provider_options": {"shared_volumes": [{"target": "/x"}, {"target": "/x/"}]}});
        assert!(read(plain(), twice).unwrap_err().to_string().contains("twice"));
    }
}
