//! Ends a sandbox with the process that started its launcher.
//!
//! PR_SET_PDEATHSIG on the launcher was the alternative; it fires when the *thread* that started it ends, and
//! runtimes end idle threads. PID 1 does carry it, towards this keeper, which has one thread only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::error::{Context, LaunchError, Stage};

/// How long a keeper waits before it gives back what it does not need.
const SOON: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The process that started the launcher, safe from reused pids.
pub(super) struct Parent {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Parent {
    /// Opens the parent of this process.
    pub(super) fn watch() -> Result<Parent, LaunchError> {
        let gone = || LaunchError::new(Stage::Config, "the launcher's parent has ended");
        let pid = rustix::process::getppid().ok_or_else(gone)?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        let pidfd = pidfd.stage(Stage::Config, "opening the process that started the launcher")?;
        // Checked afterwards: a parent that is still the parent now was it when the descriptor was opened.
        if rustix::process::getppid() != Some(pid) {
            return Err(gone());
        }
        Ok(Parent { pid, pidfd })
    }

    /// Itself, if it is the process that a configuration names.
    pub(super) fn named(self, pid: u32) -> Result<Parent, LaunchError> {
        if self.pid.as_raw_pid() as u32 == pid {
            return Ok(self);
        }
        Err(LaunchError::new(Stage::Config, "die_with_parent is not the pid of the launcher's parent"))
    }

    /// Returns when PID 1 has ended or has been killed because the parent has.
    pub(super) fn keep(&self, process: BorrowedFd<'_>) {
        // On failure the sandbox is ended: that is what this process is for.
        if wait(&[process, self.pidfd.as_fd()]) != Some(0) {
            // It may have ended in between.
            let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
    }
}

/// Waits for the end of one of these processes, and returns which it is: of several the first. `None` on failure.
pub(super) fn wait(processes: &[BorrowedFd<'_>]) -> Option<usize> {
    let mut watched: Vec<_> = processes.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let mut wait = |within: Option<&Timespec>| {
        let count = rustix::io::retry_on_intr(|| rustix::event::poll(&mut watched, within)).ok()?;
        Some(if count > 0 { watched.iter().position(|one| !one.revents().is_empty()) } else { None })
    };
    // Many a sandbox lives for less; who waits for longer keeps little.
    match wait(Some(&SOON))? {
        Some(ended) => Some(ended),
        None => {
            crate::serve::release_unused();
            wait(None)?
        }
    }
}

/// Leaves the surroundings of a parent that ends first: its session, whose terminal signals it, and its folder.
pub(super) fn settle() {
    // Neither can fail but in a process that leads its group already; and it launches all the same.
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
}

/// Waits for the parent's word that it has written down what was launched. False when it has gone without it.
pub(super) fn is_committed(status: &OwnedFd) -> bool {
    rustix::io::retry_on_intr(|| rustix::io::read(status, &mut [0; 1])).is_ok_and(|bytes| bytes == 1)
}
