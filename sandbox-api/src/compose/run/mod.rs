//! Running a stack.

mod boot;
mod connect;
mod events;
mod logs;
mod member;
mod prepare;
mod program;
mod relay;
mod resources;
mod running;
mod stack;
mod start;
mod state;
mod storage;
mod sweep;
mod wait;

use std::{
    collections::BTreeMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandbox_core::{Owner, Result, SandboxEndpoint, SandboxError, SandboxProvider};
use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, broadcast, watch};

use self::{boot::Boot, events::Events, member::Ask, stack::Stack};
use super::{ComposePlan, ComposeProject, ComposeReport, PlanOptions, PublishedBy, order};
use crate::{AsyncSandbox, Ownership, identity::process_owner, timeouts::within};

pub use logs::{LogChunk, LogFollower, ServiceLogs};
pub use state::{ComposeEvent, ServiceHealth, ServicePhase, ServiceState, ServiceStatus};
pub use sweep::sweep_stacks;

/// How long a start may take, in seconds, when the caller does not say. As in the model.
pub const DEFAULT_COMPOSE_TIMEOUT_S: f64 = 1200.0;

/// How much longer than a start a stack lives, in seconds, when the caller does not say. As in the model.
const LIFE_BEYOND_START_S: f64 = 3600.0;

/// The image of the sandbox that looks after folders of a shared storage. As in the model.
const HELPER_IMAGE: &str = "alpine:3.22";

/// A stack of sandboxes that a compose document describes, on one provider.
///
/// * Made with a provider and a project, running after [`start`](Self::start), gone after [`stop`](Self::stop).
/// * A start that fails, or whose future is dropped, leaves nothing behind.
/// * The provider is lent: no method ends it, unless [`with_ownership`](Self::with_ownership) says so.
/// * Programs are looked after as long as this object lives; their logs are kept here, also after a failure. Where the
///   provider has [`jobs`](sandbox_core::Capability::Jobs) the sandboxes keep them: a stack that belongs to a lease runs
///   on when this process is gone, and [`leave`](Self::leave) leaves it on purpose.
///
/// Dropping a running stack queues the removal of its sandboxes, like dropping each of them; only
/// [`stop`](Self::stop) also removes networks and volumes, asks programs to stop and waits for them.
pub struct AsyncSandboxCompose {
    provider: Arc<dyn SandboxProvider>,
    ownership: Ownership,
    project: Option<ComposeProject>,
    options: PlanOptions,
    settings: Settings,
    events: Events,
    state: Mutex<State>,
    // One start or stop at a time.
    turn: AsyncMutex<()>,
}

#[derive(Clone)]
struct Settings {
    timeout: Duration,
    poll: Duration,
    owner: Option<Owner>,
    ttl_s: Option<f64>,
    helper_image: String,
    waits_for_health: bool,
}

enum State {
    New,
    Running(Arc<Stack>),
    /// With the logs of what ran.
    Ended(BTreeMap<(String, u32), ServiceLogs>),
}

impl AsyncSandboxCompose {
    /// A stack of this project on this provider. Nothing is made yet.
    pub fn new(provider: Arc<dyn SandboxProvider>, project: ComposeProject) -> Self {
        Self::with_state(provider, Some(project), State::New)
    }

    fn with_state(provider: Arc<dyn SandboxProvider>, project: Option<ComposeProject>, state: State) -> Self {
        let settings = Settings {
            timeout: Duration::from_secs_f64(DEFAULT_COMPOSE_TIMEOUT_S),
            poll: Duration::from_millis(500),
            owner: None,
            ttl_s: None,
            helper_image: HELPER_IMAGE.to_owned(),
            waits_for_health: true,
        };
        Self {
            provider,
            ownership: Ownership::Shared,
            project,
            options: PlanOptions::default(),
            settings,
            events: Events::new(),
            state: Mutex::new(state),
            turn: AsyncMutex::new(()),
        }
    }

    /// Says what is allowed and chosen beyond the document.
    #[must_use]
    pub fn with_options(mut self, options: PlanOptions) -> Self {
        self.options = options;
        self
    }

    /// Says whether [`stop`](Self::stop) also ends the provider. Default: it does not.
    #[must_use]
    pub fn with_ownership(mut self, ownership: Ownership) -> Self {
        self.ownership = ownership;
        self
    }

    /// How long a start may take, in seconds. Default 1200.
    #[must_use]
    pub fn with_timeout_s(mut self, timeout_s: f64) -> Self {
        self.settings.timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
        self
    }

    /// How long a start waits for programs that end at once, in seconds. Default 0.5.
    #[must_use]
    pub fn with_poll_interval_s(mut self, poll_interval_s: f64) -> Self {
        self.settings.poll = Duration::try_from_secs_f64(poll_interval_s).unwrap_or_default();
        self
    }

    /// Who answers for the sandboxes. Default: this process.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.settings.owner = Some(owner);
        self
    }

    /// Longest life of the sandboxes, in seconds, where the provider has one. Default: the timeout and an hour.
    #[must_use]
    pub fn with_ttl_s(mut self, ttl_s: f64) -> Self {
        self.settings.ttl_s = Some(ttl_s);
        self
    }

    /// The image of the sandbox that looks after folders of a shared storage. Default `alpine:3.22`.
    #[must_use]
    pub fn with_volume_init_image(mut self, image: impl Into<String>) -> Self {
        self.settings.helper_image = image.into();
        self
    }

    /// Whether a start also waits until every service that has a health check is healthy. Default: it does.
    #[must_use]
    pub fn with_wait_for_health(mut self, waits: bool) -> Self {
        self.settings.waits_for_health = waits;
        self
    }

    /// What the document becomes on this provider, and everything there is to say about that.
    pub fn plan(&self) -> (Option<ComposePlan>, ComposeReport) {
        match &self.project {
            Some(project) => {
                let planned = project.plan(&self.provider.full_info(), &self.options);
                (planned.plan, planned.report)
            }
            None => (None, ComposeReport::default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> Result<Arc<Stack>> {
        match &*self.lock() {
            State::Running(stack) => Ok(stack.clone()),
            State::New => Err(SandboxError::invalid_state("the stack has not been started")),
            State::Ended(_) => Err(SandboxError::invalid_state("the stack has been stopped")),
        }
    }

    /// Starts every service, in the order that they need each other, and returns when all are up: started, and healthy
    /// where they have a health check.
    ///
    /// Everything is checked before anything is made. When something fails, or the future is dropped, everything that
    /// was made is removed; after a failure the stack can be started again.
    ///
    /// # Errors
    /// `InvalidState` when it runs; the first problem of the plan; `TimedOut`; `Create` when a service failed, ended or
    /// was unhealthy; the provider's.
    pub async fn start(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        if matches!(&*self.lock(), State::Running(_)) {
            return Err(SandboxError::invalid_state("the stack has been started already"));
        }
        let Some(project) = &self.project else {
            return Err(SandboxError::invalid_state("a connected stack has no document to start"));
        };
        let (plan, report) = self.plan();
        if let Some(error) = report.to_error() {
            return Err(error);
        }
        let plan = plan.ok_or_else(|| SandboxError::internal("a plan without errors is missing"))?;
        let needs = |name: &String| order::needs(&project.services[name], &project.services).into_iter().collect();
        let stack = Arc::new(Stack {
            provider: self.provider.clone(),
            id: unique_id(&project.name),
            project: project.name.clone(),
            events: self.events.clone(),
            resources: AsyncMutex::default(),
            members: Mutex::default(),
            tasks: Mutex::default(),
            relays: Mutex::default(),
            forwards: Mutex::default(),
            needs: project.services.keys().map(|name| (name.clone(), needs(name))).collect(),
            folders_by: Mutex::default(),
            is_connected: false,
        });
        let settings = &self.settings;
        let start_s = settings.timeout.as_secs_f64().min(86_400.0 * 30.0);
        let boot = Boot {
            plan,
            owner: settings.owner.clone().unwrap_or_else(process_owner),
            ttl_s: settings.ttl_s.unwrap_or(start_s + LIFE_BEYOND_START_S),
            poll: settings.poll,
            helper_image: settings.helper_image.clone(),
            volume_sources: self.options.volume_sources.clone(),
            waits_for_health: settings.waits_for_health,
        };
        // A task of its own: it cleans up also when nobody waits for it any more.
        let (unless_dropped, dropped) = watch::channel(());
        let task = tokio::spawn(start::start_or_remove(stack.clone(), boot, settings.timeout, dropped));
        let result = task.await;
        drop(unless_dropped);
        let broken = |error| (SandboxError::internal(format!("the start broke off: {error}")), BTreeMap::new());
        let result = result.unwrap_or_else(|error| Err(broken(error)));
        match result {
            Ok(()) => *self.lock() = State::Running(stack),
            Err((error, logs)) => {
                *self.lock() = State::Ended(logs);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Stops every program, those first that nobody needs, each with its grace period; then removes sandboxes,
    /// networks and volumes. Idempotent. When something cannot be removed, calling it again tries the rest.
    ///
    /// # Errors
    /// Whatever kept something from being removed.
    pub async fn stop(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        let stack = match &*self.lock() {
            State::Running(stack) => Some(stack.clone()),
            State::New | State::Ended(_) => None,
        };
        if let Some(stack) = stack {
            let logs = start::logs_of(&stack);
            stack.tear_down().await?;
            *self.lock() = State::Ended(logs);
        }
        if self.ownership == Ownership::Owned {
            within("closing the provider", Duration::from_secs(60), self.provider.aclose()).await?;
        }
        Ok(())
    }

    /// Ends the use of a running stack and leaves it running, for others to [`connect`](Self::connect) to:
    /// [`serialize`](Self::serialize) it first. Nobody checks its health or starts its programs again from then on, and
    /// ports that this process publishes are closed.
    ///
    /// # Errors
    /// `InvalidState` when it does not run, when it belongs to this process ([`with_owner`](Self::with_owner) of a lease
    /// lets it outlive it), or when a program runs in this process: the provider keeps none, or the service keeps its
    /// input open. The provider's, when it cannot be ended.
    pub async fn leave(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        let stack = self.running()?;
        let logs = start::logs_of(&stack);
        stack.leave().await?;
        *self.lock() = State::Ended(logs);
        if self.ownership == Ownership::Owned {
            within("closing the provider", Duration::from_secs(60), self.provider.aclose()).await?;
        }
        Ok(())
    }

    /// The unique id of the running stack: it is in the names and labels of everything that belongs to it.
    ///
    /// # Errors
    /// `InvalidState` when it does not run.
    pub fn id(&self) -> Result<String> {
        Ok(self.running()?.id.clone())
    }

    /// The state of every sandbox, in the order of starting.
    ///
    /// # Errors
    /// `InvalidState` when it does not run.
    pub fn status(&self) -> Result<Vec<ServiceStatus>> {
        Ok(self.running()?.status())
    }

    /// The first sandbox of a service: commands, files, terminals and endpoints go through it.
    ///
    /// # Errors
    /// `InvalidState` when the stack does not run; `NotFound`, naming the services that there are.
    pub fn service(&self, name: &str) -> Result<Arc<AsyncSandbox>> {
        self.replica(name, 1)
    }

    /// One of the sandboxes of a service, counted from 1.
    ///
    /// # Errors
    /// As [`service`](Self::service).
    pub fn replica(&self, name: &str, replica: u32) -> Result<Arc<AsyncSandbox>> {
        Ok(self.running()?.member(name, replica)?.sandbox.clone())
    }

    /// The logs of a sandbox of a service; they outlive it, also when the start failed.
    ///
    /// # Errors
    /// `InvalidState` when it was never started; `NotFound`.
    pub fn logs(&self, name: &str, replica: u32) -> Result<ServiceLogs> {
        match &*self.lock() {
            State::New => Err(SandboxError::invalid_state("the stack has not been started")),
            State::Running(stack) => Ok(stack.member(name, replica)?.logs.clone()),
            State::Ended(logs) => logs.get(&(name.to_owned(), replica)).cloned().ok_or_else(|| {
                SandboxError::not_found(format!("service {name:?} has no logs: it was not made")).with_field("service")
            }),
        }
    }

    /// What happens to the stack from now on; can be asked for before it starts.
    pub fn events(&self) -> broadcast::Receiver<ComposeEvent> {
        self.events.listen()
    }

    /// Where a port of a service is reached from outside.
    ///
    /// # Errors
    /// `InvalidState` when the stack does not run; `NotFound` for a service or port that is not published; those of
    /// [`AsyncSandbox::endpoint`].
    pub async fn endpoint(&self, service: &str, port: u16) -> Result<SandboxEndpoint> {
        let stack = self.running()?;
        let member = stack.member(service, 1)?;
        let relay = {
            let relays = stack.relays.lock().unwrap_or_else(PoisonError::into_inner);
            let is_it = |relay: &&relay::Relay| relay.service == service && relay.replica == 1 && relay.target == port;
            relays.iter().find(is_it).map(|relay| relay.address)
        };
        match relay {
            Some(address) => SandboxEndpoint::new(format!("tcp://{address}"), BTreeMap::new()),
            None => member.sandbox.endpoint(port).await,
        }
    }

    /// Starts the programs of a service again, and of those that are to be started again with it.
    ///
    /// # Errors
    /// `InvalidState`, `NotFound`.
    pub fn restart(&self, service: &str) -> Result<()> {
        let stack = self.running()?;
        if stack.is_connected {
            return Err(SandboxError::invalid_state("a connected stack does not run the programs")
                .with_help("ask the process that started it"));
        }
        stack.member(service, 1)?;
        let with_it = self
            .project
            .iter()
            .flat_map(|project| project.services.values())
            .filter(|other| other.depends_on.get(service).is_some_and(|needed| needed.restart));
        let names: Vec<&str> = [service].into_iter().chain(with_it.map(|other| other.name.as_str())).collect();
        for member in stack.members().iter().filter(|member| names.contains(&member.service.as_str())) {
            member.ask.send_modify(|ask| {
                *ask = match *ask {
                    Ask::Run => Ask::Restart(1),
                    Ask::Restart(count) => Ask::Restart(count + 1),
                    Ask::Stop => Ask::Stop,
                }
            });
        }
        Ok(())
    }

    /// A JSON object from which [`connect`](Self::connect) finds the stack again, also from another process. Holds no
    /// secret.
    ///
    /// # Errors
    /// `InvalidState`; those of [`AsyncSandbox::serialize`].
    pub async fn serialize(&self, scope: Option<&str>) -> Result<Value> {
        connect::serialize(&*self.running()?, scope).await
    }

    /// Finds the stack of a descriptor. Where its sandboxes keep their programs, their states are here, their logs as far
    /// as they are kept, and [`stop`](Self::stop) asks them to stop first; while the process that started them still
    /// reads their output, what comes later comes here at their end. Health checks and restarts stay with that process.
    /// [`stop`](Self::stop) really removes everything; dropping the object leaves it.
    ///
    /// # Errors
    /// `InvalidInput` for something that is no descriptor; those of [`AsyncSandbox::connect`], naming the service.
    pub async fn connect(provider: Arc<dyn SandboxProvider>, descriptor: Value) -> Result<Self> {
        let stack = connect::connect(&provider, descriptor).await?;
        Ok(Self::with_state(provider, None, State::Running(Arc::new(stack))))
    }

    /// Lets every sandbox of the stack live for `ttl_s` seconds from now. Returns the earliest new expiry in
    /// milliseconds since the Unix epoch; 0 when there is no sandbox.
    ///
    /// # Errors
    /// `InvalidState` when it does not run; those of [`AsyncSandbox::renew`], naming the service.
    pub async fn renew(&self, ttl_s: f64) -> Result<u64> {
        let mut first = None;
        for member in self.running()?.members() {
            let renewed = member.sandbox.renew(ttl_s).await;
            let at = renewed.map_err(|error| error.context(format!("service {:?}", member.service)))?;
            first = Some(first.map_or(at, |first: u64| first.min(at)));
        }
        Ok(first.unwrap_or_default())
    }

    /// Ports that this process or the provider publishes: service, port inside, and who does it.
    ///
    /// # Errors
    /// `InvalidState` when it does not run.
    pub fn published(&self) -> Result<Vec<(String, u16, PublishedBy)>> {
        self.running()?;
        let (plan, _) = self.plan();
        let services = plan.into_iter().flat_map(|plan| plan.services);
        Ok(services
            .flat_map(|service| {
                let name = service.name.clone();
                service.ports.into_iter().map(move |port| (name.clone(), port.port.target, port.by))
            })
            .collect())
    }
}

/// The project's name and 48 random bits: two stacks of one document never meet.
fn unique_id(project: &str) -> String {
    let random = RandomState::new().hash_one(project) & 0xffff_ffff_ffff;
    format!("{project}-{random:012x}")
}

impl Drop for AsyncSandboxCompose {
    fn drop(&mut self) {
        // Their tasks hold the sandboxes, which are removed, or left, when the last one is gone.
        if let State::Running(stack) = &*self.lock() {
            stack.abandon();
        }
    }
}

impl fmt::Debug for AsyncSandboxCompose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, id) = match &*self.lock() {
            State::New => ("new", None),
            State::Running(stack) => ("running", Some(stack.id.clone())),
            State::Ended(_) => ("ended", None),
        };
        f.debug_struct("AsyncSandboxCompose")
            .field("provider", &self.provider.name())
            .field("state", &state)
            .field("id", &id)
            .finish_non_exhaustive()
    }
}
