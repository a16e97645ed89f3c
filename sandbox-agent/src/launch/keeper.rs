//! Ends a sandbox with the process that started its launcher.
//!
//! PR_SET_PDEATHSIG on the launcher was the alternative; it fires when the *thread* that started it ends, and
//! runtimes end idle threads. PID 1 does carry it, towards this keeper, which has one thread only.

use std::fs::File;
use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::error::{Context, LaunchError, Stage};

/// Opens the parent, which must be the process `pid` still: then the descriptor is its own, whenever it ends.
pub(super) fn watch(pid: u32) -> Result<OwnedFd, LaunchError> {
    let gone = || LaunchError::new(Stage::Config, "die_with_parent is not the pid of the launcher's parent");
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty());
    let pidfd = pidfd.stage(Stage::Config, "opening the process that die_with_parent names")?;
    // Checked afterwards: a parent that is still the parent now was it when the descriptor was opened.
    if rustix::process::getppid() != Some(pid) {
        return Err(gone());
    }
    Ok(pidfd)
}

/// Leaves the surroundings of a parent that ends first: its session, whose terminal signals it, and its folder.
pub(super) fn settle() {
    // Neither can fail for a process that was just forked; and it would keep the sandbox all the same.
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
}

/// Waits for the parent's word that it has written down what was launched. False when it has gone without it.
pub(super) fn is_committed(status: OwnedFd) -> bool {
    File::from(status).read(&mut [0]).is_ok_and(|bytes| bytes == 1)
}

/// Returns when PID 1 has ended or has been killed because the parent has.
pub(super) fn keep(process: BorrowedFd<'_>, parent: &OwnedFd) {
    let mut watched = [PollFd::from_borrowed_fd(process, PollFlags::IN), PollFd::new(parent, PollFlags::IN)];
    // On failure the sandbox is ended: that is what this process is for.
    let polled = rustix::io::retry_on_intr(|| rustix::event::poll(&mut watched, None));
    if polled.is_err() || watched[0].revents().is_empty() {
        // It may have ended in between.
        let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
    }
}
