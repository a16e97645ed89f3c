//! The half that becomes PID 1.

use std::convert::Infallible;
use std::os::fd::OwnedFd;

use rustix::process::Signal;
use rustix::thread::{Gid, Uid};

use super::ids::Plan;
use super::message::{Built, Line, Message};
use super::program::{self, Program};
use super::root::{Entered, View};
use super::sources::Sources;
use crate::config::{Basis, LaunchConfig, Network};
use crate::error::{Context, LaunchError, Stage};
use crate::hardening::{self, CommandRestrictions, LANDLOCK_SCOPES};
use crate::report::Landlock;
use crate::sys;

const FAILED: i32 = 70;

/// What the new process takes over from the outer half. Which sandbox it is for, it hears later.
pub(super) struct Work {
    pub(super) basis: Basis,
    pub(super) plan: Plan,
    pub(super) program: Program,
    pub(super) socket: Option<OwnedFd>,
    pub(super) line: Line,
}

/// How far the new root is when the configuration comes.
enum Root {
    Seen(View),
    Entered(Entered),
}

/// Builds the sandbox around this process and executes PID 1. Ends the process on failure.
pub(super) fn run(work: Work) -> ! {
    let Work { basis, plan, program, socket, line } = work;
    let Err(error) = enter(&basis, &plan, program, socket, &line);
    // If nobody listens any more, nobody needs to know.
    let _ = line.send(&Message::Failed(error));
    // exit runs no destructors: what the outer half owns is not this copy's to clean up.
    std::process::exit(FAILED)
}

fn enter(
    basis: &Basis,
    plan: &Plan,
    program: Program,
    socket: Option<OwnedFd>,
    line: &Line,
) -> Result<Infallible, LaunchError> {
    die_with_outer_half()?;
    line.receive_go()?;
    if plan.privileged {
        become_root()?;
        // Changing ids takes it back. Whether the outer half has ended in between shows at the next message.
        die_with_outer_half()?;
    }
    // No terminal of the host is this session's.
    rustix::process::setsid().stage(Stage::Namespaces, "starting a session")?;
    let agent = program.protect()?;
    let view = View::collect(basis)?;
    // With privileges the outer half opens what the configuration names. Without, that is done here, while the host's
    // root is still this process's own; and what is below a rootfs is known by then only.
    let root = match plan.privileged && basis.is_system {
        true => Root::Entered(view.enter(basis, plan, None)?),
        false => Root::Seen(view),
    };
    // The cgroup that this process is in by now is the root of what is seen of them.
    line.receive_go()?;
    sys::unshare_cgroup().stage(Stage::Namespaces, "making the cgroup namespace")?;
    let (config, sources) = line.receive_config()?;
    let sources = sources.map_or_else(|| Sources::open(&config, plan), Ok)?;
    let entered = match root {
        Root::Entered(entered) => entered,
        Root::Seen(view) => view.enter(basis, plan, sources.rootfs.as_ref())?,
    };
    entered.finish(&config, &sources)?;
    let landlock = harden(&config)?;
    let seccomp_calls = CommandRestrictions::new(&config.capabilities).refused_calls();
    let Entered { masked_paths, read_only_paths } = entered;
    line.send(&Message::Built(Built { landlock, seccomp_calls, masked_paths, read_only_paths }))?;
    if config.die_with_parent.is_none() && !config.outlives_parent {
        let none = rustix::process::set_parent_process_death_signal(None);
        none.stage(Stage::Exec, "taking the parent death signal back")?;
    }
    let agent = Some(agent).filter(|_| config.init.is_none());
    program::execute(&config, plan, agent, socket)
}

fn die_with_outer_half() -> Result<(), LaunchError> {
    let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    set.stage(Stage::Namespaces, "setting the parent death signal")
}

fn become_root() -> Result<(), LaunchError> {
    let failed = |what| move |errno| LaunchError::system(Stage::IdMaps, what, errno);
    rustix::thread::set_thread_groups(&[]).map_err(failed("leaving the host's groups"))?;
    let (gid, uid) = (Gid::ROOT, Uid::ROOT);
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed("becoming the sandbox's root group"))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed("becoming the sandbox's root"))
}

/// What holds for PID 1 too. It keeps its capabilities over the sandbox's namespaces.
fn harden(config: &LaunchConfig) -> Result<Landlock, LaunchError> {
    rustix::thread::set_no_new_privs(true).stage(Stage::Hardening, "setting no_new_privs")?;
    if config.network == Network::None {
        return Ok(Landlock::NotNeeded);
    }
    let abi = hardening::landlock_abi();
    if abi < LANDLOCK_SCOPES {
        return Ok(Landlock::Unavailable { abi });
    }
    let fenced = hardening::fence_abstract_sockets();
    fenced.map_err(|error| LaunchError::system(Stage::Hardening, &error.to_string(), error.errno()))?;
    Ok(Landlock::InForce)
}
