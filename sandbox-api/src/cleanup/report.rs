use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sandbox_core::{ErrorKind, SandboxError};
use tokio::sync::Notify;

use super::job::Job;

/// How many failures are remembered for another try; when there are more, the oldest is forgotten with a warning. Such
/// a sandbox is left to its time to live and to sweeps.
const MAX_REMEMBERED_FAILURES: usize = 4096;

/// What the clean-up lane did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CleanupReport {
    /// How many clean-ups were done since the last report: sandboxes removed and confirmed gone, providers ended.
    pub closed: u64,
    /// What could not be closed. It is tried again by the next flush.
    pub failed: Vec<CleanupFailure>,
    /// What is still under way.
    pub unfinished: Vec<CleanupItem>,
}

impl CleanupReport {
    /// True if nothing is left.
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.unfinished.is_empty()
    }
}

/// What is to be cleaned up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanupItem {
    /// The provider.
    pub provider: String,
    /// The sandbox; none for one whose creation has not finished, and for the provider itself.
    pub sandbox_id: Option<String>,
}

/// A clean-up that did not work.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CleanupFailure {
    /// What was to be cleaned up.
    pub item: CleanupItem,
    /// What kept it from that.
    pub kind: ErrorKind,
    /// The same in words.
    pub message: String,
}

/// The books of the lane.
pub(super) struct Tally {
    books: Mutex<Books>,
    changed: Condvar,
    notify: Notify,
}

struct Books {
    next_ticket: u64,
    pending: BTreeMap<u64, CleanupItem>,
    failed: VecDeque<(CleanupFailure, Option<Job>)>,
    closed: u64,
}

impl Tally {
    pub(super) const fn new() -> Self {
        let books = Books { next_ticket: 0, pending: BTreeMap::new(), failed: VecDeque::new(), closed: 0 };
        Self { books: Mutex::new(books), changed: Condvar::new(), notify: Notify::const_new() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Every change is complete before anything can panic.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts something as pending.
    pub(super) fn open(&'static self, item: CleanupItem) -> Ticket {
        let mut books = self.books();
        books.next_ticket += 1;
        let id = books.next_ticket;
        books.pending.insert(id, item);
        Ticket { tally: self, id, is_settled: false }
    }

    fn settle(&self, id: u64, outcome: Result<(), (SandboxError, Option<Job>)>) {
        let mut books = self.books();
        let Some(item) = books.pending.remove(&id) else { return };
        let (mut failure, mut forgotten) = (None, None);
        match outcome {
            Ok(()) => books.closed += 1,
            Err((error, retry)) => {
                let told = CleanupFailure { item, kind: error.kind(), message: error.to_string() };
                failure = Some(told.clone());
                books.failed.push_back((told, retry));
                if books.failed.len() > MAX_REMEMBERED_FAILURES {
                    forgotten = books.failed.pop_front();
                }
            }
        }
        drop(books);
        self.changed.notify_all();
        self.notify.notify_waiters();
        // Foreign code (a subscriber, and the destructor of a provider that the oldest job was the last to hold) never
        // runs under the lock.
        if let Some(CleanupFailure { item, kind, .. }) = failure {
            tracing::warn!(
                provider = %item.provider,
                sandbox_id = item.sandbox_id.as_deref(),
                %kind,
                "a clean-up failed; without another try the sandbox is left to its time to live and to sweeps"
            );
        }
        if let Some((failure, _job)) = forgotten {
            tracing::warn!(provider = %failure.item.provider, "too many failed clean-ups; the oldest is forgotten");
        }
    }

    /// What failed and can be tried again.
    pub(super) fn take_failed_jobs(&self) -> Vec<Job> {
        let mut books = self.books();
        let (again, rest): (Vec<_>, Vec<_>) = books.failed.drain(..).partition(|(_, job)| job.is_some());
        books.failed = rest.into();
        again.into_iter().filter_map(|(_, job)| job).collect()
    }

    pub(super) fn report(&self) -> CleanupReport {
        let mut books = self.books();
        let report = CleanupReport {
            closed: std::mem::take(&mut books.closed),
            failed: books.failed.iter().map(|(failure, _)| failure.clone()).collect(),
            unfinished: books.pending.values().cloned().collect(),
        };
        // What cannot be tried again is told once.
        books.failed.retain(|(_, job)| job.is_some());
        report
    }

    pub(super) async fn wait_idle(&self) {
        loop {
            let changed = self.notify.notified();
            if self.books().pending.is_empty() {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn wait_idle_blocking(&self, deadline: Duration) {
        let end = Instant::now() + deadline;
        let mut books = self.books();
        while !books.pending.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            books = self.changed.wait_timeout(books, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// One pending clean-up. Dropped unsettled (a panic, or a lane that could not start), it counts as failed.
pub(super) struct Ticket {
    tally: &'static Tally,
    id: u64,
    is_settled: bool,
}

impl Ticket {
    /// Says how it went; `retry` is what another try would do.
    pub(super) fn settle(mut self, outcome: Result<(), (SandboxError, Option<Job>)>) {
        self.is_settled = true;
        self.tally.settle(self.id, outcome);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_settled {
            let error = SandboxError::internal("the clean-up broke off: the provider panicked or the lane is gone");
            self.tally.settle(self.id, Err((error, None)));
        }
    }
}
