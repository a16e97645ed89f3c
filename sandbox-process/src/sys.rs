//! System calls of the host side, as safe functions.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::c_int;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: only called with a descriptor a successful call has just made, so nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A pipe, both ends close-on-exec: read end, write end.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: the pointer is valid for two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((own(fds[0]), own(fds[1])))
}

/// A pair of connected sockets that keep message boundaries, close-on-exec.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: the pointer is valid for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) })?;
    Ok((own(fds[0]), own(fds[1])))
}

/// A memory file with this content, sealed against any change. The name is for debuggers.
pub(crate) fn memory_file(name: &CStr, content: &[u8]) -> io::Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
    let mut file = File::from(own(fd));
    file.write_all(content)?;
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
    // SAFETY: F_ADD_SEALS takes plain numbers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file.into())
}

/// Sends one message with copies of these descriptors, without waiting and without SIGPIPE.
pub(crate) fn send_with_fds(socket: BorrowedFd<'_>, message: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let fd_bytes = size_of_val(fds);
    // SAFETY: CMSG_SPACE only computes.
    let space = unsafe { libc::CMSG_SPACE(fd_bytes as u32) } as usize;
    let mut control = vec![0u64; space.div_ceil(8)];
    let mut vector = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let header = MaybeUninit::<libc::msghdr>::zeroed();
    // SAFETY: all-zero is a valid empty message header.
    let mut header = unsafe { header.assume_init() };
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = space as _;
    // SAFETY: the header describes `control`, which has room for one control header and its data.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    let Some(control_header) = std::ptr::NonNull::new(first) else { return Err(io::ErrorKind::InvalidInput.into()) };
    // SAFETY: CMSG_LEN only computes.
    let control_length = unsafe { libc::CMSG_LEN(fd_bytes as u32) };
    // SAFETY: points into `control`, which is aligned and zeroed, a valid control header.
    let filled = unsafe { &mut *control_header.as_ptr() };
    filled.cmsg_level = libc::SOL_SOCKET;
    filled.cmsg_type = libc::SCM_RIGHTS;
    filled.cmsg_len = control_length as _;
    // SAFETY: as above; the data follows the header.
    let data = unsafe { libc::CMSG_DATA(first) };
    // SAFETY: `control` has room for all descriptors behind the header.
    unsafe { std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), data, fd_bytes) };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header points to buffers that live until the call returns; sendmsg only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn dev_null() -> io::Result<OwnedFd> {
    Ok(File::open("/dev/null")?.into())
}

/// Makes this end non-blocking, which was just made and has no other such flag. For a pipe the other end is not affected.
pub(crate) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: F_SETFL takes plain numbers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    Ok(())
}

/// Registers a descriptor with the runtime of this task.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub(crate) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open and the same until its owner, the AsyncFd, is dropped.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}

/// Reads into uninitialised memory; returns how many of its first bytes are now initialised (0: end).
pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    // SAFETY: the pointer and length describe the writable buffer.
    let n = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length describe the readable bytes.
    let n = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Bytes in a pipe right now.
pub(crate) fn bytes_waiting(fd: BorrowedFd<'_>) -> usize {
    let mut count: c_int = 0;
    // SAFETY: FIONREAD writes one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &mut count) };
    if result < 0 { 0 } else { usize::try_from(count).unwrap_or(0) }
}

/// True when every other end of the pipe is closed and nothing is left in it.
pub(crate) fn at_end(fd: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is valid for one entry; a timeout of 0 never waits.
    unsafe { libc::poll(&mut entry, 1, 0) };
    entry.revents & libc::POLLIN == 0 && entry.revents & libc::POLLHUP != 0
}

/// Tells the other end of the socket that nothing more comes. Never blocks.
pub(crate) fn shut_down_writing(fd: BorrowedFd<'_>) {
    // SAFETY: shutdown takes plain numbers.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) };
}

/// How a process that is reaped has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    /// With code 0.
    Exited,
    Died,
    /// Somebody else has reaped it.
    Unknown,
}

/// Reaps the process behind a pidfd. None when it has not ended.
pub(crate) fn try_reap(pidfd: BorrowedFd<'_>) -> Option<Reaped> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let id = pidfd.as_raw_fd() as libc::id_t;
    let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    // SAFETY: the pointer is valid for one siginfo.
    let result = unsafe { libc::waitid(libc::P_PIDFD, id, info.as_mut_ptr(), options) };
    if result < 0 {
        let is_interrupted = io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
        return (!is_interrupted).then_some(Reaped::Unknown);
    }
    // SAFETY: all-zero is a valid siginfo, and waitid may have filled it.
    let info = unsafe { info.assume_init() };
    // SAFETY: waitid sets the pid field, or leaves it zero when nobody has ended.
    let pid = unsafe { info.si_pid() };
    // SAFETY: the same holds for the status.
    let status = unsafe { info.si_status() };
    (pid != 0).then(|| if (info.si_code, status) == (libc::CLD_EXITED, 0) { Reaped::Exited } else { Reaped::Died })
}

/// Sends SIGKILL to the process behind a pidfd. One that has ended needs none.
pub(crate) fn kill(pidfd: BorrowedFd<'_>) {
    let nothing = std::ptr::null_mut::<libc::siginfo_t>();
    // SAFETY: the pidfd is open, and no siginfo is given.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, nothing, 0) };
}

/// Sends SIGKILL to a process group.
pub(crate) fn kill_group(group: i32) {
    if group > 1 {
        // SAFETY: kill takes plain numbers.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}
