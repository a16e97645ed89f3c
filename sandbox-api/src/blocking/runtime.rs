//! The runtime of the blocking facade, and the refusal to block where that would stop other tasks.

use std::{
    future::Future,
    sync::OnceLock,
    task::{Context, Poll, Waker},
    time::Duration,
};

use sandbox_core::{Result, SandboxError};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::coop::{RestoreOnPending, poll_proceed},
};

use crate::timeouts::timed_out;

/// Two, so that a provider whose task does not yield does not stop every other sandbox.
const WORKER_THREADS: usize = 2;

/// More than tokio lets a task do before it has to yield (128 at the time of writing).
const MORE_THAN_A_BUDGET: usize = 1024;

/// How long one operation of the blocking facade may take by default.
pub const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(3600);

/// Runs a future to its end and blocks this thread meanwhile, for at most `limit`. The future is dropped then.
///
/// The runtime is one for the whole process and never ends: a provider shared by several sandboxes outlives each of
/// them, and so must its connections. With the clean-up lane this is the only place that builds a runtime.
pub(super) fn wait<T>(operation: &str, limit: Option<Duration>, future: impl Future<Output = Result<T>>) -> Result<T> {
    refuse_in_async_code(operation)?;
    let limited = async {
        match limit {
            Some(limit) => tokio::time::timeout(limit, future)
                .await
                .unwrap_or_else(|_| Err(timed_out(operation, limit).with_help("see with_operation_timeout()"))),
            None => future.await,
        }
    };
    runtime()?.block_on(limited)
}

/// Fails in async code, where blocking is not allowed.
pub(super) fn refuse_in_async_code(operation: &str) -> Result<()> {
    if Handle::try_current().is_ok() && !may_block() {
        return Err(SandboxError::invalid_state(format!("{operation} of a blocking Sandbox was called in async code"))
            .with_help("use AsyncSandbox there"));
    }
    Ok(())
}

/// Whether a thread that belongs to a tokio runtime may block: in `spawn_blocking` and `block_in_place`, but not while a
/// task is polled. Tokio does not say it directly, but only in the latter there is a budget that runs out. Taking it is
/// undone when the tokens are dropped, the youngest first.
fn may_block() -> bool {
    let mut context = Context::from_waker(Waker::noop());
    let mut taken: Vec<RestoreOnPending> = Vec::with_capacity(MORE_THAN_A_BUDGET);
    let mut may_block = true;
    while may_block && taken.len() < MORE_THAN_A_BUDGET {
        match poll_proceed(&mut context) {
            Poll::Ready(token) => taken.push(token),
            Poll::Pending => may_block = false,
        }
    }
    while taken.pop().is_some() {}
    may_block
}

fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .thread_name("sandbox-blocking")
        .enable_all()
        .build()
        .map_err(|error| SandboxError::io("could not start the threads of the blocking facade", error))?;
    // Where two threads get here at once, one of the runtimes is dropped unused.
    Ok(RUNTIME.get_or_init(|| runtime))
}
