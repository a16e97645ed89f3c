//! One container that was made ahead.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::{models::ContainerCreateBody, query_parameters::CreateContainerOptionsBuilder};
use sandbox_agent_client::random_hex;
use sandbox_core::{ErrorKind, Result, SandboxError, SandboxSpec, SandboxStatus, Secret};
use tokio::{io::AsyncWriteExt, net::unix::pipe};

use crate::{
    engine::Engine,
    error::{self, NAME},
    found::{self, Found},
    labels::{self, pool_labels},
    plan::{CONFIG, FOLDER},
    provider::Shared,
    run_folder,
    sandbox::remove_container,
};

/// How long an agent may take from its start until it waits, and from what it is told until it has read that.
const WAKE_LIMIT: Duration = Duration::from_secs(10);
const WAKE_PAUSE: Duration = Duration::from_millis(2);

/// How a kind of member is made.
#[derive(Clone)]
pub(crate) struct Recipe {
    /// What tells one kind from another.
    pub(super) key: String,
    /// Without labels, and with a placeholder for the folder of the agent's socket.
    pub(super) body: ContainerCreateBody,
    pub(super) platform: Option<String>,
    /// How many are kept.
    pub(super) count: usize,
}

/// A container whose agent waits to be told what it is.
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) token: Secret,
    pub(crate) found: Found,
    pub(crate) folder: PathBuf,
}

impl Member {
    pub(super) async fn make(shared: &Shared, recipe: &Recipe) -> Result<Self> {
        let engine = &shared.engine;
        let id = format!("docker-{}", random_hex(6)?);
        let token = random_hex(32)?;
        let run_dir = engine.config.run_dir();
        let folder = run_dir.join(&id);
        run_folder::make_waiting(run_dir, id.clone(), token.clone()).await?;
        match start(shared, recipe, &id, &folder).await {
            Ok(found) => Ok(Self { id, token: Secret::new(token), found, folder }),
            Err(error) => {
                // The failure itself is what is told; what stays is found by its labels.
                let _ = remove_container(engine, &id).await;
                let _ = run_folder::remove(folder, id).await;
                Err(error)
            }
        }
    }

    pub(crate) async fn remove(&self, engine: &Engine) -> Result<()> {
        remove_container(engine, &self.id).await?;
        run_folder::remove(self.folder.clone(), self.id.clone()).await
    }

    /// Whether it still runs.
    pub(super) async fn lives(&self, engine: &Engine) -> bool {
        let found = found::find(engine, &self.id).await;
        matches!(found, Ok(Some(found)) if found.status == SandboxStatus::Running)
    }

    /// Tells the agent what it is. It serves from then on.
    pub(super) async fn wake(&self, engine: &Engine, told: &[u8]) -> Result<()> {
        let path = self.folder.join(CONFIG);
        let work = async {
            let mut sender = loop {
                match pipe::OpenOptions::new().open_sender(&path) {
                    Ok(sender) => break sender,
                    // Nobody reads: it has just been started, or is gone.
                    Err(_) if self.lives(engine).await => tokio::time::sleep(WAKE_PAUSE).await,
                    Err(error) => return Err(failed(&path, error)),
                }
            };
            sender.write_all(told).await.map_err(|error| failed(&path, error))
        };
        let done = tokio::time::timeout(WAKE_LIMIT, work).await;
        done.unwrap_or_else(|_| Err(SandboxError::unavailable("a container of the pool does not wait for work")))
    }
}

fn failed(path: &Path, error: std::io::Error) -> SandboxError {
    SandboxError::io(path.display(), error).with_kind(ErrorKind::Unavailable).with_provider(NAME)
}

async fn start(shared: &Shared, recipe: &Recipe, id: &str, folder: &Path) -> Result<Found> {
    let docker = shared.engine.docker().await?;
    let mut body = recipe.body.clone();
    body.labels = Some(pool_labels(&labels::identity(&SandboxSpec::default(), &shared.run_id))?);
    for mount in body.host_config.iter_mut().flat_map(|host| host.mounts.iter_mut().flatten()) {
        if mount.target.as_deref() == Some(FOLDER) {
            mount.source = Some(folder.to_string_lossy().into_owned());
        }
    }
    let mut options = CreateContainerOptionsBuilder::default().name(id);
    if let Some(platform) = &recipe.platform {
        options = options.platform(platform);
    }
    let failed = |error| error::engine("filling the pool", error);
    let made = docker.create_container(Some(options.build()), body).await.map_err(failed)?;
    docker.start_container(&made.id, None).await.map_err(failed)?;
    let found = found::find(&shared.engine, &made.id).await?;
    found.ok_or_else(|| SandboxError::unavailable("a container of the pool was removed by somebody else"))
}

/// The same container without what only tells one sandbox from another.
pub(super) fn key(kind: &str, body: &ContainerCreateBody, platform: Option<&str>) -> Result<String> {
    // Through a value, whose keys have an order.
    let plain = serde_json::to_value(ContainerCreateBody { labels: None::<HashMap<_, _>>, ..body.clone() });
    let text = plain.and_then(|value| serde_json::to_string(&value));
    let text = text.map_err(|_| SandboxError::internal("a container could not be described").with_provider(NAME))?;
    Ok(format!("{kind} {} {text}", platform.unwrap_or_default()))
}
