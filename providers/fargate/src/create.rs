//! Making a sandbox, and taking it all back when a step fails or nobody waits any more.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use sandbox_agent_client::{AgentFiles, TTL_MAX_S, random_hex, renew};
use sandbox_core::{ErrorKind, ExecOutcome, Result, SandboxError, SandboxSpec, SandboxStatus, tracing};
use sandbox_protocol::{
    Client,
    methods::{self, ExecWait, ExecWaited, HostsSet, Nothing},
};
use tokio::{sync::watch, time::Instant};

use crate::{
    aws::{Bucket, Task},
    config::{Address, TransportKind},
    definition::Recipe,
    ending::{Ended, not_started},
    error::{NAME, as_create},
    images::{build_folder, mirrored},
    key::Keys,
    launch::{Made, Order},
    options::FargateOptions,
    plan::Plan,
    poller::{Seen, Watching},
    provider::Shared,
    sandbox::Sandbox,
    size::Size,
    storage, sweep,
    tags::Labels,
};

/// How often a launch that failed on its way is begun anew: network interfaces and registries fail in passing.
const LAUNCHES_MAX: u32 = 3;
/// How long AWS may not know a task that it has just made.
const MISSING_LIMIT: Duration = Duration::from_secs(60);
/// So long before the deadline is told why the agent is not reached.
const LAST_WORD: Duration = Duration::from_millis(200);
/// How long is looked whether an entrypoint ends at once, in seconds.
const LOOK_S: f64 = 0.1;

/// Makes a sandbox. When this future is dropped, what was made is stopped in the background.
pub(crate) async fn create(shared: &Arc<Shared>, spec: SandboxSpec) -> Result<Arc<Sandbox>> {
    let (_waiting, gone) = watch::channel(());
    let shared = shared.clone();
    let task = tokio::spawn(async move {
        let caller = Caller(gone);
        let made = Creation { shared: shared.clone(), spec, caller: caller.clone() }.run().await?;
        if caller.is_gone() {
            let _ = shared.stop(&made.arn).await;
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
            done = tokio::time::timeout_at(deadline, work) => done.unwrap_or_else(|_| Err(not_ready("start"))),
        }
    }
}

fn cancelled() -> SandboxError {
    SandboxError::create("nobody waits for the sandbox any more")
}

fn not_ready(state: &str) -> SandboxError {
    SandboxError::timed_out(format!("the sandbox was not ready in time: its task is in {state}"))
        .with_provider(NAME)
        .with_help("see ready_timeout_s")
}

struct Creation {
    shared: Arc<Shared>,
    spec: SandboxSpec,
    caller: Caller,
}

/// A launch that did not work.
struct Failure {
    error: SandboxError,
    may_retry: bool,
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Self {
        Self { error, may_retry: false }
    }
}

impl Creation {
    async fn run(self) -> Result<Arc<Sandbox>> {
        let (shared, spec) = (&self.shared, &self.spec);
        let config = &shared.config;
        let options = FargateOptions::of(spec)?;
        let mounts = storage::mounts(spec, &options, config)?;
        let size = Size::of(&spec.resources, config.cpu, config.memory_mib)?;
        let limit = spec.ready_timeout().unwrap_or(Duration::from_secs_f64(config.ready_timeout_s));
        let deadline = Instant::now() + limit;
        let settings = self.caller.step(deadline, shared.settings(deadline)).await?;
        storage::check_role(&mounts, settings)?;
        let keys = self.caller.step(deadline, shared.keys(deadline)).await?;
        // What the sandbox is of, and what AWS pulls for it.
        let (image, pulled) = self.caller.step(deadline, self.image(&options)).await?;
        let ttl_s = spec.ttl_s.or(config.ttl_s);
        let ports = match config.transport {
            TransportKind::Direct => &spec.ports[..],
            TransportKind::Ssh => &[],
        };
        let bucket = settings.s3_bucket.as_deref().map(|name| shared.aws.bucket(name)).transpose()?;
        let fetched = match &bucket {
            Some(bucket) if settings.sidecar_image.is_none() => {
                Some(self.caller.step(deadline, shared.fetched(bucket)).await?)
            }
            _ => None,
        };
        let mut tries = 0;
        loop {
            tries += 1;
            // Each launch is a sandbox of its own, with keys of its own.
            let labels = Labels {
                incarnation: random_hex(16)?,
                key_id: keys.id().to_owned(),
                transport: config.transport,
                port: config.door(),
                relay: bucket.as_ref().filter(|_| fetched.is_none()).map(Bucket::address),
                identity: sweep::identity(spec, &shared.run_id, ttl_s),
                name: spec.name.clone(),
                image: image.clone(),
                ports: spec.ports.clone(),
                metadata: spec.metadata.clone(),
            };
            // Its time begins when it is ready; one that never gets there ends all the same.
            let ends_within_s = ttl_s.map(|ttl_s| (ttl_s + limit.as_secs_f64()).min(TTL_MAX_S));
            let fetches = match fetched {
                Some(found) => Some((self.caller.step(deadline, found.url(&shared.aws)).await?, found.sha256.as_str())),
                None => None,
            };
            let incarnation = &labels.incarnation;
            let plan = Plan { config, spec, keys, incarnation, size, ttl_s: ends_within_s, fetches };
            let mut others: BTreeMap<_, _> = config.tags.clone();
            others.extend(options.tags.clone());
            let order = Order {
                aws: &shared.aws,
                config,
                settings,
                definitions: &shared.definitions,
                recipe: Recipe {
                    config,
                    settings,
                    region: &shared.aws.region,
                    image: &pulled,
                    ports,
                    bucket: bucket.as_ref(),
                    mounts: &mounts,
                },
                capacity: options.capacity.unwrap_or(config.capacity),
                overrides: plan.overrides()?,
                tags: labels.to_tags(&others)?,
            };
            let mut made = Made::default();
            let failure = match self.attempt(&order, &mut made, labels, keys, deadline).await {
                Ok(sandbox) => return Ok(sandbox),
                Err(failure) => failure,
            };
            let back = made.take_back(&shared.aws, &settings.cluster).await;
            let mut error = failure.error;
            if let Err(left) = back {
                error = error.with_help(format!("a task may be left, until its time is over or a sweep: {left}"));
            } else if failure.may_retry && tries < LAUNCHES_MAX && !self.caller.is_gone() && Instant::now() < deadline {
                tracing::warn!(kind = %error.kind(), tries, "a task did not start, and is launched again");
                continue;
            }
            return Err(as_create(error));
        }
    }

    /// The image of the spec, and the one that AWS pulls: built or copied first, where that is wanted.
    async fn image(&self, options: &FargateOptions) -> Result<(String, String)> {
        if let Some(folder) = &options.environment_dir {
            let built = build_folder(&self.shared, folder).await?;
            return Ok((built.clone(), built));
        }
        let image = self.spec.image.as_deref();
        let image = image.ok_or_else(|| SandboxError::invalid_input("image", "a fargate sandbox needs an image"))?;
        Ok((image.to_owned(), mirrored(&self.shared, image).await?))
    }

    /// One launch, until commands run.
    async fn attempt(
        &self,
        order: &Order<'_>,
        made: &mut Made,
        labels: Labels,
        keys: &Keys,
        deadline: Instant,
    ) -> Result<Arc<Sandbox>, Failure> {
        // Never broken off: AWS makes the task whether we wait or not, and only its answer says which.
        let task = order.launch(made, || self.caller.is_gone(), deadline).await?;
        let mut watching = self.shared.poller(&order.settings.cluster).watch(&task.task_arn);
        let starting = Starting { creation: self, image: &labels.image, launched: Instant::now() };
        let mut state = task.last_status.clone();
        let ready = async {
            let (task, address) = starting.address(task, &mut watching, deadline, &mut state).await?;
            let sandbox = Arc::new(Sandbox::new(&task, labels.clone(), address, keys, None)?);
            // The agent often answers before ECS says that the task runs.
            let (mut is_running, mut client) = (task.status() == SandboxStatus::Running, None);
            let mut reaching = std::pin::pin!(sandbox.link.client_until(deadline - LAST_WORD));
            while client.is_none() || !is_running {
                tokio::select! {
                    reached = &mut reaching, if client.is_none() => {
                        client = Some(reached.map_err(|error| starting.no_agent(error, &sandbox, is_running, &state))?);
                    }
                    seen = starting.next(&mut watching, &mut state) => {
                        is_running |= seen?.status() == SandboxStatus::Running;
                    }
                }
            }
            if let Some(client) = client {
                self.finish(&client).await?;
                if let Some(ttl_s) = self.spec.ttl_s.or(self.shared.config.ttl_s) {
                    sandbox.renew_until(renew(&client, ttl_s.min(TTL_MAX_S)).await?);
                }
            }
            Ok(sandbox.clone())
        };
        let mut gone = self.caller.0.clone();
        tokio::select! {
            biased;
            _ = gone.changed() => Err(cancelled().into()),
            done = tokio::time::timeout_at(deadline, ready) => done.unwrap_or_else(|_| Err(not_ready(&state).into())),
        }
    }

    /// What a spec asks for inside, before anybody uses it.
    async fn finish(&self, client: &Client) -> Result<()> {
        if let Some(workdir) = self.spec.workdir.as_deref() {
            AgentFiles(client).make_dir(workdir.into()).await.map_err(|error| error.with_field("workdir"))?;
        }
        if !self.spec.extra_hosts.is_empty() {
            let hosts = self.spec.extra_hosts.iter().map(|host| (host.name.clone(), host.address.clone())).collect();
            let set = client.call::<Nothing>(methods::HOSTS_SET, &HostsSet { hosts }).await;
            set.map_err(|error| error.with_field("extra_hosts"))?;
        }
        match &self.spec.entrypoint {
            Some(_) => entrypoint_stays(client).await,
            None => Ok(()),
        }
    }
}

/// A task on its way.
struct Starting<'a> {
    creation: &'a Creation,
    image: &'a str,
    launched: Instant,
}

impl Starting<'_> {
    /// The next that is seen of the task, while it may still get to run.
    async fn next(&self, watching: &mut Watching, state: &mut String) -> Result<Box<Task>, Failure> {
        loop {
            match watching.next().await {
                Seen::Nothing => {}
                Seen::Missing if self.launched.elapsed() < MISSING_LIMIT => {}
                Seen::Missing => return Err(SandboxError::create("AWS does not know the task that it has made").into()),
                Seen::Refused(kind, message) => return Err(SandboxError::new(kind, message).into()),
                Seen::Task(task) => {
                    state.clone_from(&task.last_status);
                    if task.status() != SandboxStatus::Stopped {
                        return Ok(task);
                    }
                    return self.stopped(task, watching).await;
                }
            }
        }
    }

    /// Why it has stopped is said last of all.
    async fn stopped(&self, mut task: Box<Task>, watching: &mut Watching) -> Result<Box<Task>, Failure> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let end = Instant::now() + PATIENCE;
        while task.last_status != "STOPPED"
            && let Ok(Seen::Task(newer)) = tokio::time::timeout_at(end, watching.next()).await
        {
            task = newer;
        }
        let Ended { error, may_retry } = not_started(&task, self.image);
        let error = match self.creation.spec.entrypoint.is_some() && error.kind() == ErrorKind::CreateVerification {
            true => entrypoint_failed(error.message()),
            false => error,
        };
        Err(Failure { error, may_retry })
    }

    /// The address by which the task is reached.
    async fn address(
        &self,
        task: Task,
        watching: &mut Watching,
        deadline: Instant,
        state: &mut String,
    ) -> Result<(Box<Task>, IpAddr), Failure> {
        let shared = &self.creation.shared;
        let mut task = Box::new(task);
        loop {
            if let Some(address) = shared.address(&task, deadline).await? {
                return Ok((task, address));
            }
            task = self.next(watching, state).await?;
        }
    }

    /// The agent is not reached. That is the task's matter until it runs.
    fn no_agent(&self, error: SandboxError, sandbox: &Sandbox, is_running: bool, state: &str) -> Failure {
        if !is_running && matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost) {
            return not_ready(state).into();
        }
        let at = SocketAddr::new(sandbox.address, sandbox.labels.port);
        let kind = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Lost => ErrorKind::CreateVerification,
            kind => kind,
        };
        let text = format!("the agent of the task is not reached at {at}: {}", error.message());
        let help = "do the security groups let this machine in, and is the sidecar's image, if there is one, as the README says?";
        SandboxError::new(kind, text).with_source(error).with_help(help).into()
    }
}

impl Shared {
    /// The address by which a task is reached from here; none while it has none.
    ///
    /// # Errors
    /// What AWS refuses with.
    pub(crate) async fn address(&self, task: &Task, deadline: Instant) -> Result<Option<IpAddr>> {
        match self.config.address {
            Address::Private => Ok(task.private_address()),
            Address::Public => match task.interface() {
                Some(interface) => Ok(self.aws.public_address(interface, deadline).await?),
                None => Ok(None),
            },
        }
    }
}

/// Looks whether the entrypoint runs. One that cannot be started, or ends at once, fails the creation.
async fn entrypoint_stays(client: &Client) -> Result<()> {
    let wait = ExecWait { exec_id: methods::ENTRYPOINT_ID.to_owned(), timeout_s: Some(LOOK_S) };
    match client.call(methods::EXEC_WAIT, &wait).await {
        Ok(ExecWaited { exit: None }) => Ok(()),
        Ok(ExecWaited { exit: Some(exit) }) => Err(match exit.outcome {
            ExecOutcome::StartFailed { message, .. } => entrypoint_failed(&message),
            outcome => entrypoint_failed(&format!("it ended at once with code {}", outcome.return_code())),
        }),
        // The agent goes with it.
        Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable) => {
            Err(entrypoint_failed("it ended at once"))
        }
        Err(error) => Err(error),
    }
}

fn entrypoint_failed(why: &str) -> SandboxError {
    SandboxError::create(format!("the entrypoint does not run: {why}")).with_provider(NAME).with_field("entrypoint")
}
