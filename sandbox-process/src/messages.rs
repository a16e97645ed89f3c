//! Messages on sockets, as system calls that are allowed between `fork` and `exec` (see [`raw`](crate::raw)).

use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use libc::c_int;

use crate::raw::{Errno, check, errno};

/// A pair of connected sockets that keep message boundaries, close-on-exec.
pub(crate) fn socket_pair() -> Result<(RawFd, RawFd), Errno> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the pointer is valid for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    let [one, other] = fds;
    Ok((one, other))
}

/// True when the other end is closed and no message is left.
pub(crate) fn has_ended(socket: RawFd) -> bool {
    let mut byte = [0u8; 1];
    // SAFETY: the pointer and length describe the writable buffer.
    let n = unsafe { libc::recv(socket, byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT | libc::MSG_PEEK) };
    n == 0 || n < 0 && !matches!(errno(), Errno(libc::EAGAIN | libc::EINTR))
}

/// Receives one message without waiting; 0 is the end.
pub(crate) fn receive(socket: RawFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the pointer and length describe the writable buffer.
    let n = unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    if n < 0 { Err(errno()) } else { Ok(n as usize) }
}

/// Sends one message without waiting and without SIGPIPE.
pub(crate) fn send(socket: RawFd, message: &[u8]) -> Result<(), Errno> {
    // SAFETY: the pointer and length describe the readable message.
    let n =
        unsafe { libc::send(socket, message.as_ptr().cast(), message.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if n < 0 { Err(errno()) } else { Ok(()) }
}

/// Sends one byte with a copy of a descriptor, without waiting and without SIGPIPE.
pub(crate) fn send_fd(socket: RawFd, fd: RawFd) -> Result<(), Errno> {
    let mut byte = [0u8; 1];
    let mut control = [0u64; 8];
    let mut vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let header = MaybeUninit::<libc::msghdr>::zeroed();
    // SAFETY: all-zero is a valid empty message header.
    let mut header = unsafe { header.assume_init() };
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE only computes.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as _;
    // SAFETY: the header describes `control`, which has room for one control header and its data.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    if first.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: points into `control`, which is aligned and zeroed, a valid control header.
    let filled = unsafe { &mut *first };
    filled.cmsg_level = libc::SOL_SOCKET;
    filled.cmsg_type = libc::SCM_RIGHTS;
    // SAFETY: CMSG_LEN only computes.
    filled.cmsg_len = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as u32) } as _;
    // SAFETY: `control` has room for the descriptor behind the header.
    let data = unsafe { libc::CMSG_DATA(first) }.cast::<RawFd>();
    // SAFETY: as above; the place may be unaligned.
    unsafe { data.write_unaligned(fd) };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header points to buffers that live until the call returns; sendmsg only reads them.
    let sent = unsafe { libc::sendmsg(socket, &raw const header, flags) };
    if sent < 0 { Err(errno()) } else { Ok(()) }
}

/// Receives one message and its descriptors without waiting: bytes and descriptors. 0 bytes is the end.
pub(crate) fn receive_with_fds(socket: RawFd, buffer: &mut [u8], fds: &mut [RawFd]) -> Result<(usize, usize), Errno> {
    receive_message(socket, buffer, fds, libc::MSG_DONTWAIT)
}

/// The same, and waits for one.
pub(crate) fn wait_with_fds(socket: RawFd, buffer: &mut [u8], fds: &mut [RawFd]) -> Result<(usize, usize), Errno> {
    receive_message(socket, buffer, fds, 0)
}

fn receive_message(socket: RawFd, buffer: &mut [u8], fds: &mut [RawFd], flags: c_int) -> Result<(usize, usize), Errno> {
    let mut control = [0u64; 64];
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let header = MaybeUninit::<libc::msghdr>::zeroed();
    // SAFETY: all-zero is a valid empty message header.
    let mut header = unsafe { header.assume_init() };
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header points to buffers that live until the call returns.
    let length = unsafe { libc::recvmsg(socket, &raw mut header, flags | libc::MSG_CMSG_CLOEXEC) };
    if length < 0 {
        return Err(errno());
    }
    let mut count = 0;
    // SAFETY: the kernel has filled the header.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    if !first.is_null() {
        // SAFETY: a non-null control header lies inside `control`.
        let bytes = unsafe { (*first).cmsg_len } as usize;
        // SAFETY: as above; the data follows the header.
        let data = unsafe { libc::CMSG_DATA(first) }.cast::<RawFd>();
        // SAFETY: CMSG_LEN only computes.
        let header_bytes = unsafe { libc::CMSG_LEN(0) } as usize;
        let total = bytes.saturating_sub(header_bytes) / size_of::<RawFd>();
        while count < total {
            // SAFETY: the kernel has written `total` descriptors behind the header.
            let at = unsafe { data.add(count) };
            // SAFETY: as above; the data may be unaligned.
            let fd = unsafe { at.read_unaligned() };
            match fds.get_mut(count) {
                Some(slot) => *slot = fd,
                None => break,
            }
            count += 1;
        }
    }
    Ok((length as usize, count))
}
