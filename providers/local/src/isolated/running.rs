//! The processes of one isolated sandbox, seen from outside.

use std::{
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use sandbox_agent::{Cgroup, IdMap, Launched};
use sandbox_agent_client::start_time;
use sandbox_core::{ByteString, ErrorKind, Result, SandboxError, tracing};
use serde::{Deserialize, Serialize};

use crate::{error::NAME, record::is_id};

/// How long the processes of a sandbox that this process did not launch may take to end.
const END_WITHIN: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// The processes of one sandbox. Dropped, they are ended and waited for, unless they are to outlive this object.
pub(crate) struct Running {
    /// None after the end.
    process: Mutex<Option<Process>>,
    leftover: Leftover,
    /// Whether it lives on when this object is gone.
    is_left: AtomicBool,
    /// While it is being frozen or thawed, and when that failed. Else its cgroup is asked: other processes may have
    /// done it.
    is_stuck: AtomicBool,
}

enum Process {
    /// This process launched it.
    Launched(Launched),
    /// Another one did.
    Found,
}

impl Running {
    /// What this process has launched, with its working folder inside.
    pub(crate) fn new(launched: Launched, workdir: &Path) -> Self {
        let report = launched.report();
        let leftover = Leftover {
            pid: report.pid,
            start_ticks: report.start_ticks,
            cgroup: report.cgroup.clone(),
            access: Some(Access { ids: report.ids, workdir: ByteString::from(workdir) }),
        };
        Self::with(Process::Launched(launched), leftover, false)
    }

    /// What another process has launched. It lives on when this object is gone.
    pub(crate) fn found(leftover: Leftover) -> Self {
        Self::with(Process::Found, leftover, true)
    }

    fn with(process: Process, leftover: Leftover, is_left: bool) -> Self {
        Self {
            process: Mutex::new(Some(process)),
            leftover,
            is_left: AtomicBool::new(is_left),
            is_stuck: AtomicBool::new(false),
        }
    }

    /// Lets it live when this process, and this object, are gone.
    pub(crate) fn commit(&self) -> Result<()> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Process::Launched(launched)) = process.as_mut() {
            launched.commit().map_err(|error| {
                SandboxError::io("the sandbox's keeper", error).with_kind(ErrorKind::Create).with_provider(NAME)
            })?;
        }
        self.is_left.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn leftover(&self) -> &Leftover {
        &self.leftover
    }

    pub(crate) fn cgroup(&self) -> Option<&Cgroup> {
        self.leftover.cgroup.as_ref()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_stuck.load(Ordering::Acquire) || self.leftover.is_frozen()
    }

    /// Freezes or thaws every process. Blocks.
    pub(crate) fn set_paused(&self, id: &str, paused: bool) -> Result<()> {
        let Some(cgroup) = self.cgroup() else {
            return Err(SandboxError::invalid_state(format!("sandbox {id} has no cgroup to pause it by")));
        };
        // First: whoever is refused too early is better off than whoever waits for ever.
        self.is_stuck.store(true, Ordering::Release);
        let done = if paused { cgroup.freeze() } else { cgroup.thaw() };
        match done {
            Ok(()) => {
                self.is_stuck.store(false, Ordering::Release);
                Ok(())
            }
            Err(error) => {
                if paused {
                    // Half frozen is not paused; what cannot be thawed is ended by a close.
                    self.is_stuck.store(cgroup.thaw().is_err(), Ordering::Release);
                }
                let verb = if paused { "paused" } else { "resumed" };
                Err(SandboxError::timed_out(format!("sandbox {id} could not be {verb}: {error}")))
            }
        }
    }

    /// Kills every process, without waiting.
    pub(crate) fn kill(&self) {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        match process.as_ref() {
            Some(Process::Launched(launched)) => self.kill_now(launched),
            Some(Process::Found) => self.leftover.kill(),
            None => {}
        }
    }

    fn kill_now(&self, launched: &Launched) {
        // What has ended already needs nothing; whether all have, the wait tells.
        let _ = launched.kill();
        if self.is_paused()
            && let Some(cgroup) = self.cgroup()
        {
            // What is frozen dies when it is thawed.
            let _ = cgroup.kill();
        }
    }

    /// Kills every process and waits until all have ended and the cgroup is gone. Blocks.
    pub(crate) fn end(&self) -> Result<()> {
        let failed = |error| SandboxError::io("ending the sandbox", error).with_provider(NAME);
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        match process.as_mut() {
            Some(Process::Launched(launched)) => {
                self.kill_now(launched);
                // A keeper that tells the end has removed the cgroup.
                let is_told = launched.wait().map_err(failed)?.is_some();
                if let Some(cgroup) = self.cgroup().filter(|_| !is_told) {
                    remove(cgroup)?;
                }
            }
            Some(Process::Found) => self.leftover.end()?,
            None => {}
        }
        *process = None;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_left.load(Ordering::Acquire) {
            // What stays has a record, and is swept.
            let _ = self.end();
        }
    }
}

fn remove(cgroup: &Cgroup) -> Result<()> {
    cgroup.remove().map_err(|error| {
        SandboxError::new(ErrorKind::Internal, format!("removing the sandbox's cgroup: {error}")).with_provider(NAME)
    })
}

/// Removes the cgroups of launchers that were killed, of sandboxes to come among them: nothing else is known of those.
pub(crate) fn sweep_cgroups() -> Result<()> {
    match Cgroup::remove_abandoned(is_id) {
        Ok(folders) => {
            tracing::debug!(folders, "cgroups of killed launchers are removed");
            Ok(())
        }
        Err(error) => Err(SandboxError::internal(format!("looking for cgroups: {error}")).with_provider(NAME)),
    }
}

/// What of an isolated sandbox could be left when the process that made it was killed, and how another one uses it, as it
/// is written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Leftover {
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
    #[serde(default)]
    pub(crate) cgroup: Option<Cgroup>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) access: Option<Access>,
}

/// What is known of a sandbox without asking its agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Access {
    pub(crate) ids: IdMap,
    /// The working folder inside.
    pub(crate) workdir: ByteString,
}

impl Leftover {
    /// Pid of its PID 1 and when that started.
    pub(crate) fn process(&self) -> (u32, u64) {
        (self.pid, self.start_ticks)
    }

    /// Whether its PID 1 lives.
    pub(crate) fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start_ticks)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.cgroup.as_ref().is_some_and(Cgroup::is_frozen)
    }

    /// Kills every process, without waiting.
    pub(crate) fn kill(&self) {
        self.kill_pid_1();
        if let Some(cgroup) = self.cgroup.as_ref().filter(|cgroup| is_there(cgroup)) {
            // Empty, there is nothing to kill; what is frozen dies when it is thawed.
            let _ = cgroup.kill();
        }
    }

    fn kill_pid_1(&self) -> Option<std::os::fd::OwnedFd> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Compared after it was opened, so the descriptor is of the very process or of none.
        if !self.is_alive() {
            return None;
        }
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        Some(pidfd)
    }

    /// Ends what runs still, and what its keeper should have ended. Blocks.
    pub(crate) fn end(&self) -> Result<()> {
        let pidfd = self.kill_pid_1();
        let cgroup = self.cgroup.as_ref().filter(|cgroup| is_there(cgroup));
        if let Some(cgroup) = cgroup {
            let _ = cgroup.kill();
        }
        if let Some(pidfd) = pidfd {
            let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
            let ended = rustix::io::retry_on_intr(|| poll(&mut watched, Some(&END_WITHIN)));
            if !ended.is_ok_and(|count| count == 1) {
                let message = "the processes of a sandbox do not end";
                return Err(SandboxError::timed_out(message).with_provider(NAME).with_help("close it again"));
            }
        }
        cgroup.map_or(Ok(()), remove)
    }
}

fn is_there(cgroup: &Cgroup) -> bool {
    cgroup.folders().any(|folder| folder.exists())
}
