//! PID 1's program: the agent itself, or the one that the configuration names.

use std::ffi::CString;
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use super::ids::Plan;
use super::mounts::{self, NODEV, NOSUID, READ_ONLY};
use crate::config::LaunchConfig;
use crate::error::{Context, LaunchError, Stage};
use crate::handover::{Handover, SERVE_FD, SOCKET_FD};
use crate::hardening::CommandRestrictions;
use crate::serve::{SERVE_VARIABLE, ServeConfig};
use crate::sys::{self, MountChange};

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Clear of the descriptors that PID 1 gets.
const CLEAR_OF_PLACED: i32 = 16;

/// This program's own file.
pub(super) enum Program {
    /// Ready to be executed.
    Protected(OwnedFd),
    /// Still to be protected, by the inner half.
    Found { file: OwnedFd, path: PathBuf },
}

impl Program {
    /// With privileges, protects it at once: the inner half may not reach it any more.
    pub(super) fn find(plan: &Plan) -> Result<Program, LaunchError> {
        let link = "/proc/self/exe";
        let path = std::fs::read_link(link).stage_at(Stage::Exec, "reading", link)?;
        let file = rustix::fs::open(link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let found = Program::Found { file: file.stage_at(Stage::Exec, "opening", link)?, path };
        Ok(if plan.privileged { Program::Protected(found.protect()?) } else { found })
    }

    /// The file to execute: a read-only mount of it, so that no process inside can get from `/proc/PID/exe` to a
    /// writable one; where it cannot be mounted (deleted, or out of the caller's reach), a sealed copy in memory.
    pub(super) fn protect(self) -> Result<OwnedFd, LaunchError> {
        let (file, path) = match self {
            Program::Protected(mount) => return Ok(mount),
            Program::Found { file, path } => (file, path),
        };
        match mount(&file, &path) {
            Ok(mount) => Ok(mount),
            Err(_) => copy(file).stage(Stage::Exec, "copying the agent"),
        }
    }
}

fn mount(file: &OwnedFd, path: &PathBuf) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(CWD, path, flags)?;
    let (found, own) = (rustix::fs::statat(&mount, c"", AtFlags::EMPTY_PATH)?, rustix::fs::fstat(file)?);
    if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino) {
        return Err(Errno::STALE);
    }
    let change = MountChange { set: READ_ONLY | NOSUID | NODEV, ..MountChange::default() };
    sys::mount_setattr(mount.as_fd(), &change)?;
    Ok(mount)
}

fn copy(file: OwnedFd) -> std::io::Result<OwnedFd> {
    let copy = rustix::fs::memfd_create(c"sandbox-agent", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut copy = File::from(copy);
    std::io::copy(&mut File::from(file), &mut copy)?;
    rustix::fs::fchmod(&copy, Mode::from_raw_mode(0o555))?;
    rustix::fs::fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    // A file that is open for writing cannot be executed, so only this name of it stays open.
    let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Executes PID 1 with the descriptors that it is to have. Returns only on failure.
pub(super) fn execute(
    config: &LaunchConfig,
    plan: &Plan,
    agent: Option<OwnedFd>,
    socket: Option<OwnedFd>,
) -> Result<std::convert::Infallible, LaunchError> {
    let failed = |errno| LaunchError::system(Stage::Exec, "preparing PID 1's descriptors", errno);
    let away = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, CLEAR_OF_PLACED).map_err(failed);
    let agent = agent.map(away).transpose()?;
    let socket = socket.map(away).transpose()?;
    let serve = match (&agent, &config.serve) {
        (Some(_), Some(serve)) => Some(away(sealed(serve)?)?),
        _ => None,
    };
    let null = away(mounts::open_null().stage_at(Stage::Exec, "opening", "/dev/null")?)?;
    sys::place(null.as_fd(), 0).map_err(failed)?;
    // An init program talks to the socket by its output.
    let output = socket.as_ref().filter(|_| agent.is_none()).unwrap_or(&null);
    sys::place(output.as_fd(), 1).map_err(failed)?;
    sys::place(output.as_fd(), 2).map_err(failed)?;
    let mut first_closed = 3;
    if let (Some(_), Some(socket)) = (&agent, &socket) {
        sys::place(socket.as_fd(), SOCKET_FD).map_err(failed)?;
        first_closed = SOCKET_FD as u32 + 1;
        if let Some(serve) = &serve {
            sys::place(serve.as_fd(), SERVE_FD).map_err(failed)?;
            first_closed = SERVE_FD as u32 + 1;
        }
    }
    sys::close_from_on_exec(first_closed).map_err(failed)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    match agent {
        Some(agent) => execute_agent(config, plan, &agent),
        None => execute_init(config),
    }
}

fn execute_agent(config: &LaunchConfig, plan: &Plan, agent: &OwnedFd) -> Result<std::convert::Infallible, LaunchError> {
    let handover = Handover {
        die_with_parent: config.die_with_parent.is_some(),
        ids: plan.map,
        user: config.user.clone(),
        workdir: start_folder(config),
        network: config.network,
        capabilities: config.capabilities.clone(),
    };
    let handover = handover.variable().map_err(|_| LaunchError::new(Stage::Exec, "encoding the handover"))?;
    let argv =
        ["sandbox-agent", "serve"].map(|word| c_string(word.to_owned())).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut env = vec![c_string(PATH.to_owned())?, c_string(handover)?];
    if config.serve.is_some() {
        env.push(c_string(format!("{SERVE_VARIABLE}={SERVE_FD}"))?);
    }
    Err(LaunchError::system(Stage::Exec, "executing the agent", sys::execute(agent.as_fd(), c"", &argv, &env)))
}

/// How to serve, in memory: a variable holds 128 KiB at most.
fn sealed(serve: &ServeConfig) -> Result<OwnedFd, LaunchError> {
    let json = serde_json::to_vec(serve).map_err(|_| LaunchError::new(Stage::Exec, "encoding how to serve"))?;
    let write = || -> std::io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create(c"sandbox-agent-serve", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(file);
        file.write_all(&json)?;
        file.rewind()?;
        Ok(file.into())
    };
    write().stage(Stage::Exec, "writing how to serve")
}

fn execute_init(config: &LaunchConfig) -> Result<std::convert::Infallible, LaunchError> {
    let argv = config.init.iter().flatten().cloned().map(c_string).collect::<Result<Vec<_>, _>>()?;
    let program = argv.first().ok_or_else(|| LaunchError::new(Stage::Exec, "init names no program"))?;
    let folder = start_folder(config);
    rustix::process::chdir(&folder).stage_at(Stage::Exec, "entering", &folder)?;
    let mut env = vec![c_string(PATH.to_owned())?];
    for (name, default) in [("HOME", "/root"), ("LANG", "C.UTF-8")] {
        if !config.env.0.contains_key(name) {
            env.push(c_string(format!("{name}={default}"))?);
        }
    }
    for (name, value) in &config.env.0 {
        env.push(c_string(format!("{name}={value}"))?);
    }
    sys::default_sigpipe();
    let restricted = CommandRestrictions::new(&config.capabilities).restrict_commands();
    restricted.map_err(|error| LaunchError::system(Stage::Hardening, &error.to_string(), error.errno()))?;
    let errno = sys::execute(CWD, program, &argv, &env);
    Err(LaunchError::system(Stage::Exec, "executing init", errno))
}

fn start_folder(config: &LaunchConfig) -> String {
    let workdir = config.workdir.as_ref();
    workdir.map_or_else(|| "/".to_owned(), |workdir| workdir.target.to_string_lossy().into_owned())
}

fn c_string(text: String) -> Result<CString, LaunchError> {
    CString::new(text).map_err(|_| LaunchError::new(Stage::Exec, "an argument holds a zero byte"))
}
