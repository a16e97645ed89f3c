//! System calls that are allowed between `fork` and `exec`.
//!
//! Nothing here allocates, locks or panics. The credential calls are raw system calls on purpose: the C library's
//! own wrappers signal every thread they believe to exist, and after `fork` those threads are gone.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use libc::{c_int, c_long, pid_t};

pub(crate) use crate::credentials::{has_groups, set_gid, set_groups, set_uid};
pub(crate) use crate::messages::{has_ended, receive, receive_with_fds, send, send_fd, socket_pair, wait_with_fds};
pub(crate) use crate::signals::{
    block_signals, child_signal_fd, reset_signal_actions, set_signal_mask, unblock_signals,
};

/// An error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// The error number of the last failed call of this thread.
pub(crate) fn errno() -> Errno {
    // SAFETY: the C library returns a valid pointer to this thread's error number.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the pointer above is valid for reads in this thread.
    Errno(unsafe { *location })
}

/// Where this thread keeps its error number.
pub(crate) fn errno_address() -> usize {
    // SAFETY: the C library returns a valid pointer to this thread's error number.
    unsafe { libc::__errno_location() as usize }
}

pub(crate) fn check(result: c_int) -> Result<c_int, Errno> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

pub(crate) fn check_long(result: c_long) -> Result<c_long, Errno> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

pub(crate) fn close(fd: RawFd) {
    // SAFETY: closing a number has no memory effect; callers only pass descriptors this process owns.
    unsafe { libc::close(fd) };
}

pub(crate) fn dup_onto(fd: RawFd, target: RawFd) -> Result<(), Errno> {
    loop {
        // SAFETY: dup2 takes plain numbers.
        match check(unsafe { libc::dup2(fd, target) }) {
            Ok(_) => return Ok(()),
            Err(Errno(libc::EINTR | libc::EBUSY)) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Duplicates `fd` to a close-on-exec descriptor that is not below `lowest`.
pub(crate) fn dup_above(fd: RawFd, lowest: RawFd) -> Result<RawFd, Errno> {
    // SAFETY: F_DUPFD_CLOEXEC takes plain numbers.
    check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) })
}

/// Closes every descriptor in `first..=last`.
pub(crate) fn close_range(first: u32, last: u32) {
    if first > last {
        return;
    }
    // SAFETY: close_range takes plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) };
    if result == 0 {
        return;
    }
    // Kernels before 5.9 and strict seccomp profiles: close one by one up to the limit.
    let limit = open_file_limit().min(1 << 16);
    let mut fd = first;
    while fd <= last && fd < limit {
        close(fd as RawFd);
        fd += 1;
    }
}

fn open_file_limit() -> u32 {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the pointer is valid for one rlimit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) } < 0 {
        return 1024;
    }
    // SAFETY: getrlimit succeeded and filled the value.
    let limit = unsafe { limit.assume_init() };
    u32::try_from(limit.rlim_cur).unwrap_or(u32::MAX)
}

/// Closes everything but the ascending descriptors in `keep`.
pub(crate) fn close_all_except(keep: &[RawFd]) {
    let mut next = 0u32;
    for &fd in keep {
        let fd = fd as u32;
        if fd > next {
            close_range(next, fd - 1);
        }
        next = next.max(fd.saturating_add(1));
    }
    close_range(next, u32::MAX);
}

pub(crate) fn setsid() {
    // SAFETY: setsid has no arguments and no memory effect.
    unsafe { libc::setsid() };
}

pub(crate) fn getpid() -> pid_t {
    // SAFETY: getpid has no arguments and cannot fail.
    unsafe { libc::getpid() }
}

fn prctl(option: c_int, value: libc::c_ulong) -> Result<(), Errno> {
    // SAFETY: the options used in this file take one integer and zeros.
    check(unsafe { libc::prctl(option, value, 0 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong) }).map(drop)
}

pub(crate) fn become_subreaper() -> Result<(), Errno> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
}

pub(crate) fn forbid_tracing() {
    let _ = prctl(libc::PR_SET_DUMPABLE, 0);
}

pub(crate) fn no_new_privs() -> Result<(), Errno> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

pub(crate) fn die_with_parent() {
    let _ = prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
}

pub(crate) fn live_without_parent() {
    let _ = prctl(libc::PR_SET_PDEATHSIG, 0);
}

pub(crate) fn parent() -> pid_t {
    // SAFETY: getppid has no arguments and no memory effect.
    unsafe { libc::getppid() }
}

pub(crate) fn set_name(name: &CStr) {
    let _ = prctl(libc::PR_SET_NAME, name.as_ptr() as libc::c_ulong);
}

/// Sends `signal`; a negative `pid` means the process group.
pub(crate) fn kill(pid: pid_t, signal: c_int) {
    // SAFETY: kill takes plain numbers.
    unsafe { libc::kill(pid, signal) };
}

pub(crate) fn favour_this_process() {
    // SAFETY: setpriority takes plain numbers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}

/// What one reaped child left behind.
pub(crate) struct Reaped {
    pub(crate) pid: pid_t,
    pub(crate) status: c_int,
    pub(crate) cpu_us: u64,
    pub(crate) peak_kib: u64,
}

/// Reaps one child without waiting: `Ok(None)` when all are alive, `ECHILD` when there is none.
pub(crate) fn reap_one() -> Result<Option<Reaped>, Errno> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are valid for writes of their types.
    let pid = unsafe { libc::wait4(-1, &mut status, libc::WNOHANG | libc::__WALL, usage.as_mut_ptr()) };
    if pid == 0 {
        return Ok(None);
    }
    if pid < 0 {
        return Err(errno());
    }
    // SAFETY: all-zero is a valid rusage, and wait4 has filled it.
    let usage = unsafe { usage.assume_init() };
    let micros = |t: libc::timeval| (t.tv_sec as u64).wrapping_mul(1_000_000).wrapping_add(t.tv_usec as u64);
    Ok(Some(Reaped {
        pid,
        status,
        cpu_us: micros(usage.ru_utime).wrapping_add(micros(usage.ru_stime)),
        peak_kib: usage.ru_maxrss as u64,
    }))
}

/// Waits until one of the descriptors is readable or `timeout_ms` passes (-1: no limit). Returns who is.
pub(crate) fn poll_two(first: RawFd, second: RawFd, timeout_ms: c_int) -> (bool, bool) {
    let mut fds = [
        libc::pollfd { fd: first, events: libc::POLLIN, revents: 0 },
        libc::pollfd { fd: second, events: libc::POLLIN, revents: 0 },
    ];
    // SAFETY: the pointer is valid for the two entries of the array.
    unsafe { libc::poll(fds.as_mut_ptr(), 2, timeout_ms) };
    let [first, second] = fds;
    (first.revents != 0, second.revents != 0)
}

/// The same for three. -1 is nobody.
pub(crate) fn poll(wanted: [RawFd; 3], timeout_ms: c_int) -> [bool; 3] {
    let mut fds = wanted.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the pointer is valid for the three entries of the array.
    unsafe { libc::poll(fds.as_mut_ptr(), 3, timeout_ms) };
    fds.map(|entry| entry.revents != 0)
}

/// Reads into `buffer`; 0 is the end.
pub(crate) fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        // SAFETY: the pointer and length describe the writable buffer.
        let n = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        match n {
            n if n >= 0 => return Ok(n as usize),
            _ => match errno() {
                Errno(libc::EINTR) => {}
                error => return Err(error),
            },
        }
    }
}

/// Writes to a pipe; a reader that is gone is an error, where SIGPIPE is blocked.
pub(crate) fn write(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        // SAFETY: the pointer and length describe the readable bytes.
        let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        match n {
            n if n >= 0 => return Ok(n as usize),
            _ => match errno() {
                Errno(libc::EINTR) => {}
                error => return Err(error),
            },
        }
    }
}

/// A pipe whose read end does not wait: read end, write end; both close-on-exec.
pub(crate) fn pipe() -> Result<(RawFd, RawFd), Errno> {
    let mut fds = [-1; 2];
    // SAFETY: the pointer is valid for two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    let [read, write] = fds;
    // SAFETY: F_SETFL takes plain numbers.
    check(unsafe { libc::fcntl(read, libc::F_SETFL, libc::O_NONBLOCK) })?;
    Ok((read, write))
}

/// Opens for reading, close-on-exec.
pub(crate) fn open(path: &CStr) -> Result<RawFd, Errno> {
    // SAFETY: the path is NUL-terminated; the flags need no mode.
    check(unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) })
}

/// Makes a terminal the controlling one of this session leader.
pub(crate) fn control_terminal(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: TIOCSCTTY takes a plain number.
    check(unsafe { libc::ioctl(fd, libc::TIOCSCTTY, 0) }).map(drop)
}

/// Writes this process's `oom_score_adj`.
pub(crate) fn set_oom_score(value: i16) -> Result<(), Errno> {
    // SAFETY: the path is NUL-terminated; the flags need no mode.
    let fd = check(unsafe { libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) })?;
    let mut text = [0u8; 8];
    let mut at = text.len();
    let mut rest = value.unsigned_abs();
    loop {
        at = at.saturating_sub(1);
        if let Some(slot) = text.get_mut(at) {
            *slot = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at = at.saturating_sub(1);
        if let Some(slot) = text.get_mut(at) {
            *slot = b'-';
        }
    }
    let digits = text.get(at..).unwrap_or(&[]);
    // SAFETY: the pointer and length describe the readable text.
    let written = unsafe { libc::write(fd, digits.as_ptr().cast(), digits.len()) };
    let result = if written < 0 { Err(errno()) } else { Ok(()) };
    close(fd);
    result
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: two words for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Takes every capability that is not in `keep` from the bounding set, and all from the ambient and inheritable ones.
pub(crate) fn limit_capabilities(keep: u64) -> Result<(), Errno> {
    // Kernels before 4.3 have no ambient set, and so nothing to clear.
    // SAFETY: this operation takes plain numbers.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    let mut number: libc::c_ulong = 0;
    while number < 64 {
        if keep & (1 << number) == 0 {
            // SAFETY: PR_CAPBSET_READ takes plain numbers. An error: the kernel has no such capability.
            let has = unsafe { libc::prctl(libc::PR_CAPBSET_READ, number, 0, 0, 0) };
            if has == 1 {
                prctl(libc::PR_CAPBSET_DROP, number)?;
            }
        }
        number += 1;
    }
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut data = [CapabilityData { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: both pointers are valid for what version 3 of the call reads and writes.
    check_long(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    for word in &mut data {
        word.inheritable = 0;
    }
    // SAFETY: as above; the kernel only reads.
    check_long(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// Installs a seccomp program for this process and what it starts. `program`: whole instructions, at most 4096.
pub(crate) fn install_seccomp(program: &[u8]) -> Result<(), Errno> {
    let filter = libc::sock_fprog { len: (program.len() / 8) as u16, filter: program.as_ptr().cast_mut().cast() };
    let (operation, flags) = (c_long::from(libc::SECCOMP_SET_MODE_FILTER), 0 as c_long);
    // SAFETY: `filter` describes the readable program, whose alignment does not matter to the kernel's copy.
    check_long(unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const filter) }).map(drop)
}

/// Reads directory entries in kernel format into `buffer`; 0 is the end.
pub(crate) fn directory_entries(fd: RawFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the pointer and length describe the writable buffer.
    let n = unsafe { libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()) };
    check_long(n).map(|n| n as usize)
}

/// Maps zeroed private memory that lives as long as this process. `None` when the kernel refuses.
pub(crate) fn map_memory(bytes: usize) -> Option<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address the kernel chooses touches no existing memory.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED { None } else { Some(address.cast()) }
}

/// Maps a file's first bytes, private and writable.
pub(crate) fn map_file(fd: RawFd, bytes: usize) -> Result<*mut u8, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address the kernel chooses touches no existing memory.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE, fd, 0) };
    if address == libc::MAP_FAILED { Err(errno()) } else { Ok(address.cast()) }
}

/// Unmaps memory that nothing of this process uses any more. True on success.
pub(crate) fn unmap(start: usize, end: usize) -> bool {
    // SAFETY: the callers pass whole mappings of this (forked) process that none of its code refers to.
    unsafe { libc::munmap(start as *mut libc::c_void, end.wrapping_sub(start)) == 0 }
}

/// Leaves a mapping of this process out of what its children copy.
pub(crate) fn do_not_fork(address: *mut u8, bytes: usize) {
    // SAFETY: a whole mapping of this process that no child of it touches.
    unsafe { libc::madvise(address.cast(), bytes, libc::MADV_DONTFORK) };
}

pub(crate) fn rewind(fd: RawFd) {
    // SAFETY: lseek takes plain numbers.
    unsafe { libc::lseek(fd, 0, libc::SEEK_SET) };
}

/// Makes the kernel's record of this process's peak memory start from here. Not every kernel can.
pub(crate) fn reset_peak_memory() {
    // SAFETY: the path is NUL-terminated; the flags need no mode.
    let fd = unsafe { libc::open(c"/proc/self/clear_refs".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    if fd >= 0 {
        // SAFETY: the pointer is valid for one byte.
        unsafe { libc::write(fd, c"5".as_ptr().cast(), 1) };
        close(fd);
    }
}

/// Forks this single-threaded process: 0 in the child.
pub(crate) fn fork() -> Result<pid_t, Errno> {
    let flags = libc::SIGCHLD as libc::c_ulong;
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: a plain fork; the child continues on a copy of everything.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, nothing, nothing, nothing, nothing) };
    check_long(pid).map(|pid| pid as pid_t)
}

/// Empties a non-blocking descriptor.
pub(crate) fn drain(fd: RawFd) {
    let mut buffer = [0u8; 1024];
    while let Ok(1..) = read(fd, &mut buffer) {}
}

pub(crate) fn change_directory(path: &CStr) -> Result<(), Errno> {
    // SAFETY: the path is NUL-terminated.
    check(unsafe { libc::chdir(path.as_ptr()) }).map(drop)
}

pub(crate) fn exists(path: &CStr) -> bool {
    // SAFETY: the path is NUL-terminated.
    unsafe { libc::access(path.as_ptr(), libc::F_OK) == 0 }
}

pub(crate) fn set_limit(resource: u32, limit: &libc::rlimit) -> Result<(), Errno> {
    // SAFETY: the pointer is a valid rlimit; glibc and musl differ only in the integer type of the resource.
    check(unsafe { libc::setrlimit(resource as _, limit) }).map(drop)
}

pub(crate) fn pause_ms(milliseconds: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: milliseconds.wrapping_mul(1_000_000) };
    // SAFETY: the request is a valid timespec and the remainder is not asked for.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// Ends this process at once, without exit handlers.
pub(crate) fn exit(code: c_int) -> ! {
    // SAFETY: _exit runs no user code.
    unsafe { libc::_exit(code) }
}
