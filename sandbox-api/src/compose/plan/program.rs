//! What a service runs: image, build, program.

use std::path::{Component, Path, PathBuf};

use sandbox_core::{Capability, Field};

use super::{ComposeAllow, PlannedService, is_image_based, support::Planner};
use crate::compose::model::{ComposeBuild, ComposeService};

/// A path without `.` and `..`, links not looked at.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

impl Planner<'_> {
    /// Image, build and program of a service.
    pub(super) fn image(&mut self, service: &ComposeService, planned: &mut PlannedService) {
        let given = self.options.images.get(&service.name);
        match (given, &service.build, &service.image) {
            (Some(image), ..) => planned.spec.image = Some(image.clone()),
            (None, Some(build), _) => self.build(service, build, planned),
            (None, None, Some(image)) => {
                if self.needs_field(service, "image", Field::Image) {
                    planned.spec.image = Some(image.clone());
                }
            }
            (None, None, None) if planned.spec.image.is_some() => {}
            (None, None, None) if is_image_based(self.info) => {
                let message =
                    format!("there is neither image nor build, and provider {:?} needs an image", self.info.name);
                let help = format!("name one, or give it with --image {}=REFERENCE", service.name);
                self.unsupported_with(service.place(""), &format!("services.{}", service.name), message, &help);
            }
            (None, None, None) => {}
        }
        let has_program = |words: &Option<Vec<String>>| words.as_ref().is_some_and(|words| !words.is_empty());
        if has_program(&service.entrypoint) || self.has(Capability::ImageConfig) {
            return;
        }
        if has_program(&service.command) {
            if planned.spec.image.is_some() && service.entrypoint.is_none() {
                let message =
                    format!("provider {:?} does not know the image's own entrypoint: none is taken", self.info.name);
                self.log.warning(service.place("command"), &service.key("command"), message);
            }
            return;
        }
        let message = format!(
            "provider {:?} does not know what the image runs: it lacks capability image_config",
            self.info.name
        );
        let help = "say it with command: or entrypoint:";
        self.unsupported_with(service.place("image"), &format!("services.{}", service.name), message, help);
    }

    fn build(&mut self, service: &ComposeService, build: &ComposeBuild, planned: &mut PlannedService) {
        let at = |key: &str| service.place(&format!("build.{key}"));
        if !self.has(Capability::BuildImage) {
            let message = format!("provider {:?} cannot build images", self.info.name);
            let help = format!("build and push it yourself, and name it with --image {}=REFERENCE", service.name);
            self.unsupported_with(service.place("build"), &service.key("build"), message, &help);
            return;
        }
        if !build.context.starts_with('/') {
            let message = "only folders of this machine can be built";
            self.unsupported(at("context"), &service.key("build.context"), message);
            return;
        }
        // What is built from is inside the image, where the service reads it.
        let context = Path::new(&build.context);
        let dockerfile = build.dockerfile.as_deref().map(|file| normal(&context.join(file)));
        for (key, path) in [("build.context", Some(normal(context))), ("build.dockerfile", dockerfile)] {
            if path.is_some_and(|path| !path.starts_with(&self.project.directory)) {
                self.allowed(
                    service,
                    key,
                    ComposeAllow::HostPaths,
                    "builds from a path outside of the project's folder",
                );
            }
        }
        for key in &build.other_keys {
            let path = service.key(&format!("build.{key}"));
            match key.as_str() {
                "cache_from" | "cache_to" | "no_cache_filter" => {
                    self.log.note(at(key), &path, "changes how fast it is built, not what");
                }
                "provenance" | "sbom" => {
                    self.log.note(at(key), &path, "says where an image is from, and changes nothing in it");
                }
                _ => self.unsupported(at(key), &path, "is not supported by the build of any provider"),
            }
        }
        let mut build = build.clone();
        if let Some(platform) = &service.platform {
            let others = build.platforms.iter().filter(|other| *other != platform).count();
            if others == build.platforms.len() && others > 0 {
                let message = format!("does not have {platform}, which is the platform of the service");
                self.unsupported(at("platforms"), &service.key("build.platforms"), message);
            }
            build.platforms = vec![platform.clone()];
        } else if build.platforms.len() > 1 {
            let message = "only the first one is built: the service runs on one";
            self.log.warning(at("platforms"), &service.key("build.platforms"), message);
            build.platforms.truncate(1);
        }
        let own = || format!("{}-{}", self.project.name, service.name).to_lowercase();
        build.tags.insert(0, service.image.clone().unwrap_or_else(own));
        planned.build = Some(build);
    }
}
