//! Volumes and mounts.

use std::path::Path;

use sandbox_core::{Capability, Field, VolumeMount, VolumeSource};
use serde_json::json;

use super::{BindPolicy, ComposeAllow, PlannedService, PlannedVolume, support::Planner};
use crate::compose::{
    load::{ComposeMount, MountSource},
    model::{ComposeProject, ComposeService},
};

impl Planner<'_> {
    /// The volumes to make or use: those that a service mounts and that the provider keeps apart from sandboxes.
    pub(super) fn volumes(&mut self) -> Vec<PlannedVolume> {
        let mut planned = Vec::new();
        let project = self.project;
        for (name, volume) in &project.volumes {
            let users = users(project, name);
            if users.is_empty() {
                continue;
            }
            let key = format!("volumes.{name}");
            if let Some(driver) = volume.driver.as_deref()
                && !matches!(driver, "local" | "default" | "")
            {
                self.unsupported(volume.place, &format!("{key}.driver"), format!("driver {driver:?} is not supported"));
            }
            if let Some(option) = volume.driver_opts.keys().next() {
                let message = format!("driver option {option:?} is not supported");
                let help = "use a bind mount or tmpfs in the service";
                self.unsupported_with(volume.place, &format!("{key}.driver_opts"), message, help);
            }
            if self.is_folder(name) {
                continue;
            }
            let copy_up = users.iter().find(|(service, mount)| mount.copy_up && service.image.is_some());
            planned.push(PlannedVolume {
                key: name.clone(),
                external: volume.external.then(|| volume.name.clone().unwrap_or_else(|| name.clone())),
                copy_up: copy_up.map(|(service, mount)| (service.name.clone(), mount.target.clone())),
            });
        }
        planned
    }

    fn has_volumes(&self) -> bool {
        self.has(Capability::Volumes) && self.takes(Field::VolumesNamed)
    }

    /// Whether a volume can be a folder of the one sandbox that uses it: it goes with the stack anyway.
    fn is_folder(&self, volume: &str) -> bool {
        let is_external = self.project.volumes.get(volume).is_some_and(|volume| volume.external);
        let users = users(self.project, volume);
        !self.has_volumes()
            && !is_external
            && users.iter().map(|(service, _)| service.scale).sum::<u32>() == 1
            && users.len() == 1
    }

    /// Plans the mounts of a service.
    pub(super) fn mounts(&mut self, service: &ComposeService, planned: &mut PlannedService) {
        for (index, mount) in service.mounts.iter().enumerate() {
            let key = service.mount_keys.get(index).map_or("volumes", String::as_str);
            if mount.subpath.is_some() {
                self.unsupported(service.place(key), &service.key(key), "a part of a volume cannot be mounted");
            }
            match &mount.source {
                MountSource::Bind { path } => self.bind(service, key, mount, path, planned),
                MountSource::Volume { name } => self.named(service, key, mount, name, planned),
                MountSource::Anonymous => planned.folders.push(mount.target.clone()),
                MountSource::Tmpfs { size_mib, mode } => {
                    if self.needs_field(service, key, Field::VolumesTmpfs) {
                        let source = VolumeSource::Tmpfs(*size_mib);
                        planned.spec.volumes.push(VolumeMount {
                            source,
                            target: mount.target.clone(),
                            read_only: mount.read_only,
                        });
                    }
                    if mode.is_some_and(|mode| mode != 0o1777) {
                        self.log.warning(
                            service.place(key),
                            &service.key(key),
                            "the permissions are the provider's; set others in the command",
                        );
                    }
                }
            }
        }
    }

    fn bind(
        &mut self,
        service: &ComposeService,
        key: &str,
        mount: &ComposeMount,
        path: &Path,
        planned: &mut PlannedService,
    ) {
        if !path.starts_with(&self.project.directory) {
            let is_engine = path.ends_with("docker.sock") || path.ends_with("containerd.sock");
            let why = if is_engine {
                "gives the service the engine itself, and with it this machine"
            } else {
                "mounts a path outside of the project's folder"
            };
            if !self.allowed(service, key, ComposeAllow::HostPaths, why) {
                return;
            }
        }
        let target = mount.target.clone();
        if let Some(source) = self.options.volume_sources.get(&path.display().to_string()) {
            let source = VolumeSource::Named(source.clone());
            planned.spec.volumes.push(VolumeMount { source, target, read_only: mount.read_only });
            return;
        }
        if self.takes(Field::VolumesBind) {
            let source = VolumeSource::Bind(path.display().to_string());
            planned.spec.volumes.push(VolumeMount { source, target, read_only: mount.read_only });
            return;
        }
        match self.options.bind {
            BindPolicy::Copy => {
                let message = "is copied in at the start; what the service writes there does not come back";
                self.log.warning(service.place(key), &service.key(key), message);
                planned.copies.push((path.to_owned(), target));
            }
            BindPolicy::Mount => {
                let message = format!("provider {:?} cannot mount paths of this machine", self.info.name);
                let help = "copy them in at the start with --bind copy; later writes do not come back";
                self.unsupported_with(service.place(key), &service.key(key), message, help);
            }
        }
    }

    /// The name of a volume that is there already.
    fn external(&self, key: &str) -> Option<String> {
        let volume = self.project.volumes.get(key).filter(|volume| volume.external)?;
        Some(volume.name.clone().unwrap_or_else(|| key.to_owned()))
    }

    fn named(
        &mut self,
        service: &ComposeService,
        key: &str,
        mount: &ComposeMount,
        name: &str,
        planned: &mut PlannedService,
    ) {
        if self.has_volumes() || self.has(Capability::SharedStorage) {
            let source = VolumeSource::Named(name.to_owned());
            if let Some(external) = self.external(name).filter(|_| self.takes_option("external_volumes")) {
                let list = planned.spec.provider_options.entry("external_volumes").or_insert_with(|| json!([]));
                list.as_array_mut().into_iter().for_each(|list| list.push(json!(external)));
            }
            planned.spec.volumes.push(VolumeMount { source, target: mount.target.clone(), read_only: mount.read_only });
        } else if self.is_folder(name) {
            self.log.note(service.place(key), &service.key(key), "is a folder of the sandbox: nobody else uses it");
            planned.folders.push(mount.target.clone());
        } else {
            let message = format!(
                "provider {:?} has no volumes that sandboxes share: it lacks capability volumes and shared_storage",
                self.info.name
            );
            self.unsupported(service.place(key), &service.key(key), message);
        }
    }
}

/// The services that mount a volume.
fn users<'p>(project: &'p ComposeProject, volume: &str) -> Vec<(&'p ComposeService, &'p ComposeMount)> {
    let is_it = |mount: &&ComposeMount| matches!(&mount.source, MountSource::Volume { name } if name == volume);
    let of = |service: &'p ComposeService| service.mounts.iter().filter(is_it).map(move |mount| (service, mount));
    project.services.values().flat_map(of).collect()
}
