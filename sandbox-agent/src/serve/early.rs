//! What a serving process can make before it knows how to serve.

use std::time::Duration;

use sandbox_process::{ProcessSet, Restrictions};
use tokio::runtime::Runtime;

use crate::hardening::{Capability, CommandRestrictions};

use super::init;

/// Threads for file work at once. They are made when needed, and end when idle.
const WORKERS_MAX: usize = 32;
const WORKER_STACK_BYTES: usize = 256 * 1024;
const WORKER_IDLE: Duration = Duration::from_millis(500);

/// The process's own protection, its runtime, and perhaps the processes that start commands.
pub(crate) struct Early {
    pub(super) runtime: Runtime,
    pub(super) processes: Option<ProcessSet>,
    /// What `oom_score_adj` was, if it was changed.
    pub(super) oom_score: Option<i16>,
}

impl Early {
    /// Without the processes. This one must have one thread.
    pub(super) fn bare() -> Result<Early, String> {
        let oom_score = init::protect().map_err(|error| format!("non-dumpable memory: {error}"))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(WORKERS_MAX)
            .thread_stack_size(WORKER_STACK_BYTES)
            .thread_keep_alive(WORKER_IDLE)
            .build()
            .map_err(|error| format!("the runtime could not be made: {error}"))?;
        Ok(Early { runtime, processes: None, oom_score })
    }

    /// Everything, for a process that is to mount still before it deprives itself of the system calls of which these
    /// commands are deprived.
    pub(crate) fn make(capabilities: &[Capability]) -> Result<Early, String> {
        let early = Early::bare()?;
        let restricted = CommandRestrictions::new(capabilities);
        restricted.restrict_capabilities().map_err(|error| error.to_string())?;
        let processes = ProcessSet::restricted(restrictions(early.oom_score));
        let mut ahead = restrictions(early.oom_score);
        ahead.seccomp = restricted.program();
        let entered = early.runtime.enter();
        processes.prepare_one(&ahead).map_err(|error| error.to_string())?;
        drop(entered);
        Ok(Early { processes: Some(processes), ..early })
    }
}

/// What commands are deprived of beside what this process is. `oom_score` is what they get back.
pub(super) fn restrictions(oom_score: Option<i16>) -> Restrictions {
    let mut restrictions = Restrictions::default();
    restrictions.oom_score_adj = oom_score;
    restrictions
}
