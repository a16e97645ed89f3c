//! The launcher itself: waits for orders, and forks a process for each.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::Mode;
use rustix::net::sockopt;

use super::message::{Line, Order};
use super::protect::{self, PROTECTED};
use super::template::Templates;
use super::{keeper, mounts, outer};
use crate::cgroup::Places;
use crate::error::{Context, LaunchError, Stage};
use crate::hardening;
use crate::sys::{self, Watched};

const USAGE: i32 = 64;
const FAILED: i32 = 70;
/// What the standard library ignores or handles. Those that mean something to an agent it only blocks.
const STANDARD_SIGNALS: [i32; 3] = [libc::SIGBUS, libc::SIGPIPE, libc::SIGSEGV];

/// Runs a launcher: its provider orders sandboxes over the socket that is standard input, and ends it by closing that.
/// Returns its exit code. The processes that it forks end by themselves, with [`die_with_parent`] or [`outlives_parent`]
/// when their sandbox has ended, with PID 1's code. The process must have one thread.
///
/// [`die_with_parent`]: crate::LaunchConfig::die_with_parent
/// [`outlives_parent`]: crate::LaunchConfig::outlives_parent
pub fn run(arguments: impl IntoIterator<Item = String>) -> i32 {
    let arguments: Vec<String> = arguments.into_iter().collect();
    let is_protected = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        [PROTECTED] => true,
        _ => return usage("launch takes no arguments"),
    };
    if !sockopt::socket_type(std::io::stdin()).is_ok_and(|kind| kind == rustix::net::SocketType::SEQPACKET) {
        return usage("launch is for providers: standard input is not a socket of one");
    }
    match launcher(is_protected) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("sandbox-agent: {error}");
            FAILED
        }
    }
}

fn usage(message: &str) -> i32 {
    eprintln!("sandbox-agent: {message}");
    USAGE
}

fn launcher(is_protected: bool) -> Result<i32, LaunchError> {
    sys::close_inherited(3, u32::MAX).stage(Stage::Config, "closing inherited descriptors")?;
    if !is_protected {
        match protect::execute()? {}
    }
    let parent = keeper::Parent::watch()?;
    // It may wait for long; neither a terminal nor a folder is to notice.
    keeper::settle();
    rustix::process::umask(Mode::empty());
    sys::unblock_signals().stage(Stage::Config, "unblocking signals")?;
    sandbox_process::settle_signals(&STANDARD_SIGNALS);
    // Each process by this name, whatever the file is called.
    let _ = rustix::thread::set_name(c"sandbox-agent");
    let line = sys::duplicate_inherited(0).stage(Stage::Config, "using standard input")?;
    let line = Line::of(line);
    // Whoever waits for the end of one of them is not held by a keeper.
    let null = mounts::open_null().stage_at(Stage::Config, "opening", "/dev/null")?;
    for fd in 0..=2 {
        sys::place(null.as_fd(), fd).stage(Stage::Config, "replacing descriptors 0 to 2")?;
    }
    drop(null);
    Places::remember();
    hardening::prepare();
    serve(line, parent)
}

fn serve(line: Line, parent: keeper::Parent) -> Result<i32, LaunchError> {
    let mut templates = Templates::default();
    loop {
        let Some(order) = line.receive_order()? else { return Ok(0) };
        if let Some(basis) = &order.ahead {
            templates.prepare(basis);
        }
        match fork(order) {
            Ok(Forked::This(order)) => {
                drop(line);
                // What the standard library does at the end is nothing for a process that has executed nothing.
                sys::exit(outer::run(order, &templates, parent))
            }
            Ok(Forked::Other(pidfd)) => line.answer(Ok(&pidfd))?,
            Err(error) => line.answer(Err(&error))?,
        }
    }
}

enum Forked {
    This(Order),
    Other(OwnedFd),
}

fn fork(order: Order) -> Result<Forked, LaunchError> {
    Ok(match sys::fork_watched().stage(Stage::Namespaces, "forking")? {
        Watched::Child => Forked::This(order),
        Watched::Parent(pidfd) => Forked::Other(pidfd),
    })
}
