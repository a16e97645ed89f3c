use std::{future::Future, sync::Arc, time::Duration};

use sandbox_core::{Result, SandboxProvider};

use super::{
    CleanupReport,
    job::{CreateFuture, Job, Placed, ProviderAfter, Unfinished},
    lane::Lane,
};
use crate::async_sandbox::Slot;

/// The lane of this process.
static LANE: Lane = Lane::new();

/// Queues the removal of a sandbox, if there is one, and then the end of its provider, if it is to be ended. Never
/// blocks, never fails.
pub(crate) fn close_later(provider: Arc<dyn SandboxProvider>, sandbox: Option<Placed>, end: ProviderAfter) {
    LANE.queue(Job::close(provider, sandbox, end));
}

/// Queues the rest of a `create` that nobody waits for any more, and the removal of what it makes.
pub(crate) fn finish_create_later(
    provider: Arc<dyn SandboxProvider>,
    future: CreateFuture,
    unfinished: &Unfinished,
    slot: Arc<Slot>,
) {
    LANE.queue(Job::finish_create(provider, future, unfinished, slot));
}

/// Queues the end of something in a sandbox. Never blocks, never fails.
pub(crate) fn later(
    provider: Arc<dyn SandboxProvider>,
    sandbox_id: String,
    work: impl Future<Output = Result<()>> + Send + 'static,
) {
    LANE.queue(Job::early(provider, sandbox_id, Box::pin(work)));
}

/// Waits until everything that was dropped is closed, at most for `deadline`, and says what is not.
///
/// * What failed before is tried once more.
/// * Each removal has 30 s at most, and 32 run at the same time.
/// * What is left is up to the provider: the sandbox's time to live, or a sweep.
/// * Needs a tokio runtime with time enabled. Dropping the future stops only the waiting.
pub async fn flush_cleanup(deadline: Duration) -> CleanupReport {
    LANE.retry_failed();
    let _ = tokio::time::timeout(deadline, LANE.tally().wait_idle()).await;
    LANE.tally().report()
}

/// As [`flush_cleanup`], for code without a runtime. Blocks the thread: not to be called in async code.
pub fn flush_cleanup_blocking(deadline: Duration) -> CleanupReport {
    LANE.retry_failed();
    LANE.tally().wait_idle_blocking(deadline);
    LANE.tally().report()
}
