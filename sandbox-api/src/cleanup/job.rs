use std::{
    fmt,
    future::Future,
    hash::{BuildHasher, Hasher, RandomState},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use sandbox_core::{Result, SandboxError, SandboxHandle, SandboxProvider};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use super::{CleanupItem, queue::finish_create_later};
use crate::{
    async_sandbox::Slot,
    timeouts::{timed_out, within},
};

/// How long one removal may take, retries included.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// How long a `create` that nobody waits for may still take. An image pull of many gigabytes fits.
const ORPHAN_CREATE_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The first pause before a removal is tried again; it doubles each time, up to `MAX_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// A `create` under way.
pub(crate) type CreateFuture = Pin<Box<dyn Future<Output = Result<SandboxHandle>> + Send>>;

/// The end of something in a sandbox.
pub(crate) type EarlyFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A `create` that goes on in the lane when it is dropped before it is finished, and whose sandbox is closed there.
pub(crate) struct Orphan {
    provider: Arc<dyn SandboxProvider>,
    future: Option<CreateFuture>,
    unfinished: Unfinished,
    slot: Arc<Slot>,
}

impl Orphan {
    /// Counted by `unfinished` as long as there is anything to do.
    pub(crate) fn new(
        provider: Arc<dyn SandboxProvider>,
        future: CreateFuture,
        unfinished: &Unfinished,
        slot: &Arc<Slot>,
    ) -> Self {
        Self { provider, future: Some(future), unfinished: unfinished.clone(), slot: slot.clone() }
    }
}

impl Future for Orphan {
    type Output = Result<SandboxHandle>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out while it is polled: one that panics is not to be polled again.
        let Some(mut future) = self.future.take() else { return Poll::Pending };
        let poll = future.as_mut().poll(context);
        if poll.is_pending() {
            self.future = Some(future);
        }
        poll
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            finish_create_later(self.provider.clone(), future, &self.unfinished, self.slot.clone());
        }
    }
}

/// The starts of one object that were dropped and still go on in the lane. Its provider is needed until they are over.
#[derive(Clone)]
pub(crate) struct Unfinished(Arc<watch::Sender<usize>>);

impl Unfinished {
    pub(crate) fn none() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Whether there is one.
    pub(crate) fn is_any(&self) -> bool {
        *self.0.borrow() > 0
    }

    fn count(&self) -> Counted {
        self.0.send_modify(|count| *count += 1);
        Counted(self.clone())
    }

    async fn over(&self) {
        // Cannot fail: the sender is alive as long as `self`.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// One of them; over when dropped.
struct Counted(Unfinished);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// What becomes of the provider after a removal.
#[derive(Clone)]
pub(crate) enum ProviderAfter {
    /// Others may use it.
    Stays,
    /// It ends, when these are over.
    Ends(Unfinished),
}

/// A sandbox, and its place among those of this process, which is free again when it is removed.
pub(crate) type Placed = (SandboxHandle, Option<Arc<Slot>>);

/// Something to clean up.
pub(super) struct Job {
    provider: Arc<dyn SandboxProvider>,
    work: Work,
}

enum Work {
    /// Remove the sandbox if there is one, then end the provider if it is to be ended.
    Close { sandbox: Option<Placed>, end: ProviderAfter },
    /// Wait for a sandbox that nobody wants any more, then remove it.
    FinishCreate { future: CreateFuture, counted: Counted, slot: Arc<Slot> },
    /// Something of a sandbox that ends with it at the latest.
    Early { sandbox_id: String, future: EarlyFuture },
}

impl Job {
    pub(super) fn close(provider: Arc<dyn SandboxProvider>, sandbox: Option<Placed>, end: ProviderAfter) -> Self {
        Self { provider, work: Work::Close { sandbox, end } }
    }

    pub(super) fn finish_create(
        provider: Arc<dyn SandboxProvider>,
        future: CreateFuture,
        unfinished: &Unfinished,
        slot: Arc<Slot>,
    ) -> Self {
        Self { provider, work: Work::FinishCreate { future, counted: unfinished.count(), slot } }
    }

    pub(super) fn early(provider: Arc<dyn SandboxProvider>, sandbox_id: String, future: EarlyFuture) -> Self {
        Self { provider, work: Work::Early { sandbox_id, future } }
    }

    pub(super) fn item(&self) -> CleanupItem {
        let sandbox_id = match &self.work {
            Work::Close { sandbox, .. } => sandbox.as_ref().map(|(handle, _)| handle.sandbox_id.clone()),
            Work::FinishCreate { .. } => None,
            Work::Early { sandbox_id, .. } => Some(sandbox_id.clone()),
        };
        CleanupItem { provider: self.provider.name().to_owned(), sandbox_id }
    }

    /// Does it. What fails comes back with the job that would try it again, if there is one.
    pub(super) async fn run(self, permits: Arc<Semaphore>) -> Result<(), (SandboxError, Option<Job>)> {
        let provider = self.provider;
        // Counted until the sandbox is gone, not only until it is made.
        let (sandbox, end, _counted) = match self.work {
            Work::Close { sandbox, end } => (sandbox, end, None),
            Work::FinishCreate { future, counted, slot } => {
                match tokio::time::timeout(ORPHAN_CREATE_LIMIT, future).await {
                    Ok(Ok(handle)) => (Some((handle, Some(slot))), ProviderAfter::Stays, Some(counted)),
                    // It failed by itself and left nothing: the contract says so.
                    Ok(Err(_)) => return Ok(()),
                    Err(_) => return Err((timed_out("create", ORPHAN_CREATE_LIMIT), None)),
                }
            }
            Work::Early { future, .. } => {
                // Its sandbox ends it in any case, so what fails here is nothing left behind.
                if let Err(error) = within("ending it", CLOSE_LIMIT, future).await {
                    let kind = error.kind();
                    tracing::debug!(provider = provider.name(), %kind, "a session ends with its sandbox");
                }
                return Ok(());
            }
        };
        if let Some((handle, slot)) = sandbox {
            // Cannot fail: the semaphore is never closed.
            let _permit = permits.acquire_owned().await;
            if let Err(error) = close_with_retries(&*provider, &handle).await {
                return Err((error, Some(Job::close(provider, Some((handle, slot)), end))));
            }
        }
        if let ProviderAfter::Ends(unfinished) = end {
            unfinished.over().await;
            if let Err(error) = within("closing the provider", CLOSE_LIMIT, provider.aclose()).await {
                return Err((error, Some(Job::close(provider, None, ProviderAfter::Ends(unfinished)))));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.item().fmt(f)
    }
}

async fn close_with_retries(provider: &dyn SandboxProvider, handle: &SandboxHandle) -> Result<()> {
    let deadline = Instant::now() + CLOSE_LIMIT;
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match tokio::time::timeout_at(deadline, provider.close(handle)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => return Err(timed_out("close", CLOSE_LIMIT)),
        };
        let wait = pause.max(error.retry_after().unwrap_or_default()) + jitter(pause);
        if !error.is_retryable() || Instant::now() + wait >= deadline {
            return Err(error);
        }
        tokio::time::sleep(wait).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// A part of `pause`, at random, so that many removals do not come back at the same time.
fn jitter(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    pause.mul_f64((random % 1024) as f64 / 1024.0)
}
