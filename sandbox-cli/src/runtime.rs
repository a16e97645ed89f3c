//! The async runtime, made only by the commands that reach a provider.

use std::{future::Future, time::Duration};

use crate::{exit, failure::Failure, run::Interrupts};

/// One for what the command does, one so that a signal is heard while that one is busy.
const WORKER_THREADS: usize = 2;

/// How long the removal of what an interrupt leaves may take.
const FLUSH_LIMIT: Duration = Duration::from_secs(20);

/// Runs a future to its end. It listens to signals itself.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .thread_name("sandboxctl")
        .enable_all()
        .build()
        .map_err(|error| Failure::infrastructure(format!("cannot start the async runtime: {error}")))?;
    let result = runtime.block_on(future);
    // Does not wait for a read of our standard input that may never end.
    runtime.shutdown_background();
    result
}

/// Runs a future to its end, or until a signal: then it is dropped, and what it leaves is removed.
pub(crate) fn block_on_until_signal<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    block_on(async {
        let mut interrupts = Interrupts::listen()
            .map_err(|error| Failure::infrastructure(format!("cannot listen to signals: {error}")))?;
        let signal = tokio::select! {
            result = future => return result,
            (signal, _) = interrupts.next() => signal,
        };
        tokio::select! {
            _ = sandbox_api::flush_cleanup(FLUSH_LIMIT) => {}
            _ = interrupts.next() => {}
        }
        Err(Failure::silent(exit::low_bits(exit::SIGNAL_BASE + signal.number())))
    })
}
