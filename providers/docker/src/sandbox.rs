//! One sandbox, seen from here.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sandbox_core::{
    Admitted, ErrorKind, Field, Result, SandboxError, SandboxHandle, SandboxStatus, Session, SessionEvent,
    serde_json::json,
};
use sandbox_protocol::Client;
use tokio::sync::OnceCell;

use crate::{
    engine::Engine,
    error::{self, NAME},
    found::{self, Found},
    labels::{Labels, Via},
    link::{Link, Place},
    plan::SOCKET,
    pool::remove_record,
    run_folder,
};

/// The generation of every handle: what tells incarnations apart is their own text.
pub(crate) const GENERATION: u64 = 1;

/// How long a call waits before it looks whether somebody else has paused the sandbox.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long the engine may take to say what has become of a sandbox whose connection broke.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to notice that a sandbox has ended, and of what.
const NOTICE_LIMIT: Duration = Duration::from_secs(2);
/// How long after a kill it may take to say that memory was the reason.
const REASON_LIMIT: Duration = Duration::from_millis(300);

/// How long a removal is waited for that another one has begun.
const REMOVAL_LIMIT: Duration = Duration::from_secs(60);
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);

/// A sandbox that this provider knows.
pub(crate) struct Sandbox {
    pub(crate) container: String,
    pub(crate) labels: Labels,
    /// None where commands go through the engine's own exec.
    pub(crate) link: Option<Link>,
    pub(crate) run_folder: Option<PathBuf>,
    pub(crate) is_paused: AtomicBool,
    /// When it ends, if that was moved from here.
    renewed: Mutex<Option<u64>>,
    /// The shell for scripts, where there is no agent to know it.
    pub(crate) shell: OnceCell<String>,
}

impl Sandbox {
    /// A sandbox that runs.
    pub(crate) fn new(found: &Found, labels: Labels) -> Self {
        let place = match labels.traits.via {
            Via::Engine => None,
            Via::Relay => Some(Place::Relay { container: found.container.clone() }),
            Via::Socket => {
                found.run_folder.as_ref().map(|folder| Place::Socket { path: folder.join(SOCKET), pid: found.pid })
            }
        };
        let link = place.map(|place| Link::new(place, labels.token.clone(), labels.incarnation.clone()));
        Self {
            container: found.container.clone(),
            labels,
            link,
            run_folder: found.run_folder.clone(),
            is_paused: AtomicBool::new(found.status == SandboxStatus::Paused),
            renewed: Mutex::new(None),
            shell: OnceCell::new(),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.labels.id
    }

    pub(crate) fn handle(&self) -> SandboxHandle {
        handle(&self.labels)
    }

    /// True if the handle is of this incarnation.
    pub(crate) fn is_meant_by(&self, handle: &SandboxHandle) -> bool {
        incarnation(handle) == Some(self.labels.incarnation.as_str())
    }

    pub(crate) fn renew_until(&self, at_ms: u64) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = Some(at_ms);
    }

    pub(crate) fn expires_at_ms(&self) -> Option<u64> {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.or(self.labels.identity.expires_at_ms)
    }

    /// The container that its network belongs to.
    pub(crate) fn network_container(&self) -> &str {
        self.labels.traits.holder.as_deref().unwrap_or(&self.container)
    }

    /// Refuses work on a sandbox that is frozen: it would wait for ever.
    pub(crate) fn check_not_paused(&self) -> Result<()> {
        match self.is_paused.load(Ordering::Acquire) {
            true => Err(self.paused()),
            false => Ok(()),
        }
    }

    fn paused(&self) -> SandboxError {
        SandboxError::invalid_state(format!("sandbox {} is paused", self.id()))
            .with_provider(NAME)
            .with_help("resume it first")
    }

    /// The way to the agent.
    pub(crate) fn link(&self, what: &str) -> Result<&Link> {
        self.link.as_ref().ok_or_else(|| {
            let why = format!("{what} needs our agent, and commands of this sandbox go through the engine's own exec");
            SandboxError::new(ErrorKind::Unsupported, why).with_provider(NAME).with_help("see the setting agent")
        })
    }

    /// Does work through the agent.
    pub(crate) async fn ask<T>(
        &self,
        engine: &Engine,
        what: &str,
        work: impl AsyncFnOnce(Client) -> Result<T>,
    ) -> Result<T> {
        self.check_not_paused()?;
        let link = self.link(what)?;
        let work = async { work(link.client(engine).await?).await };
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                () = tokio::time::sleep(PATIENCE) => {
                    // Somebody else may have paused it: then nothing will ever answer.
                    if let Ok(Some(found)) = found::find(engine, &self.container).await
                        && found.status == SandboxStatus::Paused
                    {
                        break Err(self.paused());
                    }
                }
            }
        };
        match done {
            Ok(done) => Ok(done),
            Err(error) => Err(self.explain(engine, error).await),
        }
    }

    /// What an error means when the sandbox itself is the reason.
    pub(crate) async fn explain(&self, engine: &Engine, error: SandboxError) -> SandboxError {
        let is_contact = matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable | ErrorKind::InvalidState);
        if !is_contact {
            return error.with_provider(NAME);
        }
        let looked =
            tokio::time::timeout(LOOK_LIMIT, self.ended(engine, error.kind() != ErrorKind::InvalidState)).await;
        let mut is_out_of_memory = false;
        let ended = match looked {
            Ok(Ok(None)) => "it was closed, or removed by somebody else".to_owned(),
            Ok(Ok(Some(found))) if found.status == SandboxStatus::Paused => return self.paused(),
            Ok(Ok(Some(found))) if found.status == SandboxStatus::Stopped => {
                is_out_of_memory = found.is_out_of_memory();
                found.ending()
            }
            _ => return error.with_provider(NAME),
        };
        let message = format!("sandbox {} is gone: {ended}", self.id());
        let gone = match error.admitted() {
            Some(Admitted::No) | None => SandboxError::not_found(message),
            Some(admitted) => SandboxError::lost(message, admitted),
        };
        let gone = gone.with_provider(NAME).with_source(error);
        match is_out_of_memory {
            true => gone.with_field(Field::MemoryMib.as_str()).with_help("give it more memory: resources.memory_mib"),
            false => gone,
        }
    }

    /// The container, when contact with it was lost. The engine notices its end, and what it ended of, a moment later
    /// than the connection does.
    async fn ended(&self, engine: &Engine, is_lost: bool) -> Result<Option<Found>> {
        let mut end = tokio::time::Instant::now() + NOTICE_LIMIT;
        loop {
            let found = found::find(engine, &self.container).await?;
            let is_settled = found.as_ref().is_none_or(|found| match found.status {
                SandboxStatus::Running => false,
                SandboxStatus::Stopped if found.is_killed() && !found.is_out_of_memory() => {
                    end = end.min(tokio::time::Instant::now() + REASON_LIMIT);
                    false
                }
                _ => true,
            });
            if is_settled || !is_lost || tokio::time::Instant::now() >= end {
                return Ok(found);
            }
            tokio::time::sleep(REMOVAL_PAUSE).await;
        }
    }

    /// A session of this sandbox that says what has ended it, if the sandbox itself is the reason.
    pub(crate) fn explained<E: SessionEvent>(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        session: Session<E>,
    ) -> Session<E> {
        let (sandbox, engine) = (self.clone(), engine.clone());
        // Whoever reads the session may have no runtime, or another one.
        let runtime = tokio::runtime::Handle::current();
        session.with_explanation(move |error| {
            let looked = runtime.spawn(async move { sandbox.explain(&engine, error).await });
            async move { looked.await.unwrap_or_else(|_| SandboxError::internal("looking at the sandbox panicked")) }
        })
    }

    /// Removes the container and what belongs to it, and returns when it is gone.
    pub(crate) async fn remove(&self, engine: &Engine) -> Result<()> {
        if let Some(link) = &self.link {
            // What still runs is ended with the container.
            let _ = tokio::time::timeout(Duration::from_millis(200), link.close()).await;
        }
        remove_sidecars(engine, self.id(), &self.labels.traits.sidecars).await?;
        remove_container(engine, &self.container).await?;
        self.remove_pooled(engine).await?;
        match &self.run_folder {
            Some(folder) => run_folder::remove(folder.clone(), self.id().to_owned()).await,
            None => Ok(()),
        }
    }
}

impl Sandbox {
    /// What came from the pool, beside the container.
    async fn remove_pooled(&self, engine: &Engine) -> Result<()> {
        if let Some(holder) = &self.labels.traits.holder {
            remove_container(engine, holder).await?;
            // It lies beside the sandbox's own.
            if let Some(folder) = self.run_folder.as_deref().and_then(Path::parent) {
                run_folder::remove(folder.join(holder), holder.clone()).await?;
            }
        }
        if self.labels.traits.has_record {
            remove_record(engine, self.id()).await?;
        }
        Ok(())
    }
}

/// The name of a sidecar's container.
pub(crate) fn sidecar_name(id: &str, sidecar: &str) -> String {
    format!("{id}-{sidecar}")
}

pub(crate) async fn remove_sidecars(engine: &Engine, id: &str, sidecars: &[String]) -> Result<()> {
    for sidecar in sidecars {
        remove_container(engine, &sidecar_name(id, sidecar)).await?;
    }
    Ok(())
}

/// Removes a container with its own volumes, whatever its state, and returns when it is gone.
pub(crate) async fn remove_container(engine: &Engine, container: &str) -> Result<()> {
    let options = bollard::query_parameters::RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    let docker = engine.docker().await?;
    let end = tokio::time::Instant::now() + REMOVAL_LIMIT;
    loop {
        match docker.remove_container(container, Some(options.clone())).await {
            Ok(()) => return Ok(()),
            Err(error) if error::is_missing(&error) => return Ok(()),
            // Another removal is under way, or it is just being started.
            Err(error) if error::is_conflict(&error) && tokio::time::Instant::now() < end => {
                tokio::time::sleep(REMOVAL_PAUSE).await;
            }
            Err(error) => return Err(error::engine("removing the sandbox", error)),
        }
    }
}

/// The handle of a sandbox with these labels.
pub(crate) fn handle(labels: &Labels) -> SandboxHandle {
    let mut handle = SandboxHandle::new(&labels.id, NAME)
        .with_state(json!({ "incarnation": labels.incarnation, "via": labels.traits.via }));
    handle.generation = GENERATION;
    handle
}

/// The incarnation that a handle names.
pub(crate) fn incarnation(handle: &SandboxHandle) -> Option<&str> {
    handle.state.get("incarnation").and_then(|text| text.as_str())
}
