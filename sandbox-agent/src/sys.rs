//! Every system call for which rustix has no safe form, with one unsafe operation each.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_char, c_int, c_long, c_uint};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// Ends this process at once.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: it takes a plain number, and does not return.
    unsafe { libc::_exit(code) }
}

/// Which process [`fork_into`] returned in.
pub(crate) enum Forked {
    Child,
    Parent(Pid),
}

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn check(result: c_long) -> Result<c_long, Errno> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

/// Not in every version of libc with the type that it needs.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// What `clone3` is told (`struct clone_args` of the kernel's first version with a cgroup).
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Forks into new namespaces (`CLONE_NEW*` flags), and into the v2 cgroup with this folder. The process must have one
/// thread.
pub(crate) fn fork_into(namespaces: c_int, cgroup: Option<BorrowedFd<'_>>) -> Result<Forked, Errno> {
    let pid = if let Some(folder) = cgroup {
        let arguments = CloneArguments {
            flags: namespaces as u64 | CLONE_INTO_CGROUP,
            exit_signal: libc::SIGCHLD as u64,
            cgroup: folder.as_raw_fd() as u64,
            ..CloneArguments::default()
        };
        // SAFETY: without CLONE_VM and with a null stack this is fork: the child continues on its copy of this stack. The
        // kernel reads `arguments`, which has the size that is given. One thread: no lock is held by another.
        unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) }
    } else {
        let flags = c_long::from(namespaces | libc::SIGCHLD);
        let none: c_long = 0;
        // SAFETY: without CLONE_VM and with a null stack this is fork: the child continues on its copy of this stack.
        // The launcher has one thread, so no lock is held by a thread that the child lacks.
        unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) }
    };
    Ok(Pid::from_raw(check(pid)? as i32).map_or(Forked::Child, Forked::Parent))
}

/// Which process [`fork_watched`] returned in, with the other one's pidfd.
pub(crate) enum Watched {
    Child,
    Parent(OwnedFd),
}

/// Forks a process that is not to be waited for: it leaves nothing when it ends. The process must have one thread.
pub(crate) fn fork_watched() -> Result<Watched, Errno> {
    // SAFETY: SIG_IGN installs no handler; the kernel then reaps children by itself.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let flags = c_long::from(libc::CLONE_PIDFD | libc::SIGCHLD);
    let none: c_long = 0;
    let mut pidfd: c_int = -1;
    // SAFETY: without CLONE_VM and with a null stack this is fork: the child continues on its copy of this stack. The
    // kernel writes one int to the third argument, in the parent. One thread: no lock is held by another.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, &raw mut pidfd, none, none) };
    if check(pid)? == 0 {
        // SAFETY: SIG_DFL installs no handler; this process waits for children of its own.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        return Ok(Watched::Child);
    }
    // SAFETY: the call above has just opened it, and nobody else knows it.
    Ok(Watched::Parent(unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Moves this process into a new cgroup namespace, whose root is the cgroup that it is in.
pub(crate) fn unshare_cgroup() -> Result<(), Errno> {
    // SAFETY: a cgroup namespace changes no descriptor table and no memory, which is what can be unsound in unshare.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }
}

/// What to change about a mount.
#[derive(Default)]
pub(crate) struct MountChange<'a> {
    /// `MOUNT_ATTR_*` to set.
    pub(crate) set: u64,
    /// Translate owners by this user namespace's id map.
    pub(crate) idmap: Option<BorrowedFd<'a>>,
    pub(crate) recursive: bool,
}

/// Changes the mount whose root `mount` is, and cuts it off from its host twin: no mount event passes either way.
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, change: &MountChange<'_>) -> Result<(), Errno> {
    change_mount(mount.as_raw_fd(), c"", libc::AT_EMPTY_PATH, change)
}

/// The same for what is mounted at `path`, which is no link.
pub(crate) fn mount_setattr_at(path: &CStr, change: &MountChange<'_>) -> Result<(), Errno> {
    change_mount(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW, change)
}

fn change_mount(fd: RawFd, path: &CStr, flags: c_int, change: &MountChange<'_>) -> Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: change.set | if change.idmap.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 },
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: change.idmap.map_or(0, |namespace| namespace.as_raw_fd() as u64),
    };
    let flags = flags | if change.recursive { libc::AT_RECURSIVE } else { 0 };
    let size = size_of::<libc::mount_attr>();
    // SAFETY: the path is NUL-terminated, and `attributes` is a live mount_attr of `size` bytes.
    let result =
        unsafe { libc::syscall(libc::SYS_mount_setattr, fd, path.as_ptr(), flags, &raw const attributes, size) };
    check(result).map(drop)
}

/// Replaces this program by `path` below `dir`, or by what `dir` is (`O_PATH` will do) if the path is empty. Returns
/// only on failure.
pub(crate) fn execute(dir: BorrowedFd<'_>, path: &CStr, argv: &[CString], env: &[CString]) -> Errno {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    let (fd, flags) = (dir.as_raw_fd(), if path.is_empty() { libc::AT_EMPTY_PATH } else { 0 });
    // SAFETY: both lists are NULL-terminated and point to NUL-terminated strings that outlive the call.
    unsafe { libc::syscall(libc::SYS_execveat, fd, path.as_ptr(), argv.as_ptr(), env.as_ptr(), flags) };
    errno()
}

/// Duplicates a descriptor that this process was started with, to one from 3 on that exec closes.
///
/// # Errors
/// `EBADF` when it is not open.
pub(crate) fn duplicate_inherited(fd: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: F_DUPFD_CLOEXEC takes a number, no pointer.
    let fd = check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) }.into())?;
    // SAFETY: the call above has just opened it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Closes the descriptors `first..=last` that this process was started with.
pub(crate) fn close_inherited(first: c_uint, last: c_uint) -> Result<(), Errno> {
    // SAFETY: called before this process owns anything in this range, so no owner loses its descriptor.
    check(unsafe { libc::close_range(first, last, 0) }.into()).map(drop)
}

/// Closes what a forked process has from its parent, but for 0 to 2 and `kept`. Whoever owned the
/// rest in the parent must not be dropped in this process.
pub(crate) fn close_all_but<const N: usize>(mut kept: [BorrowedFd<'_>; N]) -> Result<(), Errno> {
    kept.sort_unstable_by_key(|fd| fd.as_raw_fd());
    let mut first = 3;
    for fd in kept.map(|fd| fd.as_raw_fd() as c_uint).into_iter().chain([c_uint::MAX]) {
        if fd > first {
            close_inherited(first, fd - 1)?;
        }
        first = first.max(fd.saturating_add(1));
    }
    Ok(())
}

/// Takes the path of this program's file out of the arguments that `/proc` shows: it is one of the host's. Call it while
/// there is one thread.
pub(crate) fn hide_path() {
    // SAFETY: the C library sets this before `main`, to the first argument, and nothing here changes it.
    let name = unsafe { program_invocation_name };
    if name.is_null() {
        return;
    }
    // SAFETY: it is a NUL-terminated string, in the writable block of the arguments.
    let length = unsafe { CStr::from_ptr(name) }.to_bytes().len();
    let shown = b"sandbox-agent";
    for at in 0..length {
        let place = name.wrapping_add(at);
        // SAFETY: below the string's length; nobody else refers to its bytes, which std copies when they are asked for.
        unsafe { place.write(shown.get(at).map_or(0, |byte| *byte as c_char)) };
    }
}

unsafe extern "C" {
    static program_invocation_name: *mut c_char;
}

/// Marks every descriptor from `first` on as closed by exec.
pub(crate) fn close_from_on_exec(first: c_uint) -> Result<(), Errno> {
    // SAFETY: with CLOSE_RANGE_CLOEXEC nothing is closed now, and this program uses no descriptor after its exec.
    check(unsafe { libc::close_range(first, c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as c_int) }.into()).map(drop)
}

/// Makes `to` a descriptor for what `from` is, open across exec.
pub(crate) fn place(from: BorrowedFd<'_>, to: RawFd) -> Result<(), Errno> {
    if from.as_raw_fd() == to {
        return rustix::io::fcntl_setfd(from, rustix::io::FdFlags::empty());
    }
    // SAFETY: called for 0..=2; what this program had there is not used again.
    check(unsafe { libc::dup2(from.as_raw_fd(), to) }.into()).map(drop)
}

/// Brings the interface `lo` of this network namespace up.
pub(crate) fn loopback_up(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut name = [0 as c_char; libc::IFNAMSIZ];
    name[0] = b'l' as c_char;
    name[1] = b'o' as c_char;
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    let request = libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
    // SAFETY: SIOCSIFFLAGS reads one ifreq, and `request` is one.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) }.into()).map(drop)
}

/// Gives SIGPIPE its default action back, which Rust programs take away and exec does not restore.
pub(crate) fn default_sigpipe() {
    // SAFETY: SIG_DFL installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Unblocks every signal.
pub(crate) fn unblock_signals() -> Result<(), Errno> {
    let none: u64 = 0;
    let (how, size) = (libc::SIG_SETMASK, size_of::<u64>());
    // SAFETY: the kernel's signal set is 64 bits here, and `none` is a live one.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const none, ptr::null_mut::<u64>(), size) };
    check(result).map(drop)
}

/// Installs a seccomp filter for this thread and what it starts. Needs no_new_privs.
pub(crate) fn install_seccomp(program: &[libc::sock_filter]) -> Result<(), Errno> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let (operation, flags): (c_long, c_long) = (libc::SECCOMP_SET_MODE_FILTER.into(), 0);
    // SAFETY: `filter` describes a live program of `len` instructions, which the kernel only reads.
    check(unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const filter) }).map(drop)
}

/// The kernel's Landlock version; 0 when it has none.
pub(crate) fn landlock_version() -> u32 {
    const VERSION: c_long = 1;
    let none: c_long = 0;
    // SAFETY: with the version flag the kernel reads no attributes.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, none, VERSION) };
    u32::try_from(version).unwrap_or(0)
}

#[repr(C)]
struct LandlockRuleset {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// Makes a Landlock rule set that only scopes, and puts this thread and what it starts into it.
pub(crate) fn landlock_scope(scoped: u64) -> Result<(), Errno> {
    let ruleset = LandlockRuleset { handled_access_fs: 0, handled_access_net: 0, scoped };
    let (size, flags) = (size_of::<LandlockRuleset>(), 0 as c_long);
    // SAFETY: `ruleset` is a live landlock_ruleset_attr of `size` bytes.
    let fd = check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const ruleset, size, flags) })?;
    // SAFETY: the call above has just opened it, and nobody else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    // SAFETY: no pointer is passed.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, fd.as_fd().as_raw_fd(), flags) }).map(drop)
}
