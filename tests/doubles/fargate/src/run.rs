//! The life of a task.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    definition::ContainerDefinition,
    fault::{Kind, NETWORK, PULL},
    image::PATH,
    plane::{Launch, Plane, Waited},
    task::{Status, Stop, Task},
    world::World,
};

/// How long the service gives a container to end by itself, where its definition says nothing.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// From PROVISIONING to STOPPED.
pub(crate) async fn run(world: Arc<World>, task: Arc<Task>) {
    let stop = tokio::select! {
        stop = task.stop_asked() => stop,
        stop = live(&world, &task) => stop,
    };
    task.ask_to_stop(stop.clone());
    task.facts().stop = Some(stop);
    task.set(Status::Deactivating);
    tokio::time::sleep(world.timing.deactivating).await;
    task.set(Status::Stopping);
    if let Some(plane) = task.plane.lock().await.take() {
        let limits = task.definition.container_definitions.iter();
        let limits = limits.map(|one| one.stop_timeout.map_or(STOP_TIMEOUT, Duration::from_secs));
        let limit = limits.max().unwrap_or(STOP_TIMEOUT).min(world.timing.kill_after);
        for (name, code) in plane.end(limit).await {
            task.set_exit_code(&name, code);
        }
    }
    task.set(Status::Deprovisioning);
    tokio::time::sleep(world.timing.deprovisioning).await;
    task.set(Status::Stopped);
}

/// Until it has to stop by itself.
async fn live(world: &Arc<World>, task: &Arc<Task>) -> Stop {
    match try_live(world, task).await {
        Ok(()) => Stop { code: "EssentialContainerExited", reason: "Essential container in task exited".to_owned() },
        Err(stop) => stop,
    }
}

async fn try_live(world: &Arc<World>, task: &Arc<Task>) -> Result<(), Stop> {
    tokio::time::sleep(world.timing.provisioning).await;
    if world.hit(NETWORK).is_some() {
        return Err(Stop::failed("Timeout waiting for network interface provisioning to complete."));
    }
    task.set(Status::Pending);
    let roots = pull(world, task).await?;
    task.set(Status::Activating);
    tokio::time::sleep(world.timing.activating).await;
    let failed = |error: std::io::Error| Stop::failed(format!("ResourceInitializationError: {error}"));
    let plane = Plane::start(&world.folder.join(task.id())).await.map_err(failed)?;
    let mut changes = plane.changes();
    {
        let mut place = task.plane.lock().await;
        let plane = place.insert(plane);
        let ports = task.definition.container_definitions.iter().flat_map(|one| &one.port_mappings);
        let mut ports: Vec<u16> = ports.map(|mapping| mapping.container_port).collect();
        ports.sort_unstable();
        ports.dedup();
        plane.connect(task.address, ports, &task.gate, world.services).await.map_err(failed)?;
    }
    let mut waiting: Vec<&ContainerDefinition> = task.definition.container_definitions.iter().collect();
    loop {
        let is_over = step(world, task, &roots, &mut waiting).await?;
        if is_over {
            return Ok(());
        }
        if waiting.is_empty() && task.status() < Status::Running {
            task.set(Status::Running);
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Starts what need wait no longer. Returns whether an essential container has ended.
async fn step(
    world: &World,
    task: &Task,
    roots: &BTreeMap<&str, PathBuf>,
    waiting: &mut Vec<&ContainerDefinition>,
) -> Result<bool, Stop> {
    let mut place = task.plane.lock().await;
    let Some(plane) = place.as_mut() else { std::future::pending().await };
    let mut is_moving = true;
    while std::mem::take(&mut is_moving) {
        let mut left = Vec::new();
        for container in std::mem::take(waiting) {
            if !is_due(plane, container)? {
                left.push(container);
                continue;
            }
            is_moving = true;
            let launch = launch(world, task, container, &roots[container.image.as_str()]);
            if let Err(words) = plane.launch(launch).await {
                let reason = format!("CannotStartContainerError: {words}");
                let mut facts = task.facts();
                for one in facts.containers.iter_mut().filter(|one| one.name == container.name) {
                    one.reason = Some(reason.clone());
                }
                return Err(Stop::failed(reason));
            }
        }
        *waiting = left;
    }
    for (name, code) in plane.exit_codes() {
        if let Some(code) = code {
            task.set_exit_code(name, code);
        }
    }
    Ok(plane.is_over())
}

fn is_due(plane: &Plane, container: &ContainerDefinition) -> Result<bool, Stop> {
    let mut is_due = true;
    for dependency in &container.depends_on {
        match plane.waited(&dependency.container_name, dependency.condition) {
            Waited::Done => {}
            Waited::NotYet => is_due = false,
            Waited::Never(why) => {
                let reason = format!("{} cannot start, as its dependency {why}", container.name);
                return Err(Stop::failed(reason));
            }
        }
    }
    Ok(is_due)
}

/// Finds the roots of the images.
async fn pull<'a>(world: &World, task: &'a Task) -> Result<BTreeMap<&'a str, PathBuf>, Stop> {
    let fault = world.hit(PULL);
    if let Some(Kind::SlowPull(by)) = fault {
        tokio::time::sleep(by).await;
    }
    tokio::time::sleep(world.timing.pending).await;
    if matches!(fault, Some(Kind::NoImage)) {
        let images = task.definition.container_definitions.first().map(|container| container.image.as_str());
        return Err(not_pulled(
            task,
            images.unwrap_or_default(),
            "toomanyrequests: You have reached your pull rate limit",
        ));
    }
    let mut roots = BTreeMap::new();
    for container in &task.definition.container_definitions {
        let image = container.image.as_str();
        let Some(root) = world.find_image(image) else {
            return Err(not_pulled(task, image, &format!("failed to resolve ref {image}: {image}: not found")));
        };
        roots.insert(image, root);
    }
    Ok(roots)
}

fn not_pulled(task: &Task, image: &str, why: &str) -> Stop {
    let reason = format!("CannotPullContainerError: pull image manifest has been retried 5 time(s): {why}");
    for one in task.facts().containers.iter_mut().filter(|one| one.image_is(image)) {
        one.reason = Some(reason.clone());
    }
    Stop::failed(reason)
}

fn launch<'a>(
    world: &World,
    task: &'a Task,
    container: &'a ContainerDefinition,
    image: &'a std::path::Path,
) -> Launch<'a> {
    let hostname = task.hostname();
    // What the service itself sets; the definition may say otherwise.
    let mut environment = BTreeMap::from(
        [
            ("PATH", PATH),
            ("HOME", "/root"),
            ("HOSTNAME", hostname),
            ("AWS_EXECUTION_ENV", "AWS_ECS_FARGATE"),
            ("AWS_REGION", &world.account.region),
            ("AWS_DEFAULT_REGION", &world.account.region),
            ("ECS_CONTAINER_METADATA_URI_V4", "http://169.254.170.2/v4/double"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    if task.definition.task_role_arn.is_some() {
        let uri = format!("/v2/credentials/{}", task.id());
        environment.insert("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI".to_owned(), uri);
    }
    environment.extend(task.overrides.environment(container));
    let command = task.overrides.command(container);
    // The images of the double have a shell as their command and no entry point.
    let argv: Vec<String> = match (&container.entry_point, command) {
        (None, None) => vec!["sh".to_owned()],
        (entry, command) => entry.iter().flatten().cloned().chain(command.into_iter().flatten()).collect(),
    };
    let mounts = container.mount_points.iter().map(|mount| {
        let volume = task.definition.volumes.iter().find(|volume| volume.name == mount.source_volume);
        let shared = volume.and_then(|volume| volume.efs_volume_configuration.as_ref());
        let source = shared.map_or_else(|| mount.source_volume.clone().into(), |shared| world.shared_folder(shared));
        (source, mount.container_path.clone(), mount.read_only)
    });
    let facts = task.facts();
    let log = facts.containers.iter().find(|one| one.name == container.name).map(|one| one.log.clone());
    Launch {
        name: &container.name,
        is_essential: container.essential,
        image,
        argv,
        environment,
        mounts: mounts.collect(),
        files: BTreeMap::from([
            ("/etc/hostname", format!("{hostname}\n")),
            ("/etc/hosts", format!("127.0.0.1 localhost\n{} {hostname}\n", task.address)),
            ("/etc/resolv.conf", "nameserver 169.254.169.253\n".to_owned()),
        ]),
        hostname,
        working_directory: container.working_directory.as_deref(),
        user: container.user.as_deref().unwrap_or_default(),
        is_read_only: container.readonly_root_filesystem,
        log: log.unwrap_or_default(),
    }
}
