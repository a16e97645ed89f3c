//! Running the author's code: on the plugin's own tokio runtime, panics caught.
//!
//! Every shared library has its own copy of this module and so its own runtime; linked providers share the one of the
//! program. Every asynchronous call is spawned there: the host needs no reactor for it, a provider that burns CPU stalls
//! nobody else, and a panic becomes an error with its message.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    pin::Pin,
    sync::OnceLock,
    task::{Context, Poll},
};

use abi_stable::std_types::RVec;
use async_ffi::FutureExt;
use tokio::runtime::{Builder, EnterGuard, Runtime};

use super::{
    codec::{decode, to_ffi},
    entry::HostInfo,
    layout::{FfiResult, Fut, HostApiRef},
    log,
};
use crate::{ByteString, Result, SandboxError};

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// One worker is as fast as two on two cores and steals nothing (docs/abi.md); blocking work has its own threads.
const WORKERS: usize = 1;

pub(super) fn runtime() -> &'static Runtime {
    RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("sandbox-plugin")
            .enable_all()
            .build()
            .expect("a thread for the plugin's runtime can be started")
    })
}

fn enter() -> EnterGuard<'static> {
    runtime().enter()
}

/// Runs synchronous code of the author.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(|| {
        let _entered = enter();
        work()
    }))
    .unwrap_or_else(|payload| Err(SandboxError::panicked(payload)))
}

/// A task that is aborted with its handle.
struct Task<T>(tokio::task::JoinHandle<Result<T>>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.0).poll(context).map(flatten)
    }
}

fn flatten<T>(joined: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    match joined {
        Ok(result) => result,
        Err(error) if error.is_panic() => Err(SandboxError::panicked(error.into_panic())),
        Err(_) => Err(SandboxError::internal("the provider's runtime was shut down")),
    }
}

/// Runs asynchronous code of the author. Dropping the future cancels it.
pub(super) fn spawned<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Fut<T> {
    let task = Task(runtime().spawn(work));
    async move { to_ffi(task.await) }.into_ffi()
}

/// Runs asynchronous code of the author to its end, whatever becomes of the future that waits for it. `unclaimed` gets
/// a result that nobody waits for any more.
pub(super) fn uncancelled<T, U>(
    work: impl Future<Output = Result<T>> + Send + 'static,
    unclaimed: impl FnOnce(T) -> U + Send + 'static,
) -> impl Future<Output = Result<T>> + Send + 'static
where
    T: Send + 'static,
    U: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut claim = Claim { receiver, unclaimed: Some(unclaimed) };
    let task = runtime().spawn(work);
    runtime().spawn(async move {
        let _ = sender.send(flatten(task.await));
    });
    async move {
        let received = (&mut claim.receiver).await;
        // From here on the value is the caller's.
        claim.settle();
        received.unwrap_or_else(|_| Err(SandboxError::internal("the provider's runtime was shut down")))
    }
}

struct Claim<T, F, U>
where
    T: Send + 'static,
    F: FnOnce(T) -> U + Send + 'static,
    U: Future<Output = ()> + Send + 'static,
{
    receiver: tokio::sync::oneshot::Receiver<Result<T>>,
    unclaimed: Option<F>,
}

impl<T, F, U> Claim<T, F, U>
where
    T: Send + 'static,
    F: FnOnce(T) -> U + Send + 'static,
    U: Future<Output = ()> + Send + 'static,
{
    fn settle(&mut self) {
        self.unclaimed = None;
    }
}

impl<T, F, U> Drop for Claim<T, F, U>
where
    T: Send + 'static,
    F: FnOnce(T) -> U + Send + 'static,
    U: Future<Output = ()> + Send + 'static,
{
    fn drop(&mut self) {
        let Some(unclaimed) = self.unclaimed.take() else { return };
        // The sender stays open: the task waits for the work, and this one for the task.
        let (_, closed) = tokio::sync::oneshot::channel();
        let receiver = std::mem::replace(&mut self.receiver, closed);
        runtime().spawn(async move {
            if let Ok(Ok(value)) = receiver.await {
                unclaimed(value).await;
            }
        });
    }
}

/// A value of the author that may be dropped on any thread of the host: its `Drop` finds the plugin's runtime, and a
/// panic in it ends here.
pub(super) struct Guarded<T>(Option<T>);

impl<T> Guarded<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Some(value))
    }

    pub(super) fn get_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("the value is taken in Drop only")
    }
}

impl<T> std::ops::Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("the value is taken in Drop only")
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        if let Err(error) = guarded(|| {
            drop(value);
            Ok(())
        }) {
            tracing::error!(%error, "panic while dropping a value of the provider");
        }
    }
}

/// Polls a future so that a panic in it becomes an error. For code of this crate that runs on the other side's thread.
pub(super) struct CatchPanic<F>(pub(super) Pin<Box<F>>);

impl<T, F: Future<Output = Result<T>>> Future for CatchPanic<F> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context)))
            .unwrap_or_else(|payload| Poll::Ready(Err(SandboxError::panicked(payload))))
    }
}

static HOST_INFO: OnceLock<HostInfo> = OnceLock::new();

/// The file that this plugin was loaded from; none in a program that links the provider. What belongs to the provider is
/// beside it.
pub fn plugin_file() -> Option<&'static Path> {
    HOST_INFO.get()?.plugin_file.as_ref().map(ByteString::as_path)
}

/// The plugin's half of `init`.
#[doc(hidden)]
pub fn init(host: HostApiRef, info: RVec<u8>) -> FfiResult<()> {
    to_ffi(guarded(|| {
        // The first host of a library stays the one that it knows; all of them loaded the same file.
        let _ = HOST_INFO.set(decode(&info)?);
        log::forward_to(host);
        Ok(())
    }))
}
