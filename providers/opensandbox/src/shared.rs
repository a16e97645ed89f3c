//! What every call needs: settings, the client, and what is known of each sandbox.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use reqwest::{Method, header::HeaderMap};
use sandbox_core::{Result, SandboxError, SandboxHandle, Secret};
use tokio::time::Instant;

use crate::{
    config::{OpenSandboxConfig, seconds},
    daemon::{Daemon, Kind, Target},
    error::{Failure, NAME},
    http::{Answer, Call, Http},
    native::Link,
    pty::Detachable,
    renewal::Renewal,
    retry::{Backoff, Operation},
    state::State,
};

/// How long the address of a sandbox is good for.
const TARGET_GOOD_FOR: Duration = Duration::from_secs(600);

/// So many sandboxes are remembered; what is forgotten is asked for again.
const KNOWN_SANDBOXES: usize = 10_000;

/// What calls need beside their sandbox.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: OpenSandboxConfig,
    pub(crate) http: Http,
    /// The API's address, without a slash at the end.
    pub(crate) base: String,
    pub(crate) key: Option<Secret>,
    known: Mutex<HashMap<String, Known>>,
}

/// What is known of one sandbox.
#[derive(Debug, Default)]
struct Known {
    target: Option<(Arc<Target>, Instant)>,
    kind: Option<Kind>,
    is_paused: bool,
    /// The generation of handles that are good, once one has been replaced here.
    generation: Option<u64>,
    renewal: Option<Arc<Renewal>>,
    /// Terminal sessions that are open from here.
    ptys: Vec<Weak<dyn Detachable>>,
    /// The connection to its agent.
    link: Option<Arc<Link>>,
}

impl Shared {
    pub(crate) fn new(config: OpenSandboxConfig) -> Result<Self> {
        config.validate()?;
        let http = Http::new(&config.connection)?;
        let (base, key) = (config.connection.origin()?.base(), config.connection.key());
        Ok(Self { config, http, base, key, known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, id: &str, work: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known();
        if known.len() >= KNOWN_SANDBOXES && !known.contains_key(id) {
            // Those with a task of their own, or whose handles were replaced, are kept.
            known.retain(|_, one| one.renewal.is_some() || one.generation.is_some());
        }
        work(known.entry(id.to_owned()).or_default())
    }

    /// Checks that a handle is ours, whole, and of the incarnation that there is.
    pub(crate) fn open(&self, handle: &SandboxHandle) -> Result<State> {
        check_provider(handle)?;
        let state = State::read(handle)?;
        let id = &handle.sandbox_id;
        let known = self.known();
        let one = known.get(id);
        let good = one.and_then(|one| one.generation).unwrap_or(state.generation);
        if handle.generation != state.generation || handle.generation != good {
            let text = format!("sandbox {id} was replaced or resumed since this handle was made");
            return Err(SandboxError::invalid_state(text).with_provider(NAME));
        }
        if let Some(why) = one.and_then(|one| one.renewal.as_ref()).and_then(|renewal| renewal.failure()) {
            let text = format!("the expiry of sandbox {id} could not be moved: {why}");
            return Err(SandboxError::invalid_state(text).with_provider(NAME));
        }
        if one.is_some_and(|one| one.is_paused) {
            return Err(paused(id));
        }
        Ok(state)
    }

    pub(crate) fn set_paused(&self, id: &str, is_paused: bool) {
        self.with(id, |one| one.is_paused = is_paused);
    }

    pub(crate) fn add_pty<P: Detachable + 'static>(&self, id: &str, session: &Arc<P>) {
        let weak: Weak<P> = Arc::downgrade(session);
        self.with(id, |one| {
            one.ptys.retain(|session| session.strong_count() > 0);
            one.ptys.push(weak);
        });
    }

    /// Lets go of every terminal session of a sandbox. They go on.
    pub(crate) fn detach_ptys(&self, id: &str) {
        let sessions = self.with(id, |one| std::mem::take(&mut one.ptys));
        sessions.iter().filter_map(Weak::upgrade).for_each(|session| session.detach());
    }

    /// From now on only handles of this generation are good; what was known of the daemon is not.
    pub(crate) fn set_generation(&self, id: &str, generation: u64) {
        self.with(id, |one| {
            one.generation = Some(generation);
            one.target = None;
            // Its commands hold the old one.
            one.link = None;
        });
    }

    pub(crate) fn set_renewal(&self, id: &str, renewal: Arc<Renewal>) {
        self.with(id, |one| one.renewal = Some(renewal));
    }

    /// Ends the renewal of one sandbox, or of all.
    pub(crate) fn stop_renewal(&self, id: Option<&str>) {
        for (_, one) in self.known().iter_mut().filter(|(known, _)| id.is_none_or(|id| id == known.as_str())) {
            one.renewal = None;
        }
    }

    /// Forgets a sandbox that is gone.
    pub(crate) fn forget(&self, id: &str) {
        self.known().remove(id);
    }

    pub(crate) fn forget_target(&self, id: &str) {
        self.with(id, |one| one.target = None);
    }

    /// The connection to the agent of a sandbox, which need not be made yet.
    pub(crate) fn link(&self, id: &str) -> Arc<Link> {
        self.with(id, |one| one.link.get_or_insert_default().clone())
    }

    pub(crate) fn kind(&self, id: &str) -> Option<Kind> {
        self.known().get(id).and_then(|one| one.kind)
    }

    pub(crate) fn set_kind(&self, id: &str, kind: Kind) {
        self.with(id, |one| one.kind = Some(kind));
    }

    pub(crate) fn operation_backoff(&self) -> Backoff {
        let operations = &self.config.operations;
        Backoff {
            retries: operations.retries,
            delay: seconds(operations.retry_delay_s),
            max: seconds(operations.retry_max_delay_s),
        }
    }

    /// For calls that must not happen twice: only connections that cannot be made are tried again.
    pub(crate) fn once_backoff(&self) -> Backoff {
        let retries = self.config.connection.connect_retries;
        Backoff { retries, delay: Duration::from_millis(200), max: Duration::from_secs(2) }
    }

    /// The headers of a call of the lifecycle API.
    pub(crate) fn key_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(mut value) =
            self.key.as_ref().and_then(|key| key.expose().parse::<reqwest::header::HeaderValue>().ok())
        {
            value.set_sensitive(true);
            headers.insert("OPEN-SANDBOX-API-KEY", value);
        }
        headers
    }

    /// A call of the lifecycle API.
    pub(crate) fn control_call(&self, method: Method, path: &str) -> Call {
        let timeout = self.config.connection.request_timeout();
        Call::new(method, format!("{}{path}", self.base), self.key_headers(), timeout)
    }

    pub(crate) async fn control(&self, call: &Call, operation: Operation) -> Result<Answer, Failure> {
        let backoff = match operation {
            Operation::Once => self.once_backoff(),
            _ => self.operation_backoff(),
        };
        self.http.call(call, operation, backoff, None).await
    }

    /// The daemon of a sandbox.
    pub(crate) async fn daemon(&self, id: &str) -> Result<Daemon<'_>> {
        let cached = self.known().get(id).and_then(|one| one.target.clone());
        if let Some((target, until)) = cached
            && Instant::now() < until
        {
            return Ok(Daemon::new(self, id, target));
        }
        let target = Arc::new(self.resolve(id, crate::daemon::PORT).await?);
        self.with(id, |one| one.target = Some((target.clone(), Instant::now() + TARGET_GOOD_FOR)));
        Ok(Daemon::new(self, id, target))
    }
}

/// The refusal of work on a sandbox that is paused.
pub(crate) fn paused(id: &str) -> SandboxError {
    SandboxError::invalid_state(format!("sandbox {id} is paused")).with_help("resume it first").with_provider(NAME)
}

/// Refuses a handle that another provider made.
pub(crate) fn check_provider(handle: &SandboxHandle) -> Result<()> {
    if handle.provider_name == NAME {
        return Ok(());
    }
    let text = format!("sandbox {} belongs to provider {:?}", handle.sandbox_id, handle.provider_name);
    Err(SandboxError::not_found(text).with_provider(NAME))
}
