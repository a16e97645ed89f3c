//! The supervisor: a process without a program of its own that owns one process tree and outlives nobody.
//!
//! It is the reaper of all descendants (double forks and new sessions included), tells the host what happens,
//! and ends the whole tree when the host's end of the control socket is shut down or gone. Everything in this
//! file runs after `fork` in a process that was multi-threaded: no allocation, no lock, no panic.

use std::os::fd::RawFd;

use libc::{c_int, pid_t};

use crate::launch::{self, Launch};
use crate::raw::{self, Errno};
use crate::tree::Walker;
use crate::wire::{MESSAGE_BYTES, Report, Stage, decode_signal};

/// Longest pause between two rounds of killing when nothing moves (processes that cannot die yet).
const ROUND_PAUSE_MAX_MS: c_int = 50;

/// Everything the supervisor needs, made before the fork.
pub(crate) struct Plan<'a> {
    /// The supervisor's end of the control socket.
    pub(crate) control: RawFd,
    /// Ascending list of the descriptors that stay open until the command runs.
    pub(crate) keep: &'a [RawFd],
    /// How to start the command.
    pub(crate) launch: Launch<'a>,
}

struct Supervisor {
    control: RawFd,
    child_signals: RawFd,
    command: pid_t,
    exited: bool,
}

/// Runs the supervisor in the forked process, until nothing is left that it has started. All signals are blocked on entry
/// and stay blocked. `ready`: the process is a supervisor already, has nothing else open, and hears of its children there.
///
/// Returns with the control socket closed when everything has ended by itself; else this process ends.
pub(crate) fn run(plan: &Plan<'_>, ready: Option<RawFd>) {
    let ready = ready.map_or_else(|| become_one(plan.keep), Ok);
    let child_signals = match ready {
        Ok(fd) => fd,
        Err(Errno(errno)) => give_up(plan.control, Stage::Fork, errno),
    };
    let command = match launch::start(&plan.launch) {
        Ok(pid) => pid,
        Err((stage, Errno(errno))) => give_up(plan.control, stage, errno),
    };
    for &fd in plan.keep {
        if fd != plan.control {
            raw::close(fd);
        }
    }
    let mut supervisor = Supervisor { control: plan.control, child_signals, command, exited: false };
    supervisor.tell(Report::Started { pid: command });
    supervisor.serve();
    supervisor.tell(Report::Empty);
    raw::close(plan.control);
}

fn become_one(keep: &[RawFd]) -> Result<RawFd, Errno> {
    raw::close_all_except(keep);
    raw::setsid();
    raw::set_name(c"sbx-supervisor");
    raw::become_subreaper()?;
    raw::child_signal_fd()
}

/// Says why there is no command and ends this process.
pub(crate) fn give_up(control: RawFd, stage: Stage, errno: i32) -> ! {
    tell(control, Report::Failed { stage, errno });
    raw::exit(0)
}

/// Reports to the host. A host that is gone is seen by the next receive.
pub(crate) fn tell(control: RawFd, report: Report) {
    let _ = raw::send(control, &report.encode());
}

impl Supervisor {
    fn tell(&self, report: Report) {
        tell(self.control, report);
    }

    fn serve(&mut self) {
        loop {
            if !self.reap().alive {
                return;
            }
            let (request, child) = raw::poll_two(self.control, self.child_signals, -1);
            if child {
                // First: the host waits for it. Who ends after this is in the next signal, or was reaped here.
                if !self.reap().alive {
                    return;
                }
                raw::drain(self.child_signals);
            }
            if request {
                self.obey();
            }
        }
    }

    fn obey(&mut self) {
        let mut message = [0u8; MESSAGE_BYTES];
        match raw::receive(self.control, &mut message) {
            Err(Errno(libc::EINTR | libc::EAGAIN)) => {}
            Ok(0) | Err(_) => self.end_tree(),
            Ok(length) => {
                // Once the command is reaped its group number may belong to a stranger.
                if let Some(signal) = message.get(..length).and_then(decode_signal)
                    && !self.exited
                {
                    raw::kill(-self.command, signal);
                }
            }
        }
    }

    /// Ends every descendant, however it tries to hide or multiply, and then this process.
    fn end_tree(&mut self) -> ! {
        raw::favour_this_process();
        let mut walker = Walker::new();
        let mut pause_ms = 1;
        loop {
            match walker.as_mut() {
                Some(walker) => {
                    walker.kill_descendants(|_| false);
                }
                None if !self.exited => raw::kill(-self.command, libc::SIGKILL),
                None => {}
            }
            let _ = raw::poll_two(-1, self.child_signals, pause_ms);
            raw::drain(self.child_signals);
            let reaped = self.reap();
            if !reaped.alive {
                self.tell(Report::Empty);
                raw::exit(0)
            }
            pause_ms = if reaped.any { 1 } else { ROUND_PAUSE_MAX_MS.min(pause_ms.wrapping_mul(2)) };
        }
    }

    fn reap(&mut self) -> Reaped {
        let mut any = false;
        loop {
            match raw::reap_one() {
                Ok(Some(child)) => {
                    any = true;
                    if child.pid == self.command && !self.exited {
                        self.exited = true;
                        self.tell(Report::Exited {
                            status: child.status,
                            cpu_us: child.cpu_us,
                            peak_kib: child.peak_kib,
                        });
                    }
                }
                Ok(None) => return Reaped { any, alive: true },
                Err(Errno(libc::EINTR)) => {}
                Err(_) => return Reaped { any, alive: false },
            }
        }
    }
}

struct Reaped {
    any: bool,
    alive: bool,
}
