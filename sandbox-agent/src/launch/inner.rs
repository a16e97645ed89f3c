//! The half that becomes PID 1.

use std::os::fd::{AsFd, OwnedFd};

use rustix::process::Signal;
use rustix::thread::{Gid, Uid};

use super::ids::Plan;
use super::message::{Built, Line, Message};
use super::outer::from_cgroup;
use super::proc::Hidden;
use super::program;
use super::root::{self, Furnished, View};
use super::sources::Sources;
use crate::cgroup::Entrance;
use crate::config::{Basis, LaunchConfig, Network};
use crate::error::{Context, LaunchError, Stage};
use crate::hardening::{self, CommandRestrictions, LANDLOCK_SCOPES};
use crate::report::Landlock;
use crate::serve::Early;
use crate::sys;

pub(super) const FAILED: i32 = 70;

/// What the new process takes over from the outer half. Which sandbox it is for, it hears later.
pub(super) struct Work {
    pub(super) basis: Basis,
    pub(super) plan: Plan,
    pub(super) socket: OwnedFd,
    pub(super) line: Line,
    /// What it has still to enter of its cgroup.
    pub(super) entrance: Entrance,
    /// Its root is the copy of a sealed one, and this is what is to be hidden.
    pub(super) sealed: Option<Hidden>,
}

/// How far the new root is when the configuration comes.
enum Root {
    Seen(View),
    /// With what a serving PID 1 has made already.
    Furnished(Furnished, Option<Early>),
}

/// What PID 1 is to do, when it is one.
struct Ready {
    config: LaunchConfig,
    early: Option<Early>,
}

/// Builds the sandbox around this process, and is its PID 1. Ends the process.
pub(super) fn run(work: Work) -> ! {
    let Work { basis, plan, socket, line, entrance, sealed } = work;
    // exit runs no destructors: what the outer half owns is not this copy's to clean up.
    let failed = |line: &Line, error: LaunchError| -> ! {
        // If nobody listens any more, nobody needs to know.
        let _ = line.send(&Message::Failed(error));
        std::process::exit(FAILED)
    };
    let Ready { config, early } = match enter(&basis, &plan, &socket, &line, entrance, sealed) {
        Ok(ready) => ready,
        Err(error) => failed(&line, error),
    };
    if config.init.is_some() {
        let Err(error) = program::execute(&config, &socket);
        failed(&line, error)
    }
    if let Err(error) = program::take_standard(None) {
        failed(&line, error);
    }
    // Its end says that PID 1 is there.
    drop(line);
    std::process::exit(program::serve(config, &plan, early, socket))
}

fn enter(
    basis: &Basis,
    plan: &Plan,
    socket: &OwnedFd,
    line: &Line,
    entrance: Entrance,
    sealed: Option<Hidden>,
) -> Result<Ready, LaunchError> {
    die_with_outer_half()?;
    // While this process has the ids of the outer half, which opened the way in.
    entrance.enter().map_err(from_cgroup)?;
    // The root of what is seen of cgroups is the one that it is in.
    sys::unshare_cgroup().stage(Stage::Namespaces, "making the cgroup namespace")?;
    sys::hide_path();
    // What the outer half and its launcher have open would stay open for as long as PID 1 lives.
    sys::close_all_but([socket.as_fd(), line.as_fd()]).stage(Stage::Namespaces, "closing what others have open")?;
    line.receive_go()?;
    if plan.privileged {
        become_root()?;
        // Changing ids takes it back. Whether the outer half has ended in between shows at the next message.
        die_with_outer_half()?;
    }
    // No terminal of the host is this session's.
    rustix::process::setsid().stage(Stage::Namespaces, "starting a session")?;
    // With privileges the outer half opens what the configuration names. Without, that is done here, while the host's
    // root is still this process's own; and what is below a rootfs is known by then only.
    let furnished = if sealed.is_some() {
        Ok(root::furnish(basis, plan, sealed)?)
    } else {
        let view = View::collect(basis)?;
        match plan.privileged && basis.is_system {
            true => Ok(view.enter(basis, plan, None).and_then(|()| root::furnish(basis, plan, None))?),
            false => Err(view),
        }
    };
    let root = match furnished {
        // What is still to come deprives commands of nothing, unless the host's network is to be fenced.
        Ok(furnished) if basis.serves && basis.network == Network::None => {
            // What fails is tried again, and told, when the sandbox is known.
            Root::Furnished(furnished, Early::make(&basis.capabilities).ok())
        }
        Ok(furnished) => Root::Furnished(furnished, None),
        Err(view) => Root::Seen(view),
    };
    let (config, sources) = line.receive_config()?;
    let sources = sources.map_or_else(|| Sources::open(&config, plan), Ok)?;
    let (furnished, early) = match root {
        Root::Furnished(furnished, early) => (furnished, early),
        Root::Seen(view) => {
            view.enter(basis, plan, sources.rootfs.as_ref())?;
            (root::furnish(basis, plan, None)?, None)
        }
    };
    furnished.finish(&config, &sources)?;
    let landlock = harden(&config)?;
    let seccomp_calls = CommandRestrictions::new(&config.capabilities).refused_calls();
    let (masked_paths, read_only_paths) = (furnished.hidden.masked_paths(), furnished.hidden.read_only_paths());
    line.send(&Message::Built(Built { landlock, seccomp_calls, masked_paths, read_only_paths }))?;
    if config.die_with_parent.is_none() && !config.outlives_parent {
        let none = rustix::process::set_parent_process_death_signal(None);
        none.stage(Stage::Exec, "taking the parent death signal back")?;
    }
    Ok(Ready { config, early })
}

pub(super) fn die_with_outer_half() -> Result<(), LaunchError> {
    let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    set.stage(Stage::Namespaces, "setting the parent death signal")
}

pub(super) fn become_root() -> Result<(), LaunchError> {
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
