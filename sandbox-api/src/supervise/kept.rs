//! Where the sandbox keeps jobs: it owns the worker's whole tree and the last deadline.

use std::{sync::Arc, time::Duration};

use sandbox_core::{
    ByteString, CaptureLimits, ExecCollector, ExecEvent, ExecExit, ExecOutcome, ExecRequest, Result, SandboxHandle,
    SandboxProvider,
};
use tokio::time::{Instant, timeout_at};

use super::{Supervised, SupervisionReceipt};
use crate::{
    AsyncSandbox, cleanup,
    kept::{KeptCommand, unique_job_id},
};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// How long the end of what was killed may take to come here, beyond the clean-up's own limit.
const SLACK: Duration = Duration::from_secs(30);

pub(super) async fn supervise(
    sandbox: &AsyncSandbox,
    argv: Vec<ByteString>,
    limit: Duration,
    cleanup: Duration,
) -> Result<Supervised> {
    let id = unique_job_id("supervised");
    // Both times together are the sandbox's to keep, so nothing outlives them when this process does not.
    let request = ExecRequest::argv(argv).with_timeout_s((limit + cleanup).as_secs_f64());
    let mut unless_told = EndsWorker::new(sandbox, &id)?;
    let began = Instant::now();
    let command = KeptCommand::start(sandbox, request, id).await?;
    let mut worker = Worker { command, collector: ExecCollector::new(CaptureLimits::default()), exit: None };
    let mut receipt = SupervisionReceipt::default();
    let ended = match timeout_at(began + limit, worker.until_exit(sandbox)).await {
        Ok(ended) => ended,
        Err(_) => {
            receipt.timed_out = true;
            let asked = sandbox.signal_job(worker.command.id(), SIGTERM, false).await;
            let until = began + limit + cleanup;
            asked.and(timeout_at(until, worker.until_exit(sandbox)).await.unwrap_or(Ok(())))
        }
    };
    let was_killed = worker.exit.is_none();
    let gone = worker.end_tree(sandbox, Instant::now() + cleanup + SLACK).await;
    unless_told.was_told(gone.is_ok());
    receipt.cleanup_confirmed = gone.is_ok();
    // An end that came with the kill is no answer to the question how the worker ended.
    let exit = worker.exit.clone().unwrap_or_else(timed_out);
    let own = (!was_killed).then_some(&exit.outcome);
    if let Some(ExecOutcome::TimedOut { .. }) = own {
        receipt.timed_out = true;
    }
    receipt.return_code = match own {
        None | Some(ExecOutcome::TimedOut { .. }) => None,
        Some(outcome) => Some(outcome.return_code()),
    };
    receipt.error = match (ended, gone, &exit.outcome) {
        (Err(error), ..) => Some(error.message().to_owned()),
        (_, Err(error), _) => Some(format!("cleanup failed: {}", error.message())),
        (_, _, ExecOutcome::StartFailed { reason, .. }) => Some(format!("the worker could not be started: {reason:?}")),
        _ => None,
    };
    let output = worker.collector.finish(exit);
    Ok(Supervised { receipt, output })
}

fn timed_out() -> ExecExit {
    ExecExit::new(ExecOutcome::TimedOut { idle: false })
}

struct Worker {
    command: KeptCommand,
    collector: ExecCollector,
    exit: Option<ExecExit>,
}

impl Worker {
    async fn until_exit(&mut self, sandbox: &AsyncSandbox) -> Result<()> {
        while self.exit.is_none() {
            match self.command.next(sandbox).await? {
                ExecEvent::Exit(exit) => self.exit = Some(exit),
                event => drop(self.collector.push(event)),
            }
        }
        Ok(())
    }

    /// Kills what runs, and then what is left of it; done when nothing is.
    async fn end_tree(&mut self, sandbox: &AsyncSandbox, until: Instant) -> Result<()> {
        let ended = async {
            if self.exit.is_none() {
                sandbox.signal_job(self.command.id(), SIGKILL, true).await?;
                self.until_exit(sandbox).await?;
            }
            sandbox.signal_job(self.command.id(), SIGKILL, true).await
        };
        let late = |_| sandbox_core::SandboxError::timed_out("its processes did not end in time");
        timeout_at(until, ended).await.map_err(late)?
    }
}

/// Ends the worker in the background when nobody waits for it any more.
struct EndsWorker {
    provider: Arc<dyn SandboxProvider>,
    handle: SandboxHandle,
    id: String,
    is_needed: bool,
}

impl EndsWorker {
    fn new(sandbox: &AsyncSandbox, id: &str) -> Result<Self> {
        let (provider, handle) = (sandbox.provider.clone(), sandbox.handle()?);
        Ok(Self { provider, handle, id: id.to_owned(), is_needed: true })
    }

    fn was_told(&mut self, is_gone: bool) {
        self.is_needed = !is_gone;
    }
}

impl Drop for EndsWorker {
    fn drop(&mut self) {
        if !self.is_needed {
            return;
        }
        let (provider, handle, id) = (self.provider.clone(), self.handle.clone(), self.id.clone());
        cleanup::later(self.provider.clone(), self.handle.sandbox_id.clone(), async move {
            let Some(jobs) = provider.as_jobs() else { return Ok(()) };
            // What runs, and then what that left.
            jobs.signal_job(&handle, id.clone(), SIGKILL, true).await?;
            jobs.wait_job(&handle, id.clone(), Some(10.0)).await?;
            jobs.signal_job(&handle, id, SIGKILL, true).await
        });
    }
}
