//! Starts sandboxes, from the provider's side.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::Signal;

use crate::config::{Basis, LaunchConfig, Network};
use crate::error::{Context, LaunchError, Stage};
use crate::report::{LaunchStatus, Report};

/// A launch takes milliseconds; a folder on a file system that does not answer must not hold the caller for ever.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a launcher that is not needed may take to remove what it has made.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const STATUS_MAX: usize = 256 * 1024;

/// Starts sandboxes with one agent file. Nothing is unsafe or racy in a program with threads: the launcher gets its
/// configuration on standard input, its status socket as standard output and the agent's socket as standard error.
#[derive(Debug, Clone)]
pub struct Launcher {
    agent: PathBuf,
}

impl Launcher {
    /// Uses the agent file at `agent`.
    pub fn new(agent: impl Into<PathBuf>) -> Launcher {
        Launcher { agent: agent.into() }
    }

    /// Launches a sandbox whose PID 1 holds `socket`. Blocks for milliseconds, at most 30 s.
    ///
    /// # Errors
    /// What stopped the launch; nothing is left behind then.
    pub fn launch(&self, config: &LaunchConfig, socket: OwnedFd) -> Result<Launched, LaunchError> {
        self.prepare(socket)?.launch(config)
    }

    /// Starts a launcher that waits for its configuration, so that a later launch is shorter by a process start.
    ///
    /// # Errors
    /// The agent file cannot be executed.
    pub fn prepare(&self, socket: OwnedFd) -> Result<Prepared, LaunchError> {
        self.prepare_as(Command::new(&self.agent), socket)
    }

    /// As [`prepare`](Self::prepare); while it waits, it makes what sandboxes with this basis need. One with another
    /// basis can be launched, too: what was made is thrown away then.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_ahead(&self, basis: &Basis, socket: OwnedFd) -> Result<Prepared, LaunchError> {
        // A network of the host's may change, and its resolver with it.
        let basis = Some(basis).filter(|basis| basis.network == Network::None);
        self.start(Command::new(&self.agent), socket, basis)
    }

    /// As [`prepare`](Self::prepare), with a command that the caller has made: another user, or a wrapper around the
    /// agent file. The arguments of `launch` are added to it, its environment is cleared, and its standard descriptors
    /// are set.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_as(&self, command: Command, socket: OwnedFd) -> Result<Prepared, LaunchError> {
        self.start(command, socket, None)
    }

    fn start(&self, mut command: Command, socket: OwnedFd, ahead: Option<&Basis>) -> Result<Prepared, LaunchError> {
        let spawn = || -> io::Result<Prepared> {
            let (mut config, its_config) = UnixStream::pair()?;
            let (status, its_status) = UnixStream::pair()?;
            command.args(["launch", "--config-fd", "0", "--status-fd", "1", "--socket-fd", "2"]).env_clear();
            if let Some(basis) = ahead {
                let mut line = serde_json::to_vec(basis)?;
                line.push(b'\n');
                config.write_all(&line)?;
                command.arg("--ahead");
            }
            command.stdin(Stdio::from(OwnedFd::from(its_config))).stdout(Stdio::from(OwnedFd::from(its_status)));
            command.stderr(Stdio::from(socket));
            let child = command.spawn()?;
            // The command holds our copies of the launcher's descriptors; while they are open, nobody sees their end.
            drop(command);
            Ok(Prepared { child: Some(child), config, status })
        };
        spawn().stage_at(Stage::Report, "starting the launcher", &self.agent)
    }
}

/// A launcher that waits for its configuration. Dropping it ends it.
#[derive(Debug)]
pub struct Prepared {
    child: Option<Child>,
    config: UnixStream,
    status: UnixStream,
}

impl Prepared {
    /// Whether it is still there. It may end right after.
    pub fn is_waiting(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
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
        let (status, pidfd) = receive(&self.status)
            .or_else(|error| sent.stage(Stage::Report, "configuring the launcher").and(Err(error)))?;
        let report = match status {
            LaunchStatus::Started(report) => report,
            LaunchStatus::Failed(error) => return Err(error),
        };
        let pidfd = pidfd.ok_or_else(|| LaunchError::new(Stage::Report, "the launcher has sent no pidfd"))?;
        let mut keeper = self.child.take();
        if !report.kept
            && !report.uncommitted
            && let Some(mut launcher) = keeper.take()
        {
            launcher.wait().stage(Stage::Report, "waiting for the launcher")?;
        }
        let uncommitted = if report.uncommitted { self.status.try_clone().ok() } else { None };
        Ok(Launched { report, pidfd, keeper, uncommitted })
    }
}

impl Drop for Prepared {
    /// Ends and reaps a launcher that has not launched. With it, everything of its sandbox ends.
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Without a configuration it removes what it has made ahead, and ends.
            let _ = self.config.shutdown(Shutdown::Both);
            let _ = self.status.set_read_timeout(Some(END_TIMEOUT));
            while let Ok(1..) = self.status.read(&mut [0; 1024]) {}
            // A child that is not waited for keeps its pid, so neither can go wrong.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A sandbox that runs.
///
/// Dropping it ends nothing but a sandbox that was not committed: a kept one ends with this process, any other one when
/// it is told to.
#[derive(Debug)]
pub struct Launched {
    report: Report,
    pidfd: OwnedFd,
    keeper: Option<Child>,
    /// The keeper of a sandbox that outlives this process waits here.
    uncommitted: Option<UnixStream>,
}

impl Launched {
    /// Lets a sandbox outlive this process that is to do so ([`LaunchConfig::outlives_parent`]). Before, it ends with
    /// this process or this object. No effect on others.
    ///
    /// # Errors
    /// Its keeper has ended, and the sandbox with it.
    pub fn commit(&mut self) -> io::Result<()> {
        match self.uncommitted.take() {
            Some(mut keeper) => keeper.write_all(b"c"),
            None => Ok(()),
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
        if let Some(keeper) = &mut self.keeper {
            return Ok(keeper.wait()?.code());
        }
        let mut watched = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut watched, None))?;
        Ok(None)
    }
}

fn receive(status: &UnixStream) -> Result<(LaunchStatus, Option<OwnedFd>), LaunchError> {
    status.set_read_timeout(Some(LAUNCH_TIMEOUT)).stage(Stage::Report, "preparing the status socket")?;
    let (mut text, mut pidfd) = (Vec::new(), None);
    while !text.ends_with(b"\n") {
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
    }
    let status = serde_json::from_slice(&text);
    let status = status.map_err(|_| LaunchError::new(Stage::Report, "the launcher's report is not understood"))?;
    Ok((status, pidfd))
}
