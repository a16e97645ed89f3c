//! What is found out before anything is made: images, programs, files of this machine.

use std::{path::Path, sync::Arc, time::Duration};

use sandbox_core::{
    BuildEvent, BuildRequest, Capability, Env, Field, ImageConfig, Result, SandboxError, SandboxProvider, bytes::Bytes,
};

use super::{events::Events, program::Program};
use crate::{
    checks,
    compose::{ComposeBuild, ComposeCondition, ComposePlan, FileSource, PlannedService, plan::is_image_based},
    timeouts::within,
};

/// How long looking at an image may take; it may be pulled for that.
const IMAGE_LIMIT: Duration = Duration::from_secs(1800);

/// How large a secret or config may be.
const MOST_FILE_BYTES: u64 = 16 << 20;

/// A file that is written into the sandboxes of a service.
#[derive(Clone)]
pub(super) struct Contents {
    pub(super) target: String,
    pub(super) bytes: Bytes,
    pub(super) mode: u32,
    pub(super) owner: Option<String>,
}

/// A service that is ready to be made.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) service: PlannedService,
    pub(super) program: Program,
    pub(super) contents: Vec<Contents>,
    /// Variables that go with each command, where the provider gives sandboxes none.
    pub(super) env: Env,
}

/// Prepares every service of a plan.
pub(super) async fn prepare(
    provider: &Arc<dyn SandboxProvider>,
    plan: &ComposePlan,
    events: &Events,
) -> Result<Vec<Prepared>> {
    check_paths(plan)?;
    let mut prepared = Vec::new();
    for service in &plan.services {
        let mut service = service.clone();
        if let Some(build) = service.build.take() {
            events.tell(Some((&service.name, 0)), "building", None);
            service.spec.image = Some(build_image(provider, &service.name, build).await?);
            events.tell(Some((&service.name, 0)), "built", None);
        }
        let image = image_config(provider, &service).await?;
        let program = Program::new(&service, &image)?;
        let mut contents = Vec::new();
        for (section, grant) in &service.grants {
            let Some(source) = plan.files.get(&format!("{section}.{}", grant.source)) else { continue };
            let bytes = read(source, section, &grant.source)?;
            let mode = grant.mode.unwrap_or(0o444);
            contents.push(Contents { target: grant.target.clone(), bytes, mode, owner: grant.owner.clone() });
        }
        let env = adapt(provider, &mut service);
        prepared.push(Prepared { service, program, contents, env });
    }
    for one in &prepared {
        for (name, (condition, _)) in &one.service.depends_on {
            let needed = prepared.iter().find(|other| other.service.name == *name);
            if *condition == ComposeCondition::ServiceHealthy
                && needed.is_some_and(|needed| needed.program.health.is_none())
            {
                let message = format!("needs {name:?} to be healthy, but neither it nor its image has a health check");
                return Err(SandboxError::invalid_input(
                    format!("services.{}.depends_on.{name}", one.service.name),
                    message,
                )
                .with_help(format!("give {name} a healthcheck, or wait for service_started")));
            }
        }
    }
    Ok(prepared)
}

/// Takes out of a spec what the provider only honours in commands, and gives the variables back.
fn adapt(provider: &Arc<dyn SandboxProvider>, service: &mut PlannedService) -> Env {
    let info = provider.full_info();
    if !checks::takes_default(&info, Field::User) {
        service.spec.user = None;
    }
    if !checks::takes_default(&info, Field::Workdir) {
        service.spec.workdir = None;
    }
    if checks::takes_default(&info, Field::Env) { Env::default() } else { std::mem::take(&mut service.spec.env) }
}

/// Bind sources and folders to build from must be there, and inside of the project's folder also when links are followed.
fn check_paths(plan: &ComposePlan) -> Result<()> {
    let root = plan.directory.canonicalize().unwrap_or_else(|_| plan.directory.clone());
    for service in &plan.services {
        if let Some(build) = &service.build {
            let context = Path::new(&build.context);
            let dockerfile = build.dockerfile.as_deref().map(|file| ("dockerfile", context.join(file)));
            for (key, path) in [("context", context.to_owned())].into_iter().chain(dockerfile) {
                let field = format!("services.{}.build.{key}", service.name);
                let io = |error| SandboxError::io(path.display(), error).with_field(&field);
                let real = path.canonicalize().map_err(io)?;
                if path.starts_with(&plan.directory) && !real.starts_with(&root) && !plan.allows_host_paths {
                    let message = format!("{} leads out of the project's folder", path.display());
                    return Err(
                        SandboxError::invalid_input(field, message).with_help("allow it with --allow host-paths")
                    );
                }
            }
        }
        let binds = service.spec.volumes.iter().filter_map(|volume| match &volume.source {
            sandbox_core::VolumeSource::Bind(path) => Some(Path::new(path)),
            _ => None,
        });
        let copies = service.copies.iter().map(|(path, _)| path.as_path());
        for path in binds.chain(copies) {
            let field = format!("services.{}.volumes", service.name);
            let real = path.canonicalize().map_err(|error| {
                SandboxError::io(format!("bind source {}", path.display()), error)
                    .with_field(&field)
                    .with_help("make it first: nothing is made in its place")
            })?;
            let is_inside = path.starts_with(&plan.directory);
            if is_inside && !real.starts_with(&root) && !plan.allows_host_paths {
                let message = format!("bind source {} leads out of the project's folder", path.display());
                return Err(SandboxError::invalid_input(field, message).with_help("allow it with --allow host-paths"));
            }
        }
    }
    Ok(())
}

async fn image_config(provider: &Arc<dyn SandboxProvider>, service: &PlannedService) -> Result<ImageConfig> {
    let (Some(image), Some(images)) = (&service.spec.image, provider.as_image_config()) else {
        return Ok(ImageConfig::default());
    };
    if !is_image_based(&provider.full_info()) {
        return Ok(ImageConfig::default());
    }
    within("looking at an image", IMAGE_LIMIT, images.image_config(image.clone()))
        .await
        .map_err(|error| error.context(format!("image of service {:?}", service.name)))
}

async fn build_image(provider: &Arc<dyn SandboxProvider>, service: &str, build: ComposeBuild) -> Result<String> {
    let builder = checks::require(provider.name(), provider.as_build_image(), Capability::BuildImage)?;
    let request = BuildRequest {
        context: build.context,
        dockerfile: build.dockerfile,
        dockerfile_inline: build.dockerfile_inline,
        tags: build.tags,
        args: build.args,
        target: build.target,
        labels: build.labels,
        platform: build.platforms.into_iter().next(),
        no_cache: build.no_cache,
        pull: build.pull,
    };
    let work = async {
        let mut session = builder.build_image(request).await?;
        while let Some(event) = session.next().await? {
            if let BuildEvent::Built(image) = event {
                return Ok(image.image);
            }
        }
        Err(SandboxError::create("the build ended without an image"))
    };
    within("building an image", IMAGE_LIMIT, work).await.map_err(|error| {
        let field = format!("services.{service}.build");
        let field = match error.field() {
            Some(key) => format!("{field}.{key}"),
            None => field,
        };
        error.context(format!("building service {service:?}")).with_field(field)
    })
}

fn read(source: &FileSource, section: &str, name: &str) -> Result<Bytes> {
    let field = format!("{section}.{name}");
    match source {
        FileSource::Value(value) => Ok(Bytes::from(value.clone())),
        FileSource::File(path) => {
            let io = |error| SandboxError::io(format!("file {}", path.display()), error).with_field(&field);
            let size = std::fs::metadata(path).map_err(io)?.len();
            if size > MOST_FILE_BYTES {
                return Err(SandboxError::invalid_input(field, format!("has {size} bytes; at most {MOST_FILE_BYTES}")));
            }
            std::fs::read(path).map(Bytes::from).map_err(io)
        }
        FileSource::External(_) => Err(SandboxError::invalid_input(field, "is external, and no provider keeps it")),
    }
}
