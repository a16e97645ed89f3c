//! How much is asked of a provider at once.

use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sandbox_core::{ErrorKind, Result, SandboxError};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// Limits for one provider. Each kind of work has its own lane, so that one that is full holds up no other; removing a
/// sandbox never waits.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdmissionLimits {
    /// Sandboxes that are there at once. Default: no limit.
    pub sandboxes: Option<usize>,
    /// Creates under way at once. Default 32.
    pub creates: Option<usize>,
    /// Commands with a result under way at once. Default: no limit.
    pub execs: Option<usize>,
    /// Streams and terminal sessions open at once. Default: no limit.
    pub streams: Option<usize>,
    /// How long a call waits for its turn; then it fails with `Exhausted`. Default 600 s.
    pub wait: Duration,
    /// How often a create is tried when the provider says that a retry may help. Default 1: not again.
    pub create_attempts: u32,
    /// The pause before the first retry; it doubles each time, up to 30 s. Default 1 s.
    pub backoff: Duration,
    /// After so many creates in a row have failed, further ones are refused. Default 10.
    pub breaker_failures: u32,
    /// How long they are refused; then one is let through to see. Default 30 s.
    pub breaker_pause: Duration,
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        Self {
            sandboxes: None,
            creates: Some(32),
            execs: None,
            streams: None,
            wait: Duration::from_secs(600),
            create_attempts: 1,
            backoff: Duration::from_secs(1),
            breaker_failures: 10,
            breaker_pause: Duration::from_secs(30),
        }
    }
}

/// Keeps the limits of a provider for all sandboxes that share it: one for each provider, given to each sandbox with
/// [`AsyncSandbox::with_admission`](crate::AsyncSandbox::with_admission).
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    limits: AdmissionLimits,
    sandboxes: Lane,
    creates: Lane,
    execs: Lane,
    streams: Lane,
    breaker: Mutex<Breaker>,
}

/// The creates that failed one after the other, and until when others are refused.
#[derive(Default)]
struct Breaker {
    failures: u32,
    open_until: Option<Instant>,
    is_probing: bool,
}

impl Admission {
    /// Nothing is admitted yet.
    pub fn new(limits: AdmissionLimits) -> Self {
        Self(Arc::new(Inner {
            limits,
            sandboxes: Lane::new("sandboxes", limits.sandboxes, limits.wait),
            creates: Lane::new("creates", limits.creates, limits.wait),
            execs: Lane::new("execs", limits.execs, limits.wait),
            streams: Lane::new("streams", limits.streams, limits.wait),
            breaker: Mutex::default(),
        }))
    }

    /// The limits.
    pub fn limits(&self) -> &AdmissionLimits {
        &self.0.limits
    }

    pub(crate) async fn sandbox(&self) -> Result<Permit> {
        self.0.sandboxes.enter().await
    }

    /// One try of a create. Its outcome must be told, else it counts as given up.
    pub(crate) async fn create(&self) -> Result<CreateTurn> {
        // Before the wait and after it: what waited must not run into a wall that was built meanwhile.
        self.check_breaker(false)?;
        let permit = self.0.creates.enter().await?;
        let is_probe = self.check_breaker(true)?;
        Ok(CreateTurn { admission: self.clone(), is_probe, _permit: permit })
    }

    pub(crate) async fn exec(&self) -> Result<Permit> {
        self.0.execs.enter().await
    }

    pub(crate) async fn stream(&self) -> Result<Permit> {
        self.0.streams.enter().await
    }

    /// The pause before another try, if there is to be one.
    pub(crate) fn pause_after(&self, attempt: u32, error: &SandboxError) -> Option<Duration> {
        if attempt >= self.0.limits.create_attempts || !error.is_retryable() {
            return None;
        }
        let pause = self.0.limits.backoff.saturating_mul(1 << (attempt - 1).min(5)).min(Duration::from_secs(30));
        let random = RandomState::new().build_hasher().finish();
        // Never all at the same time.
        let jitter = pause.mul_f64((random % 1024) as f64 / 1024.0);
        Some(pause.max(error.retry_after().unwrap_or_default()) + jitter)
    }

    /// Whether this create is the one that looks whether they work again.
    fn check_breaker(&self, begins: bool) -> Result<bool> {
        let mut breaker = self.breaker();
        let Some(open_until) = breaker.open_until else { return Ok(false) };
        let left = open_until.saturating_duration_since(Instant::now());
        if !left.is_zero() || breaker.is_probing {
            let message = format!("{} creates in a row have failed; no other one is tried now", breaker.failures);
            return Err(SandboxError::new(ErrorKind::Unavailable, message)
                .with_retry_after(left.max(Duration::from_secs(1)))
                .with_help("see why they fail, or wait"));
        }
        breaker.is_probing |= begins;
        Ok(begins)
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        // Every change is complete before anything can panic.
        self.0.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

/// A create that has its turn.
pub(crate) struct CreateTurn {
    admission: Admission,
    is_probe: bool,
    _permit: Permit,
}

impl CreateTurn {
    /// Says how it went. A wrong spec says nothing about the provider.
    pub(crate) fn over(mut self, error: Option<&SandboxError>) {
        let is_ours = |kind| matches!(kind, ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::NotFound);
        let mut breaker = self.admission.breaker();
        match error {
            Some(error) if is_ours(error.kind()) => {}
            Some(_) => {
                breaker.failures += 1;
                if breaker.failures >= self.admission.0.limits.breaker_failures {
                    breaker.open_until = Some(Instant::now() + self.admission.0.limits.breaker_pause);
                }
            }
            None => *breaker = Breaker::default(),
        }
        if self.is_probe {
            breaker.is_probing = false;
        }
        drop(breaker);
        self.is_probe = false;
    }
}

impl Drop for CreateTurn {
    fn drop(&mut self) {
        if self.is_probe {
            self.admission.breaker().is_probing = false;
        }
    }
}

/// A place in a lane, given back when dropped. None where there is no limit.
#[derive(Debug, Default)]
pub(crate) struct Permit {
    _permit: Option<OwnedSemaphorePermit>,
}

struct Lane {
    name: &'static str,
    limit: usize,
    wait: Duration,
    semaphore: Option<Arc<Semaphore>>,
}

impl Lane {
    fn new(name: &'static str, limit: Option<usize>, wait: Duration) -> Self {
        let limit = limit.map(|limit| limit.clamp(1, Semaphore::MAX_PERMITS));
        let semaphore = limit.map(|limit| Arc::new(Semaphore::new(limit)));
        Self { name, limit: limit.unwrap_or_default(), wait, semaphore }
    }

    /// Waits for a place, in the order of asking. Dropping the future gives the turn up.
    async fn enter(&self) -> Result<Permit> {
        let Some(semaphore) = &self.semaphore else { return Ok(Permit::default()) };
        match tokio::time::timeout(self.wait, semaphore.clone().acquire_owned()).await {
            // It is never closed.
            Ok(permit) => Ok(Permit { _permit: permit.ok() }),
            Err(_) => {
                let message = format!(
                    "no turn within {} s: at most {} {} are under way at once",
                    self.wait.as_secs_f64(),
                    self.limit,
                    self.name
                );
                Err(SandboxError::exhausted(message).with_help("stop some, or raise the limit of the Admission"))
            }
        }
    }
}
