use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use tokio::{
    runtime,
    sync::{Semaphore, mpsc},
};

use super::{
    job::Job,
    report::{Tally, Ticket},
};

/// How many removals run at the same time. Enough to hide latency, few enough for every backend's rate limit.
const MAX_PARALLEL_CLOSES: usize = 32;

/// A queue of clean-ups and the thread that does them. The thread starts with the first one.
pub(super) struct Lane {
    tally: Tally,
    // Unbounded, since a destructor cannot wait. Bounded all the same by the number of sandboxes that were alive: each
    // queues at most two jobs.
    sender: Mutex<Option<mpsc::UnboundedSender<(Job, Ticket)>>>,
}

impl Lane {
    pub(super) const fn new() -> Self {
        Self { tally: Tally::new(), sender: Mutex::new(None) }
    }

    pub(super) fn tally(&'static self) -> &'static Tally {
        &self.tally
    }

    /// Queues a clean-up. It is pending from now on.
    pub(super) fn queue(&'static self, job: Job) {
        let ticket = self.tally.open(job.item());
        match self.sender() {
            // The receiver lives as long as the process; if it does not, the ticket comes back and counts as failed.
            Ok(sender) => drop(sender.send((job, ticket))),
            Err(error) => {
                let error = sandbox_core::SandboxError::io("could not start the clean-up thread", error);
                ticket.settle(Err((error, Some(job))));
            }
        }
    }

    /// Queues again what failed before.
    pub(super) fn retry_failed(&'static self) {
        for job in self.tally.take_failed_jobs() {
            self.queue(job);
        }
    }

    fn sender(&self) -> io::Result<mpsc::UnboundedSender<(Job, Ticket)>> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        match &*sender {
            Some(sender) if !sender.is_closed() => Ok(sender.clone()),
            _ => Ok(sender.insert(start()?).clone()),
        }
    }
}

fn start() -> io::Result<mpsc::UnboundedSender<(Job, Ticket)>> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Job, Ticket)>();
    thread::Builder::new().name("sandbox-cleanup".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let permits = Arc::new(Semaphore::new(MAX_PARALLEL_CLOSES));
            while let Some((job, ticket)) = receiver.recv().await {
                let permits = permits.clone();
                // A panic of a provider ends this task alone, and its ticket counts as failed.
                tokio::spawn(async move { ticket.settle(job.run(permits).await) });
            }
        });
    })?;
    Ok(sender)
}
