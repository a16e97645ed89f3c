//! The clean-up lane: what is dropped without being stopped is closed here, in the background.
//!
//! A destructor can neither wait nor fail. So dropping a running sandbox, or the future of a `start` that is under way,
//! only queues the work for one process-wide background thread. That thread has a current-thread tokio runtime of its
//! own, so it works whatever runtime the sandbox was used in, and also after that one was shut down. Besides the
//! blocking facade this is the one place of the library that builds a runtime.
//!
//! The thread ends with the process and waits for nobody: a program that is about to exit calls [`flush_cleanup`].

mod job;
mod lane;
mod queue;
mod report;

pub(crate) use job::{Orphan, ProviderAfter, Unfinished};
pub(crate) use queue::{close_later, later};
pub use queue::{flush_cleanup, flush_cleanup_blocking};
pub use report::{CleanupFailure, CleanupItem, CleanupReport};
