//! What sandboxes cost, beside peers in the same run.
//!
//! Every comparison is interleaved: one round of each side after the other, so that what the machine does besides falls on
//! both. Medians are reported, and ratios of medians. Absolute figures mean little on a shared machine; ratios hold.

#![forbid(unsafe_code)]

mod docker;
mod measured;
mod memory;
mod official;
mod peer;
mod provider;
mod table;

pub use docker::{Cli, EngineApi};
pub use measured::Measured;
pub use memory::{is_ours, pss_kib, resident_kib, tree};
pub use official::Official;
pub use peer::{HELLO, HELLO_OF_IMAGE, copy_file, fork_exec, fork_exec_many, settle};
pub use provider::{Place, exec, exec_many, many};
pub use table::{Goal, Table, median, millis, percentile};
