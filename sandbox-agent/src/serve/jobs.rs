//! The jobs that are known, and how long one that is over stays known.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::job::{Job, WithoutClient};

/// Jobs that are over and still known: a client that lost its connection asks for the end within seconds, and one
/// that polls a detached command has this many others before it is forgotten.
const FINISHED_MAX: usize = 512;
/// How long one that is over stays known.
const FINISHED_AGE: Duration = Duration::from_secs(600);
/// Output of all jobs that are over together; the oldest lose theirs first, but not their end.
const FINISHED_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct Jobs {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    next: u64,
    by_number: BTreeMap<u64, Arc<Job>>,
    numbers: HashMap<String, u64>,
    finished: VecDeque<(Instant, u64)>,
    /// Jobs that are over and never forgotten.
    permanent: usize,
}

impl Jobs {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Job>> {
        let mut known = self.known();
        known.forget_old();
        known.numbers.get(id).and_then(|number| known.by_number.get(number)).cloned()
    }

    /// The job of this id, and true if it was known; else the one that `make` makes for the id (or, for the empty
    /// one, for an id of its own).
    pub(super) fn get_or_add(&self, id: &str, prefix: &str, make: impl FnOnce(String) -> Arc<Job>) -> (Arc<Job>, bool) {
        let mut known = self.known();
        known.forget_old();
        if let Some(job) = known.numbers.get(id).and_then(|number| known.by_number.get(number)) {
            return (job.clone(), true);
        }
        known.next += 1;
        let number = known.next;
        let mut id = id.to_owned();
        if id.is_empty() {
            id = format!("{prefix}{number}");
            while known.numbers.contains_key(&id) {
                id.push('_');
            }
        }
        let job = make(id.clone());
        known.by_number.insert(number, job.clone());
        known.numbers.insert(id, number);
        (job, false)
    }

    /// Says that a job is over.
    pub(super) fn finished(&self, job: &Job) {
        let mut known = self.known();
        if job.is_permanent {
            known.permanent += 1;
        } else if let Some(&number) = known.numbers.get(&job.id) {
            known.finished.push_back((Instant::now(), number));
        }
        known.forget_old();
        known.forget_output();
    }

    /// Forgets what nobody is expected to ask for any more: old jobs, and the output of attached commands whose client
    /// had `grace` to come back. Called from time to time.
    pub(super) fn forget(&self, grace: Duration) {
        let mut known = self.known();
        known.forget_old();
        for (at, number) in &known.finished {
            let job = known.by_number.get(number).filter(|job| job.without_client != WithoutClient::RunsOn);
            if let Some(job) = job.filter(|_| at.elapsed() >= grace) {
                let mut state = job.state();
                if state.client.is_none() {
                    state.log.keep_last(0);
                }
            }
        }
    }

    /// Every known job, oldest first.
    pub(super) fn all(&self) -> Vec<Arc<Job>> {
        let mut known = self.known();
        known.forget_old();
        known.by_number.values().cloned().collect()
    }

    pub(super) fn running(&self) -> usize {
        let known = self.known();
        known.by_number.len() - known.finished.len() - known.permanent
    }
}

impl Known {
    fn forget_old(&mut self) {
        while let Some(&(at, number)) = self.finished.front() {
            if self.finished.len() <= FINISHED_MAX && at.elapsed() < FINISHED_AGE {
                break;
            }
            self.finished.pop_front();
            if let Some(job) = self.by_number.remove(&number) {
                self.numbers.remove(&job.id);
            }
        }
    }

    /// From the newest on: what is beyond the limit is not kept. A client that is being served keeps its output.
    fn forget_output(&mut self) {
        let mut left = FINISHED_BYTES;
        for (_, number) in self.finished.iter().rev() {
            let Some(job) = self.by_number.get(number) else { continue };
            let mut state = job.state();
            if state.client.is_none() {
                state.log.keep_last(left);
            }
            left = left.saturating_sub(state.log.kept());
        }
    }
}
