//! The half that stays outside.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitIdOptions, WaitIdStatus};

use super::keeper::{self, Parent};
use super::message::{Built, Line, Message, Order};
use super::template::Templates;
use super::{ids, inner, sources};
use crate::cgroup::{Cgroup, CgroupError, Claim, Limits};
use crate::config::{Basis, LaunchConfig, Network, Root};
use crate::error::{Context, LaunchError, Stage};
use crate::kernel_file;
use crate::report::{LaunchStatus, Report};
use crate::sys::Forked;

/// Twice what the kernel takes as the environment of a command.
const CONFIG_MAX: u64 = 4 << 20;
/// As long as most are.
const CONFIG_USUAL: usize = 4096;
const FAILED: i32 = 70;
/// Of a second, in what the kernel tells of processes.
const TICKS: u64 = 100;

/// Runs a launch in this process, which a launcher has forked for it, and returns its exit code.
///
/// In the new process that it makes, this function does not return. With
/// [`die_with_parent`](LaunchConfig::die_with_parent) or [`outlives_parent`](LaunchConfig::outlives_parent) it returns
/// when the sandbox has ended, with PID 1's code.
pub(super) fn run(order: Order, templates: &Templates, parent: Parent) -> i32 {
    let Order { config, status, socket, ahead } = order;
    match launch(config, socket, ahead, templates, parent) {
        Ok(started) => finish(started, &status),
        Err(error) => {
            // A provider that is gone needs no answer.
            let _ = send_status(&status, &LaunchStatus::Failed(error), None);
            FAILED
        }
    }
}

/// A sandbox that runs, but that nobody outside knows of yet.
struct Started {
    report: Report,
    process: Inner,
    cgroup: OwnCgroup,
    parent: Option<Parent>,
}

fn finish(started: Started, status: &OwnedFd) -> i32 {
    // In this order: what is bound last is dropped first, and a cgroup is removed when its processes have ended.
    let Started { report, cgroup, process, parent } = started;
    let outlives_parent = report.uncommitted;
    if send_status(status, &LaunchStatus::Started(report), Some(process.pidfd.as_fd())).is_err() {
        return FAILED;
    }
    let code = if outlives_parent {
        // Dropped without that word, everything goes.
        if !keeper::is_committed(status) {
            return FAILED;
        }
        keeper::wait(&[process.pidfd.as_fd()]);
        process.reap()
    } else if let Some(parent) = parent {
        parent.keep(process.pidfd.as_fd());
        process.reap()
    } else {
        process.release();
        cgroup.release();
        return 0;
    };
    // Whoever still waits for the end hears of it when nothing is left; else it sees to that itself.
    if cgroup.remove() {
        let _ = send_status(status, &LaunchStatus::Ended(code), None);
    }
    code
}

fn launch(
    config: OwnedFd,
    socket: OwnedFd,
    ahead: Option<Basis>,
    templates: &Templates,
    parent: Parent,
) -> Result<Started, LaunchError> {
    let ahead = ahead.map(|basis| make_ahead(basis, templates, &socket)).transpose()?.flatten();
    let (config, text) = read_config(&mut File::from(config).take(CONFIG_MAX + 1))?;
    let parent = config.die_with_parent.map(|pid| parent.named(pid)).transpose()?;
    let limits = config.cgroup.as_ref().map(|cgroup| cgroup.limits.clone()).unwrap_or_default();
    let basis = config.basis();
    let half = match ahead.filter(|half| half.fits(&basis) && half.cgroup.limit(&limits).is_ok()) {
        Some(half) => half,
        // One that does not fit is gone by now, and its cgroup.
        None => Half::make(basis, &limits, templates, &socket)?,
    };
    // PID 1 alone holds the socket, so its peer sees the end of it.
    drop(socket);
    // What is bound last is dropped first, and a cgroup is removed when its processes have ended.
    let Half { plan, started, cgroup, process, line, .. } = half;
    let sources = if plan.privileged { Some(sources::Sources::open(&config, &plan)?) } else { None };
    if let (Some(opened), Root::Rootfs { lower, .. }) = (&sources, &config.root) {
        opened.map_lower_owners(process.pid, &plan, lower)?;
    }
    let sent = line.send_config(&text, sources.as_ref());
    drop(sources);
    // An inner half that has failed, and is gone, has said why.
    let built = hear(&line).and_then(|built| sent.map(|()| built))?;
    let start_ticks = started.map_or_else(|| start_ticks(process.pid), Ok)?;
    let report = report(&config, &plan, (process.pid, start_ticks), &cgroup, built);
    Ok(Started { report, process, cgroup, parent })
}

/// Makes what a sandbox that is not known yet will need. `None` if that cannot be: then it fails again, and is told, when
/// that sandbox is known.
fn make_ahead(basis: Basis, templates: &Templates, socket: &OwnedFd) -> Result<Option<Half>, LaunchError> {
    basis.config().validate().map_err(|error| LaunchError::new(Stage::Config, error.to_string()))?;
    Ok(Half::make(basis, &Limits::default(), templates, socket).ok())
}

/// The inner half of a sandbox, up to where it has to know which one it is for.
struct Half {
    basis: Basis,
    /// Its root is sealed: it has what the basis says, and no more.
    is_sealed: bool,
    plan: ids::Plan,
    /// When PID 1 started, where that is known without asking.
    started: Option<u64>,
    line: Line,
    // What is first here is dropped first, and a cgroup is removed when its processes have ended.
    process: Inner,
    cgroup: OwnCgroup,
}

impl Half {
    fn make(basis: Basis, limits: &Limits, templates: &Templates, socket: &OwnedFd) -> Result<Half, LaunchError> {
        let template = templates.get(&basis);
        let plan = template.map_or_else(|| ids::Plan::new(&basis.ids), |template| Ok(template.plan))?;
        let cgroup = OwnCgroup::create(basis.cgroup.as_deref(), limits)?;
        let entrance = cgroup.cgroup.as_ref().map(Cgroup::entrance).transpose().map_err(from_cgroup)?;
        let (ours, theirs) = Line::pair()?;
        let entered = template.and_then(|template| Some((templates.enter(template)?, template)));
        let is_sealed = entered.is_some();
        let before = now_ticks();
        let pid = match entrance.unwrap_or_default().fork(namespaces(basis.network)) {
            Ok((Forked::Child, entrance)) => {
                drop(ours);
                let sealed = entered.map(|(_, template)| template.hidden.clone());
                match socket.try_clone() {
                    // Nothing of this stack is dropped in the new process, which closes all else that is open in it.
                    Ok(socket) => inner::run(inner::Work { basis, plan, socket, line: theirs, entrance, sealed }),
                    Err(_) => std::process::exit(FAILED),
                }
            }
            Ok((Forked::Parent(pid), _)) => Ok(pid),
            Err(errno) => Err(errno),
        };
        let started = Some(before).filter(|before| *before == now_ticks());
        let is_back = entered.map_or(Ok(()), |(home, _)| home.enter());
        let process = Inner::new(pid.stage(Stage::Namespaces, "making the namespaces")?)?;
        is_back?;
        drop(theirs);
        plan.write(process.pid)?;
        ours.send_go()?;
        Ok(Half { basis, is_sealed, plan, started, line: ours, process, cgroup })
    }

    /// Whether a sandbox with this basis can have it.
    fn fits(&self, basis: &Basis) -> bool {
        let has_targets = !self.is_sealed || basis.targets.iter().all(|target| self.basis.targets.contains(target));
        has_targets && self.basis.is_like(basis)
    }
}

/// Waits until PID 1 serves or executes.
fn hear(line: &Line) -> Result<Built, LaunchError> {
    let ended = || LaunchError::new(Stage::Root, "the launcher's inner half has ended without a word (killed?)");
    let built = match line.receive()? {
        Some(Message::Built(built)) => built,
        Some(Message::Failed(error)) => return Err(error),
        Some(Message::Sealed) | None => return Err(ended()),
    };
    match line.receive()? {
        None => Ok(built),
        Some(Message::Failed(error)) => Err(error),
        Some(Message::Built(_) | Message::Sealed) => Err(ended()),
    }
}

fn namespaces(network: Network) -> i32 {
    // The cgroup namespace comes later: its root is the cgroup of the process at the time.
    let network = if network == Network::None { libc::CLONE_NEWNET } else { 0 };
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | network
}

/// A configuration, and how it was told.
fn read_config(input: &mut impl Read) -> Result<(LaunchConfig, Vec<u8>), LaunchError> {
    let mut text = Vec::with_capacity(CONFIG_USUAL);
    input.read_to_end(&mut text).stage(Stage::Config, "reading the configuration")?;
    if text.len() as u64 > CONFIG_MAX {
        return Err(LaunchError::new(Stage::Config, "the configuration is longer than 4 MiB"));
    }
    // serde_json's message names keys, and for strings at most their kind: no value of the environment.
    let config: LaunchConfig = serde_json::from_slice(&text)
        .map_err(|error| LaunchError::new(Stage::Config, format!("the configuration is not understood: {error}")))?;
    config.validate().map_err(|error| LaunchError::new(Stage::Config, error.to_string()))?;
    Ok((config, text))
}

fn report(
    config: &LaunchConfig,
    plan: &ids::Plan,
    (pid, start_ticks): (Pid, u64),
    cgroup: &OwnCgroup,
    built: Built,
) -> Report {
    Report {
        pid: pid.as_raw_pid() as u32,
        start_ticks,
        kept: config.die_with_parent.is_some(),
        uncommitted: config.outlives_parent,
        ids: plan.map,
        network: config.network,
        landlock: built.landlock,
        seccomp_calls: built.seccomp_calls,
        masked_paths: built.masked_paths,
        read_only_paths: built.read_only_paths,
        cgroup: cgroup.cgroup.clone(),
    }
}

/// The time of now as the kernel writes down when a process started. What starts between two equal ones has it, too.
fn now_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * TICKS + now.tv_nsec as u64 / (1_000_000_000 / TICKS)
}

fn start_ticks(pid: Pid) -> Result<u64, LaunchError> {
    let path = format!("/proc/{}/stat", pid.as_raw_pid());
    let stat = kernel_file::read(&path).stage_at(Stage::Report, "reading", &path)?;
    // The name before the last parenthesis may hold anything; the start time is the 20th field after it.
    let ticks = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)).and_then(|t| t.parse().ok());
    ticks.ok_or_else(|| LaunchError::new(Stage::Report, "the kernel's process table is not understood").at(path))
}

fn send_status(status: &OwnedFd, message: &LaunchStatus, pidfd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut line = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    line.push(b'\n');
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let pidfds: Vec<_> = pidfd.into_iter().collect();
    if !pidfds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&pidfds));
    }
    let sent = rustix::net::sendmsg(status, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL)?;
    write_all(status, &line[sent..])
}

fn write_all(status: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(status, bytes))?;
        bytes = &bytes[written..];
    }
    Ok(())
}

pub(super) fn from_cgroup(error: CgroupError) -> LaunchError {
    let mut launch = match error.errno() {
        Some(errno) => LaunchError::system(Stage::Cgroup, "using the cgroup", Errno::from_raw_os_error(errno)),
        None => LaunchError::new(Stage::Cgroup, error.to_string()),
    };
    if let Some(limit) = error.limit() {
        launch = launch.with_hint(format!("do without the {limit} limit, or let this user write the cgroup"));
    }
    match error.path() {
        Some(path) => launch.at(path),
        None => launch,
    }
}

/// The cgroup of this launch, which goes with it unless the sandbox outlives it.
struct OwnCgroup {
    cgroup: Option<Cgroup>,
    /// Should this process be killed, the cgroup is nobody's, and a sweep takes it.
    _claim: Claim,
}

impl OwnCgroup {
    fn create(name: Option<&str>, limits: &Limits) -> Result<OwnCgroup, LaunchError> {
        let made = name.map(|name| Cgroup::create_claimed(name, limits)).transpose().map_err(from_cgroup)?;
        let (cgroup, claim) = made.unzip();
        Ok(OwnCgroup { cgroup, _claim: claim.unwrap_or_default() })
    }

    /// Sets limits that were not known when it was made.
    fn limit(&self, limits: &Limits) -> Result<(), CgroupError> {
        self.cgroup.as_ref().map_or(Ok(()), |cgroup| cgroup.limit(limits))
    }

    fn release(mut self) {
        self.cgroup = None;
    }
}

impl OwnCgroup {
    /// Whether it is gone, if there was one. What cannot be removed is found by the provider's sweep.
    fn remove(mut self) -> bool {
        self.cgroup.take().is_none_or(|cgroup| cgroup.remove().is_ok())
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.remove();
        }
    }
}

/// PID 1 as its parent sees it. Dropped, it is killed and reaped; then everything in its pid namespace is gone.
pub(super) struct Inner {
    pid: Pid,
    pidfd: OwnedFd,
    ended: bool,
}

impl Inner {
    pub(super) fn new(pid: Pid) -> Result<Inner, LaunchError> {
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Inner { pid, pidfd, ended: false }),
            // It is this process's child and not reaped, so the pid is still its own.
            Err(errno) => {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
                Err(LaunchError::system(Stage::Namespaces, "opening a pidfd", errno))
            }
        }
    }

    fn release(mut self) {
        self.ended = true;
    }

    /// Waits for its end and returns an exit code as a shell would.
    fn reap(mut self) -> i32 {
        self.ended = true;
        match wait(self.pidfd.as_fd()) {
            Some(status) if status.exited() => status.exit_status().unwrap_or(FAILED),
            Some(status) => 128 + status.terminating_signal().unwrap_or(0),
            None => FAILED,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.ended {
            // It may have ended by itself.
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
            wait(self.pidfd.as_fd());
        }
    }
}

fn wait(pidfd: BorrowedFd<'_>) -> Option<WaitIdStatus> {
    let id = || rustix::process::WaitId::PidFd(pidfd);
    rustix::io::retry_on_intr(|| rustix::process::waitid(id(), WaitIdOptions::EXITED)).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::{now_ticks, read_config, start_ticks};
    use crate::error::Stage;

    #[test]
    fn a_configuration_that_is_not_understood_is_refused_by_its_key_and_one_without_end_by_its_size() {
        let error = read_config(&mut &b"{\"netwrok\": \"host\"}"[..]).expect_err("there is no such key");
        assert_eq!(error.stage(), Stage::Config);
        assert!(error.to_string().contains("netwrok"), "{error}");
        let error = read_config(&mut std::io::Read::take(std::io::repeat(b' '), super::CONFIG_MAX + 1));
        assert!(error.expect_err("it is too long").to_string().contains("4 MiB"));
    }
    #[test]
    fn a_process_that_starts_in_one_tick_has_that_time() {
        let mut seen = 0;
        for _ in 0..20 {
            let before = now_ticks();
            let mut child = std::process::Command::new("/bin/cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
            let after = now_ticks();
            let told = start_ticks(rustix::process::Pid::from_child(&child));
            drop(child.stdin.take());
            child.wait().unwrap();
            let told = told.unwrap();
            assert!((before..=after).contains(&told), "{before} {told} {after}");
            seen += usize::from(before == after);
        }
        assert!(seen > 0, "or the test has shown nothing");
    }
}
