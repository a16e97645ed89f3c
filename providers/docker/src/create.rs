//! Making a sandbox, step by step, and taking it all back when a step fails or nobody waits any more.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bollard::query_parameters::{CreateContainerOptionsBuilder, LogsOptionsBuilder, UploadToContainerOptionsBuilder};
use futures_util::{StreamExt, future};
use sandbox_agent_client::{AgentFiles, find_agent, random_hex};
use sandbox_core::{ErrorKind, Result, SandboxError, SandboxSpec, SandboxStatus, Secret, tracing};
use tokio::{sync::watch, time::Instant};

use crate::{
    config::{AgentMode, PullPolicy, Transport},
    engine::machine,
    entrypoint,
    error::{self, NAME, as_create},
    failed::{self, Failed, Next},
    found::{self, Found},
    image::{self, Image},
    inject,
    labels::{self, Labels, Traits, Via},
    made::Made,
    options::DockerOptions,
    plan::{FOLDER, Plan},
    pool::{Draft, Woken},
    provider::Shared,
    run_folder,
    sandbox::Sandbox,
    sidecars,
};

/// The first and the longest pause between two tries to reach the agent.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(40);

/// How much of what a broken agent said is told.
const SAID_MAX_BYTES: usize = 400;

/// How long taking back may take, beside the removal's own limit.
const TAKE_BACK_LIMIT: Duration = Duration::from_secs(90);

/// Makes a sandbox. When this future is dropped, what was made is removed in the background.
pub(crate) async fn create(shared: &Arc<Shared>, spec: SandboxSpec) -> Result<Arc<Sandbox>> {
    let (_waiting, gone) = watch::channel(());
    let shared = shared.clone();
    let task = tokio::spawn(async move {
        let made = Creation { shared: shared.clone(), spec, caller: Caller(gone.clone()) }.run().await?;
        if Caller(gone).is_gone() {
            let _ = made.remove(&shared.engine).await;
            return Err(cancelled());
        }
        Ok(made)
    });
    task.await.unwrap_or_else(|_| Err(SandboxError::internal("the creation panicked")))
}

/// Whoever waits for a creation.
#[derive(Clone)]
struct Caller(watch::Receiver<()>);

impl Caller {
    fn is_gone(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Does a step that can be broken off at any moment.
    async fn step<T>(&self, deadline: Instant, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut gone = self.0.clone();
        tokio::select! {
            biased;
            _ = gone.changed() => Err(cancelled()),
            done = tokio::time::timeout_at(deadline, work) => done.unwrap_or_else(|_| Err(not_ready())),
        }
    }
}

fn cancelled() -> SandboxError {
    SandboxError::create("nobody waits for the sandbox any more")
}

fn not_ready() -> SandboxError {
    SandboxError::timed_out("the sandbox was not ready in time").with_provider(NAME).with_help("see ready_timeout_s")
}

struct Creation {
    shared: Arc<Shared>,
    spec: SandboxSpec,
    caller: Caller,
}

/// Where a sandbox may come from.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Any,
    /// What was made ahead, or nothing.
    Pool,
}

impl Creation {
    async fn run(self) -> Result<Arc<Sandbox>> {
        let (engine, spec) = (&self.shared.engine, &self.spec);
        let config = &engine.config;
        let options = DockerOptions::of(spec, config)?;
        labels::check_metadata(spec)?;
        self.find_external(&options).await?;
        let Some(reference) = spec.image.as_deref() else {
            return Err(SandboxError::invalid_input("image", "a docker sandbox needs an image").with_provider(NAME));
        };
        let wish = image::Wish {
            reference,
            pull: options.pull_policy.unwrap_or(config.pull),
            platform: options.platform.as_deref().or(config.platform.as_deref()),
        };
        let limit = spec.ready_timeout().unwrap_or(Duration::from_secs_f64(config.ready_timeout_s));
        let (image, early) = match self.shared.pools.known_image(&wish) {
            None => (self.image(&wish).await, None),
            Some(known) => future::join(self.image(&wish), self.ahead(known, &options, Instant::now() + limit)).await,
        };
        let mut image = match (image, early) {
            (Ok(image), Some((known, sandbox))) if known.id == image.id => return Ok(sandbox),
            (image, Some((_, sandbox))) => {
                // Another image has the name by now, or none.
                sandbox.remove(engine).await.map_err(as_create)?;
                image?
            }
            (image, None) => image?,
        };
        self.shared.pools.learn_image(&wish, &image);
        let mut deadline = Instant::now() + limit;
        let mut last = None;
        for via in self.ways(&image).await? {
            let mut attempt = self.attempt(via, Source::Any, &image, &options, deadline).await;
            // Once: whoever removes it all the time, or takes every name, is to be told of.
            let again = attempt.as_ref().err().map(|failed| failed.next).filter(|_| !self.caller.is_gone());
            let is_image = again == Some(Next::ImageAgain) && wish.pull != PullPolicy::Never;
            if is_image {
                tracing::warn!(image = %image.reference, "somebody has removed the image: it is got again");
                image = self.image(&wish).await?;
                deadline = Instant::now() + limit;
            }
            if is_image || again == Some(Next::OtherName) {
                attempt = self.attempt(via, Source::Any, &image, &options, deadline).await;
            }
            match attempt {
                Ok(sandbox) => return Ok(sandbox),
                Err(Failed { error, next: Next::OtherWay }) if !self.caller.is_gone() => {
                    tracing::warn!(via = ?via, kind = %error.kind(), "this way into the sandbox does not work here");
                    if via == Via::Socket {
                        self.shared.cannot_share.store(true, Ordering::Relaxed);
                    }
                    last = Some(error);
                }
                Err(Failed { error, .. }) => return Err(as_create(error)),
            }
        }
        Err(as_create(last.unwrap_or_else(|| SandboxError::create("there is no way into the sandbox"))))
    }

    async fn image(&self, wish: &image::Wish<'_>) -> Result<Image> {
        let engine = &self.shared.engine;
        // The pull has a limit of its own: a slow registry is not a slow start.
        let pull = Duration::from_secs_f64(engine.config.pull_timeout_s);
        self.caller.step(Instant::now() + pull + engine.config.request_timeout(), image::get(engine, wish)).await
    }

    /// A sandbox from what was made ahead of the image as it was known, while the engine is asked whether it still is.
    /// None where there is nothing, or it could not be used.
    async fn ahead(&self, known: Image, options: &DockerOptions, deadline: Instant) -> Option<(Image, Arc<Sandbox>)> {
        let ways = self.ways(&known).await.ok()?;
        if ways.first() != Some(&Via::Socket) {
            return None;
        }
        // What fails here fails again where nothing was made ahead, and is told then.
        let made = self.attempt(Via::Socket, Source::Pool, &known, options, deadline).await.ok()?;
        Some((known, made))
    }

    /// How commands could get in, the best first.
    async fn ways(&self, image: &Image) -> Result<Vec<Via>> {
        let engine = &self.shared.engine;
        let config = &engine.config;
        if config.agent == AgentMode::Off {
            return Ok(vec![Via::Engine]);
        }
        let agent = self.agent(image);
        let mut ways = Vec::new();
        if agent.is_ok() {
            let can_share = engine.is_by_socket()
                && !engine.facts().await?.is_remapped
                && !self.shared.cannot_share.load(Ordering::Relaxed);
            match config.transport {
                Transport::Socket => ways.push(Via::Socket),
                Transport::Auto if can_share => ways.extend([Via::Socket, Via::Relay]),
                Transport::Auto | Transport::Relay => ways.push(Via::Relay),
            }
        }
        match (config.agent, agent) {
            (AgentMode::Required, Err(error)) => Err(error.with_kind(ErrorKind::Create)),
            (AgentMode::Auto, agent) => {
                if let Err(error) = agent {
                    tracing::warn!(kind = %error.kind(), "no agent for this image: the engine's own exec is used");
                }
                ways.push(Via::Engine);
                Ok(ways)
            }
            _ => Ok(ways),
        }
    }

    fn agent(&self, image: &Image) -> Result<PathBuf> {
        let arch = if image.arch.is_empty() { std::env::consts::ARCH } else { machine(&image.arch) };
        find_agent(self.shared.engine.config.agent_path.as_deref(), arch).map_err(|error| error.with_provider(NAME))
    }

    async fn attempt(
        &self,
        via: Via,
        source: Source,
        image: &Image,
        options: &DockerOptions,
        deadline: Instant,
    ) -> Result<Arc<Sandbox>, Failed> {
        let labels = self.labels(via, image, options)?;
        let mut made = Made { id: labels.id.clone(), ..Made::default() };
        let done = self.steps(&mut made, source, labels, image, options, deadline).await;
        match done {
            Ok(sandbox) => {
                if let Some(draft) = made.draft.take() {
                    draft.refill(&self.shared);
                }
                Ok(Arc::new(sandbox))
            }
            Err(failed) => {
                let back = tokio::time::timeout(TAKE_BACK_LIMIT, made.take_back(&self.shared)).await;
                match back.unwrap_or_else(|_| Err(SandboxError::timed_out("the engine does not answer"))) {
                    Ok(()) => Err(failed),
                    // What is left is found by its labels.
                    Err(left) => {
                        let error = failed.error.with_help(format!("what was made could not be removed: {left}"));
                        Err(error.into())
                    }
                }
            }
        }
    }

    /// The engine makes volumes that it does not know: what somebody else made must be there before.
    async fn find_external(&self, options: &DockerOptions) -> Result<()> {
        if options.external_volumes.is_empty() {
            return Ok(());
        }
        let docker = self.shared.engine.docker().await?;
        for name in &options.external_volumes {
            match docker.inspect_volume(name).await {
                Ok(_) => {}
                Err(error) if error::is_missing(&error) => {
                    return Err(SandboxError::not_found(format!("the engine has no volume {name:?}"))
                        .with_provider(NAME)
                        .with_field("provider_options.external_volumes")
                        .with_help("make it first, or leave external out"));
                }
                Err(error) => return Err(error::engine("looking for a volume", error)),
            }
        }
        Ok(())
    }

    fn labels(&self, via: Via, image: &Image, options: &DockerOptions) -> Result<Labels> {
        let spec = &self.spec;
        let workdir = spec.workdir.clone().or_else(|| image.config.workdir.clone());
        Ok(Labels {
            id: format!("docker-{}", random_hex(6)?),
            incarnation: random_hex(16)?,
            identity: labels::identity(spec, &self.shared.run_id),
            traits: Traits {
                via,
                image: image.reference.clone(),
                workdir: workdir.unwrap_or_else(|| "/".to_owned()),
                user: spec.user.clone().or_else(|| image.config.user.clone()),
                ports: spec.ports.clone(),
                name: spec.name.clone(),
                metadata: spec.metadata.clone(),
                sidecars: spec.sidecars.iter().map(|sidecar| sidecar.name.clone()).collect(),
                holder: None,
                has_record: false,
                network_addresses: options.network_addresses.clone(),
            },
            token: Secret::new(random_hex(32)?),
        })
    }

    async fn steps(
        &self,
        made: &mut Made,
        source: Source,
        mut labels: Labels,
        image: &Image,
        options: &DockerOptions,
        deadline: Instant,
    ) -> Result<Sandbox, Failed> {
        let engine = &self.shared.engine;
        let via = labels.traits.via;
        let agent = if via == Via::Engine { None } else { Some(self.agent(image)?) };
        let run_dir = engine.config.run_dir();
        let shared =
            (via == Via::Socket).then_some(agent.clone()).flatten().map(|agent| (agent, run_dir.join(&labels.id)));
        let facts = engine.facts().await?;
        let platform = options.platform.as_deref().or(engine.config.platform.as_deref());
        let peer_uid = rustix::process::geteuid().as_raw();
        if let Some((agent, _)) = &shared {
            let (config, spec, labels) = (&engine.config, &self.spec, &labels);
            let plan = Plan { config, facts, spec, options, image, labels, shared: shared.clone() };
            let told = plan.agent_config(peer_uid)?;
            made.draft = Draft::of(plan, platform, agent.clone())?;
            if let Some(draft) = &made.draft {
                // Not broken off in between: what is taken is used, or removed.
                if let Some(Woken { labels, found, folder }) = draft.wake(&self.shared, labels, &told).await? {
                    made.id.clone_from(&labels.id);
                    made.run_folder = Some(folder);
                    (made.container, made.has_record) = (true, true);
                    return self.finish(made, &found, labels, deadline).await;
                }
                if source == Source::Any {
                    made.holder = draft.holder(&self.shared).await?;
                }
            }
        }
        if source == Source::Pool {
            return Err(SandboxError::exhausted("nothing was made ahead").into());
        }
        labels.traits.holder = made.holder.as_ref().map(|holder| holder.id.clone());
        let plan = Plan { config: &engine.config, facts, spec: &self.spec, options, image, labels: &labels, shared };
        let mut body = plan.body()?;
        if let (Some(holder), Some(host)) = (&made.holder, &mut body.host_config) {
            host.network_mode = Some(format!("container:{}", holder.found.container));
        }
        let told = plan.agent_config(peer_uid)?;
        let token = labels.token.expose().to_owned();
        if via == Via::Socket {
            made.run_folder = Some(run_dir.join(&labels.id));
            run_folder::make(run_dir, labels.id.clone(), told.clone(), token.clone()).await?;
        }
        if self.caller.is_gone() {
            return Err(cancelled().into());
        }
        // Never broken off: the engine makes it whether we wait or not, and only this answer says so.
        made.container = true;
        let mut create = CreateContainerOptionsBuilder::default().name(&labels.id);
        if let Some(platform) = platform {
            create = create.platform(platform);
        }
        let docker = engine.docker().await?;
        let created = match docker.create_container(Some(create.build()), body).await {
            Ok(created) => created,
            Err(error) => {
                // One with this name is somebody else's.
                made.container = !error::is_name_taken(&error);
                return Err(failed::not_made(error, via == Via::Socket && engine.config.transport == Transport::Auto));
            }
        };
        if let (Via::Relay, Some(agent)) = (via, &agent) {
            let has_folder = plan.is_read_only();
            let archive = inject::archive(agent.clone(), told, token, has_folder).await?;
            let path = if has_folder { FOLDER } else { "/" };
            let upload = UploadToContainerOptionsBuilder::default().path(path).build();
            let sent = async {
                let sent = docker.upload_to_container(&created.id, Some(upload), bollard::body_full(archive)).await;
                sent.map_err(|error| error::engine("putting the agent into the container", error))
            };
            self.caller.step(deadline, sent).await?;
        }
        let start = async {
            let started = docker.start_container(&created.id, None).await;
            started.map_err(|error| error::engine("starting the container", error))
        };
        self.caller.step(deadline, start).await.map_err(|error| self.not_started(via, error))?;
        let found = self.caller.step(deadline, found::find(engine, &created.id)).await?;
        let found = found.ok_or_else(|| SandboxError::create("the container was removed while it was made"))?;
        self.finish(made, &found, labels, deadline).await
    }

    /// From a container that runs to a sandbox that can be used.
    async fn finish(
        &self,
        made: &mut Made,
        found: &Found,
        labels: Labels,
        deadline: Instant,
    ) -> Result<Sandbox, Failed> {
        let engine = &self.shared.engine;
        let via = labels.traits.via;
        let sandbox = Sandbox::new(found, labels);
        self.caller.step(deadline, self.ready(&sandbox)).await.map_err(|error| {
            let is_agents = via != Via::Engine && error.kind() == ErrorKind::CreateVerification;
            Failed::then(error, Next::OtherWay, is_agents && engine.config.agent == AgentMode::Auto)
        })?;
        made.sidecars = sandbox.labels.traits.sidecars.clone();
        let beside = sidecars::start(engine, &sandbox, &self.spec.sidecars);
        self.caller.step(deadline, beside).await?;
        Ok(sandbox)
    }

    /// The engine could not start the main process: the agent's own failure, or the caller's.
    fn not_started(&self, via: Via, error: SandboxError) -> Failed {
        let is_agents = via != Via::Engine && error.message().contains(".sandbox");
        Failed::then(error, Next::OtherWay, is_agents && self.shared.engine.config.agent == AgentMode::Auto)
    }

    /// Returns when commands run.
    async fn ready(&self, sandbox: &Sandbox) -> Result<()> {
        let engine = &self.shared.engine;
        let Some(link) = &sandbox.link else { return self.stays(sandbox).await };
        let mut pause = FIRST_PAUSE;
        let client = loop {
            let error = match link.client(engine).await {
                Ok(client) => break client,
                Err(error) => error,
            };
            if error.kind() == ErrorKind::PermissionDenied {
                return Err(error.with_kind(ErrorKind::CreateVerification));
            }
            if pause == LONGEST_PAUSE {
                let found = found::find(engine, &sandbox.container).await?;
                if found.as_ref().is_none_or(|found| found.status != SandboxStatus::Running) {
                    if let Some(found) = found.filter(|_| self.spec.entrypoint.is_some()) {
                        return Err(entrypoint::failed(&found.ending()));
                    }
                    let said = said(&self.shared, &sandbox.container).await;
                    let message = format!("the agent does not run in this image: {said}");
                    return Err(SandboxError::create_verification(message).with_provider(NAME));
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        if let Some(workdir) = self.spec.workdir.as_deref() {
            // Where the root takes nothing the engine has made it.
            let made = AgentFiles(&client).make_dir(workdir.into()).await;
            made.map_err(|error| error.with_field("workdir"))?;
        }
        match &self.spec.entrypoint {
            Some(_) => entrypoint::stays(&client).await,
            None => Ok(()),
        }
    }

    /// Without the agent: the main process runs, and has not ended at once.
    async fn stays(&self, sandbox: &Sandbox) -> Result<()> {
        let found = found::find(&self.shared.engine, &sandbox.container).await?;
        match found {
            Some(found) if found.status == SandboxStatus::Running => Ok(()),
            found => {
                let ending = found.map_or_else(|| "it is gone".to_owned(), |found| found.ending());
                let said = said(&self.shared, &sandbox.container).await;
                Err(SandboxError::create_verification(format!("the container does not stay: {ending}; {said}"))
                    .with_provider(NAME)
                    .with_help("without our agent an image needs a shell, or an entrypoint that stays"))
            }
        }
    }
}

/// What a main process wrote that has ended, shortened to one line.
async fn said(shared: &Shared, container: &str) -> String {
    let Ok(docker) = shared.engine.docker().await else { return String::new() };
    let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail("3").build();
    let mut logs = docker.logs(container, Some(options));
    let mut text = Vec::new();
    while let Some(Ok(chunk)) = logs.next().await {
        text.extend_from_slice(chunk.as_ref());
        if text.len() >= SAID_MAX_BYTES {
            break;
        }
    }
    text.truncate(SAID_MAX_BYTES);
    String::from_utf8_lossy(&text).trim().escape_debug().to_string()
}
