//! What PID 1 does: it serves, or executes the program that the configuration names.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode};

use super::ids::Plan;
use super::mounts;
use crate::config::LaunchConfig;
use crate::error::{Context, LaunchError, Stage};
use crate::handover::Handover;
use crate::hardening::CommandRestrictions;
use crate::hold::hold;
use crate::serve::{self, Early};
use crate::sys;

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const FAILED: i32 = 1;

/// Lets 0, 1 and 2 be the sandbox's own `/dev/null`, or `output` for what is written.
pub(super) fn take_standard(output: Option<&OwnedFd>) -> Result<(), LaunchError> {
    let null = mounts::open_null().stage_at(Stage::Exec, "opening", "/dev/null")?;
    let output = output.unwrap_or(&null);
    for (from, to) in [(&null, 0), (output, 1), (output, 2)] {
        sys::place(from.as_fd(), to).stage(Stage::Exec, "preparing PID 1's descriptors")?;
    }
    Ok(())
}

/// Serves `socket` until the sandbox is over, and returns the exit code. Without a word on how to serve it only holds it.
pub(super) fn serve(config: LaunchConfig, plan: &Plan, early: Option<Early>, socket: OwnedFd) -> i32 {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let handover = Handover {
        die_with_parent: config.die_with_parent.is_some(),
        ids: plan.map,
        workdir: start_folder(&config),
        user: config.user,
        network: config.network,
        capabilities: config.capabilities,
    };
    let done = match config.serve {
        Some(serve) => serve::run_launched(serve, handover, early, socket),
        None => hold(&handover, socket).map(|()| 0),
    };
    match done {
        Ok(code) => code.into(),
        // Its client sees its end; nobody reads what it writes.
        Err(_) => FAILED,
    }
}

/// Executes the configuration's program, which talks to the socket by its output. Returns only on failure.
pub(super) fn execute(config: &LaunchConfig, socket: &OwnedFd) -> Result<Infallible, LaunchError> {
    take_standard(Some(socket))?;
    sys::close_from_on_exec(3).stage(Stage::Exec, "preparing PID 1's descriptors")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
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
