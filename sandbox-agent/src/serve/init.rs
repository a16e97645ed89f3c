//! What the agent does to its own process: hides it, and keeps it alive.

use std::fs::OpenOptions;
use std::io::Write;

use super::sys;
use crate::kernel_file;

/// Not the last to go, but after every command.
const OOM_SCORE: &str = "-900";
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// Shuts this process to others and favours it. Returns what `oom_score_adj` was, if it was changed.
///
/// # Errors
/// When its memory stays open to other processes.
pub(super) fn protect() -> rustix::io::Result<Option<i16>> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    sys::save_memory();
    sys::close_on_exec();
    // Without privilege it stays as it is.
    let Ok(mut file) = OpenOptions::new().write(true).open(OOM_SCORE_FILE) else { return Ok(None) };
    let old = kernel_file::read(OOM_SCORE_FILE).ok().and_then(|text| text.trim().parse().ok());
    Ok(old.filter(|_| file.write_all(OOM_SCORE.as_bytes()).is_ok()))
}
