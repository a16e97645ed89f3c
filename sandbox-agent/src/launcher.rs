//! Starts sandboxes, from the provider's side.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::Signal;

use crate::config::{Basis, LaunchConfig, Network};
use crate::error::{Context, LaunchError, Stage};
use crate::launch::Line;
use crate::report::{LaunchStatus, Report};

/// A launch takes milliseconds; a folder on a file system that does not answer must not hold the caller for ever.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a launcher that is not needed may take to remove what it has made.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const STATUS_MAX: usize = 256 * 1024;

/// Starts sandboxes with one agent file. Nothing is unsafe or racy in a program with threads: a small process with one
/// thread, which starts with the first sandbox and ends with this object and all sandboxes of it, forks another for each.
/// A clone shares it.
#[derive(Debug, Clone)]
pub struct Launcher {
    agent: PathBuf,
    host: Arc<Mutex<Option<Arc<Host>>>>,
}

impl Launcher {
    /// Uses the agent file at `agent`.
    pub fn new(agent: impl Into<PathBuf>) -> Launcher {
        Launcher { agent: agent.into(), host: Arc::default() }
    }

    /// Whether this is a clone of the other one.
    pub fn is_same(&self, other: &Launcher) -> bool {
        Arc::ptr_eq(&self.host, &other.host)
    }

    /// Launches a sandbox whose PID 1 holds `socket`. Blocks for milliseconds, at most 30 s.
    ///
    /// # Errors
    /// What stopped the launch; nothing is left behind then.
    pub fn launch(&self, config: &LaunchConfig, socket: OwnedFd) -> Result<Launched, LaunchError> {
        self.prepare(socket)?.launch(config)
    }

    /// Starts a process that waits for its configuration, so that a later launch is shorter by that.
    ///
    /// # Errors
    /// The agent file cannot be executed.
    pub fn prepare(&self, socket: OwnedFd) -> Result<Prepared, LaunchError> {
        self.order(socket, None)
    }

    /// As [`prepare`](Self::prepare); while it waits, it makes what sandboxes with this basis need. One with another
    /// basis can be launched, too: what was made is thrown away then.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_ahead(&self, basis: &Basis, socket: OwnedFd) -> Result<Prepared, LaunchError> {
        // A network of the host's may change, and its resolver with it.
        self.order(socket, Some(basis).filter(|basis| basis.network == Network::None))
    }

    /// As [`prepare`](Self::prepare), with a command that the caller has made: another user, or a wrapper around the
    /// agent file. The argument `launch` is added to it, its environment is cleared, and its standard descriptors are set.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_as(&self, command: Command, socket: OwnedFd) -> Result<Prepared, LaunchError> {
        prepared(&Arc::new(self.start(command)?), &socket, None)
    }

    fn start(&self, mut command: Command) -> Result<Host, LaunchError> {
        let (line, its_line) = Line::pair()?;
        command.arg("launch").env_clear().stdin(Stdio::from(its_line.into_fd()));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().stage_at(Stage::Report, "starting the launcher", &self.agent)?;
        // The command holds our copy of the launcher's end; while it is open, nobody sees its end.
        drop(command);
        Ok(Host { child, line })
    }

    fn order(&self, socket: OwnedFd, ahead: Option<&Basis>) -> Result<Prepared, LaunchError> {
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = &*host
            && let Ok(prepared) = prepared(host, &socket, ahead)
        {
            return Ok(prepared);
        }
        // There was none, or it has been killed.
        let new = Arc::new(self.start(Command::new(&self.agent))?);
        *host = Some(new.clone());
        prepared(&new, &socket, ahead)
    }
}

fn prepared(host: &Arc<Host>, socket: &OwnedFd, ahead: Option<&Basis>) -> Result<Prepared, LaunchError> {
    let pairs = || Ok::<_, io::Error>((UnixStream::pair()?, UnixStream::pair()?));
    let ((config, its_config), (status, its_status)) = pairs().stage(Stage::Report, "making a launch's sockets")?;
    let pidfd = host.line.order(ahead, [its_config.as_fd(), its_status.as_fd(), socket.as_fd()])?;
    Ok(Prepared { host: host.clone(), process: Some(pidfd), config, status })
}

/// The process that forks the others. Ended, and reaped, when nobody needs it any more.
#[derive(Debug)]
struct Host {
    child: Child,
    line: Line,
}

impl Drop for Host {
    fn drop(&mut self) {
        // It does nothing but wait, and no sandbox needs it: a stopped one must hold nobody up.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// A process that waits for its configuration. Dropping it ends it.
#[derive(Debug)]
pub struct Prepared {
    host: Arc<Host>,
    /// None once it is a sandbox's.
    process: Option<OwnedFd>,
    config: UnixStream,
    status: UnixStream,
}

impl Prepared {
    /// The process, safe from reused pids.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(OwnedFd::as_fd)
    }

    /// Whether it is still there. It may end right after.
    pub fn is_waiting(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !has_ended(process, Duration::ZERO))
    }

    /// Launches the sandbox. With [`die_with_parent`](LaunchConfig::die_with_parent), this process must be the one that
    /// prepared it.
    ///
    /// # Errors
    /// What stopped the launch; nothing is left behind then.
    pub fn launch(mut self, config: &LaunchConfig) -> Result<Launched, LaunchError> {
        let text = serde_json::to_vec(config)
            .map_err(|_| LaunchError::new(Stage::Config, "a path that is not UTF-8 cannot be configured"))?;
        let sent = self.config.write_all(&text).and_then(|()| self.config.shutdown(Shutdown::Write));
        // A launcher that has failed already says why.
        let (status, pidfd, rest) = receive(&self.status)
            .or_else(|error| sent.stage(Stage::Report, "configuring the launcher").and(Err(error)))?;
        let report = match status {
            LaunchStatus::Started(report) => report,
            LaunchStatus::Failed(error) => return Err(error),
            LaunchStatus::Ended(_) => return Err(not_understood()),
        };
        let pidfd = pidfd.ok_or_else(|| LaunchError::new(Stage::Report, "the launcher has sent no pidfd"))?;
        self.process = None;
        let status = self.status.try_clone().stage(Stage::Report, "keeping the keeper's socket")?;
        status.set_read_timeout(None).stage(Stage::Report, "keeping the keeper's socket")?;
        let keeper = (report.kept || report.uncommitted).then_some(Keeper { status, said: rest });
        Ok(Launched { is_uncommitted: report.uncommitted, report, pidfd, keeper, _host: self.host.clone() })
    }
}

impl Drop for Prepared {
    /// Ends a process that has not launched. With it, everything of its sandbox ends.
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            // Without a configuration it removes what it has made, a cgroup among that, and ends.
            let _ = self.config.shutdown(Shutdown::Both);
            if !has_ended(process, END_TIMEOUT) {
                let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
                has_ended(process, END_TIMEOUT);
            }
        }
    }
}

/// Waits for the end of a process.
fn has_ended(pidfd: &OwnedFd, within: Duration) -> bool {
    let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    let mut watched = [PollFd::new(pidfd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut watched, Some(&within))).is_ok_and(|count| count > 0)
}

/// Who sees the end of a sandbox.
#[derive(Debug)]
struct Keeper {
    status: UnixStream,
    /// What came with its first word.
    said: Vec<u8>,
}

/// A sandbox that runs.
///
/// Dropping it ends nothing but a sandbox that was not committed: a kept one ends with this process, any other one when
/// it is told to.
#[derive(Debug)]
pub struct Launched {
    report: Report,
    pidfd: OwnedFd,
    keeper: Option<Keeper>,
    /// The keeper of a sandbox that outlives this process waits for a word.
    is_uncommitted: bool,
    _host: Arc<Host>,
}

impl Launched {
    /// Lets a sandbox outlive this process that is to do so ([`LaunchConfig::outlives_parent`]). Before, it ends with
    /// this process or this object. No effect on others.
    ///
    /// # Errors
    /// Its keeper has ended, and the sandbox with it.
    pub fn commit(&mut self) -> io::Result<()> {
        match &mut self.keeper {
            Some(keeper) if self.is_uncommitted => {
                keeper.status.write_all(b"c")?;
                self.is_uncommitted = false;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What is in force.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// PID 1, safe from reused pids. It can be polled for its end.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Kills the sandbox: every process in it, at once. One that has ended already is no error.
    ///
    /// # Errors
    /// As of the system call.
    pub fn kill(&self) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Err(errno) if errno != rustix::io::Errno::SRCH => Err(errno.into()),
            _ => Ok(()),
        }
    }

    /// Blocks until every process of the sandbox has ended, and until its keeper has removed its cgroup. Returns
    /// PID 1's exit code (128 + n if it was killed by signal n) where a keeper has seen it.
    ///
    /// # Errors
    /// As of the system call.
    pub fn wait(&mut self) -> io::Result<Option<i32>> {
        if let Some(Keeper { status, said }) = &mut self.keeper {
            status.read_to_end(said)?;
            // One that was killed has said nothing.
            return Ok(match serde_json::from_slice(said) {
                Ok(LaunchStatus::Ended(code)) => Some(code),
                _ => None,
            });
        }
        let mut watched = [PollFd::new(&self.pidfd, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut watched, None))?;
        Ok(None)
    }
}

/// The first line, what came with it, and what came after it.
fn receive(status: &UnixStream) -> Result<(LaunchStatus, Option<OwnedFd>, Vec<u8>), LaunchError> {
    status.set_read_timeout(Some(LAUNCH_TIMEOUT)).stage(Stage::Report, "preparing the status socket")?;
    let (mut text, mut pidfd) = (Vec::new(), None);
    let end = loop {
        if let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            break end;
        }
        let mut chunk = [0; 8192];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(status, &mut [IoSliceMut::new(&mut chunk)], &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let received = received.stage(Stage::Report, "waiting for the launcher")?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                pidfd = fds.next();
            }
        }
        text.extend_from_slice(&chunk[..received.bytes]);
        if received.bytes == 0 || text.len() > STATUS_MAX {
            return Err(LaunchError::new(
                Stage::Report,
                "the launcher has ended without a report (is it an agent file?)",
            ));
        }
    };
    let rest = text.split_off(end + 1);
    let status = serde_json::from_slice(&text).map_err(|_| not_understood())?;
    Ok((status, pidfd, rest))
}

fn not_understood() -> LaunchError {
    LaunchError::new(Stage::Report, "the launcher's report is not understood")
}
