//! Starts the command from the supervisor.
//!
//! The command's process shares the supervisor's memory until `exec` (as with `vfork`), so nothing is copied a
//! second time and a failure is reported by writing it down. It runs on a stack of its own.

use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use libc::{c_char, c_int, pid_t};

use crate::raw::{self, Errno};
use crate::wire::Stage;

/// Stack of the command's process before `exec`.
const STACK_BYTES: usize = 256 * 1024;
/// How often a program that is "busy" is tried again: another process may hold a just-written file open for
/// writing between its own `fork` and `exec`. The pauses add up to about 60 ms.
const BUSY_TRIES: u32 = 6;

/// How to start the command. Every pointer is valid until the process executes or ends.
pub(crate) struct Launch<'a> {
    /// Program paths in the order to try.
    /// Addresses of NUL-terminated paths.
    pub(crate) candidates: &'a [u64],
    /// NULL-terminated arguments.
    pub(crate) argv: *const *const c_char,
    /// NULL-terminated environment.
    pub(crate) envp: *const *const c_char,
    pub(crate) cwd: Option<&'a CStr>,
    /// Triples of resource, soft and hard limit.
    pub(crate) limits: &'a [u64],
    pub(crate) user: Option<Ids<'a>>,
    /// Pairs of source and target.
    pub(crate) descriptors: &'a [(RawFd, RawFd)],
    /// Ascending targets of `descriptors`.
    pub(crate) targets: &'a [RawFd],
    pub(crate) no_new_privs: bool,
    /// Standard input is a terminal that becomes the controlling one.
    pub(crate) terminal: bool,
}

/// The identity to switch to.
#[derive(Clone, Copy)]
pub(crate) struct Ids<'a> {
    pub(crate) uid: libc::uid_t,
    pub(crate) gid: libc::gid_t,
    /// Ascending.
    pub(crate) groups: &'a [libc::gid_t],
}

struct Shared<'a> {
    launch: &'a Launch<'a>,
    failed_stage: AtomicI32,
    errno: AtomicI32,
}

/// Where the stack of commands is, in a process that has started one.
static STACK: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// The stack of the next command: a supervisor starts one at a time, and waits until it executes.
fn stack() -> Option<*mut u8> {
    let known = STACK.load(Ordering::Relaxed);
    if !known.is_null() {
        return Some(known);
    }
    let stack = raw::map_memory(STACK_BYTES)?;
    STACK.store(stack, Ordering::Relaxed);
    Some(stack)
}

/// Starts the command and returns when it executes or has failed.
pub(crate) fn start(launch: &Launch<'_>) -> Result<pid_t, (Stage, Errno)> {
    let shared = Shared { launch, failed_stage: AtomicI32::new(-1), errno: AtomicI32::new(0) };
    let Some(stack) = stack() else { return Err((Stage::Fork, raw::errno())) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let argument: *const Shared<'_> = &shared;
    // SAFETY: one past the end of the mapping, which is never unmapped.
    let top = unsafe { stack.add(STACK_BYTES) };
    // SAFETY: the child has a stack of its own, and CLONE_VFORK keeps `shared` and everything it points to alive
    // and this process suspended until the child executes or ends.
    let pid = unsafe { libc::clone(command_main, top.cast(), flags, argument as *mut c_void) };
    if pid < 0 {
        return Err((Stage::Fork, raw::errno()));
    }
    let stage = shared.failed_stage.load(Ordering::Acquire);
    if stage < 0 {
        return Ok(pid);
    }
    while let Ok(None) | Err(Errno(libc::EINTR)) = raw::reap_one() {
        raw::pause_ms(1);
    }
    Err((Stage::from_code(stage), Errno(shared.errno.load(Ordering::Acquire))))
}

extern "C" fn command_main(argument: *mut c_void) -> c_int {
    // SAFETY: `start` passes a pointer to a `Shared` that lives until this process executes or ends.
    let shared = unsafe { &*(argument as *const Shared<'_>) };
    let (stage, Errno(errno)) = become_command(shared.launch);
    shared.errno.store(errno, Ordering::Release);
    shared.failed_stage.store(stage as c_int, Ordering::Release);
    raw::exit(127)
}

/// Returns only on failure.
fn become_command(launch: &Launch<'_>) -> (Stage, Errno) {
    match prepare(launch) {
        Ok(()) => execute(launch),
        Err(failure) => failure,
    }
}

fn prepare(launch: &Launch<'_>) -> Result<(), (Stage, Errno)> {
    let at = |stage: Stage| move |errno: Errno| (stage, errno);
    raw::die_with_parent();
    raw::setsid();
    place_descriptors(launch).map_err(at(Stage::Descriptors))?;
    if launch.terminal {
        raw::control_terminal(0).map_err(at(Stage::Descriptors))?;
    }
    for triple in launch.limits.chunks_exact(3) {
        if let &[resource, soft, hard] = triple {
            let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
            raw::set_limit(resource as u32, &limit).map_err(at(Stage::Limit))?;
        }
    }
    // The directory is entered with the host's rights; where those are the smaller ones (network file systems
    // that map root to nobody), once more with the user's.
    let mut entered = launch.cwd.map_or(Ok(()), raw::change_directory);
    if let Some(user) = launch.user {
        if !matches!(entered, Ok(()) | Err(Errno(libc::EACCES))) {
            return entered.map_err(at(Stage::Directory));
        }
        switch_user(user).map_err(at(Stage::User))?;
        if entered.is_err() {
            entered = launch.cwd.map_or(Ok(()), raw::change_directory);
        }
    }
    entered.map_err(at(Stage::Directory))?;
    if launch.no_new_privs {
        raw::no_new_privs().map_err(at(Stage::User))?;
    }
    // Again, because a change of user clears it.
    raw::die_with_parent();
    raw::unblock_signals();
    Ok(())
}

fn switch_user(user: Ids<'_>) -> Result<(), Errno> {
    if let Err(error) = raw::set_groups(user.groups) {
        // Without privilege nothing can be changed, which is fine when nothing has to be.
        if error != Errno(libc::EPERM) || !raw::has_groups(user.groups) {
            return Err(error);
        }
    }
    raw::set_gid(user.gid)?;
    raw::set_uid(user.uid)
}

fn place_descriptors(launch: &Launch<'_>) -> Result<(), Errno> {
    // First out of the way of every target, then into place: a source may be another one's target.
    let above = launch.targets.last().map_or(3, |&last| last.saturating_add(1)).max(3);
    for &(source, target) in launch.descriptors {
        if source <= above && source != target && launch.targets.contains(&source) {
            return place_with_copies(launch, above);
        }
    }
    for &(source, target) in launch.descriptors {
        place(source, target)?;
    }
    raw::close_all_except(launch.targets);
    Ok(())
}

/// Most descriptors that can be placed when sources and targets overlap.
pub(crate) const DESCRIPTORS_MAX: usize = 64;

fn place_with_copies(launch: &Launch<'_>, above: RawFd) -> Result<(), Errno> {
    let mut copies = [(-1, -1); DESCRIPTORS_MAX];
    for (slot, &(source, target)) in copies.iter_mut().zip(launch.descriptors) {
        *slot = (raw::dup_above(source, above)?, target);
    }
    for &(copy, target) in copies.iter().take(launch.descriptors.len()) {
        raw::dup_onto(copy, target)?;
    }
    raw::close_all_except(launch.targets);
    Ok(())
}

fn place(source: RawFd, target: RawFd) -> Result<(), Errno> {
    if source != target {
        return raw::dup_onto(source, target);
    }
    // dup2 onto itself would leave close-on-exec set.
    let copy = raw::dup_above(source, 3)?;
    raw::dup_onto(copy, target)
}

/// Tries the candidates like `execvp`: a refusal is remembered while later ones are tried.
fn execute(launch: &Launch<'_>) -> (Stage, Errno) {
    let mut failure = (Stage::Exec, Errno(libc::ENOENT));
    for &address in launch.candidates {
        // SAFETY: every candidate is the address of a NUL-terminated string that outlives the launch.
        let path = unsafe { CStr::from_ptr(address as *const c_char) };
        let Errno(errno) = execute_one(path, launch);
        match errno {
            libc::ENOENT if raw::exists(path) => return (Stage::Interpreter, Errno(errno)),
            libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {
                if failure.1 == Errno(libc::ENOENT) && launch.candidates.len() == 1 {
                    failure = (Stage::Exec, Errno(errno));
                }
            }
            libc::EACCES => failure = (Stage::Exec, Errno(errno)),
            _ => return (Stage::Exec, Errno(errno)),
        }
    }
    failure
}

fn execute_one(path: &CStr, launch: &Launch<'_>) -> Errno {
    let mut tries = 0;
    loop {
        // SAFETY: the path is NUL-terminated; argv and envp are NULL-terminated lists of NUL-terminated strings.
        unsafe { libc::execve(path.as_ptr(), launch.argv, launch.envp) };
        let error = raw::errno();
        if error != Errno(libc::ETXTBSY) || tries >= BUSY_TRIES {
            return error;
        }
        raw::pause_ms(1 << tries);
        tries += 1;
    }
}
