//! Pseudo-terminals.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;

use crate::user::User;

/// Mode of a terminal: its user reads and writes, `write` and `wall` may be allowed to the group.
const TERMINAL_MODE: libc::mode_t = 0o620;
/// What a terminal takes as the end of its input.
pub(crate) const END_OF_INPUT: u8 = 4;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Opens a terminal of this size: our end and the command's, both close-on-exec.
///
/// The command's end is opened through ours, not by its path: no other `/dev/pts` can be meant.
pub(crate) fn open(size: TerminalSize, owner: Option<&User>) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: posix_openpt takes plain numbers.
    let master = check(unsafe { libc::posix_openpt(flags) })?;
    // SAFETY: the call above has just made it, and nobody else knows it.
    let master = unsafe { OwnedFd::from_raw_fd(master) };
    let unlock: c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock) })?;
    resize_fd(&master, size)?;
    // SAFETY: TIOCGPTPEER takes open flags, no pointer.
    let slave = check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    // SAFETY: the call above has just made it, and nobody else knows it.
    let slave = unsafe { OwnedFd::from_raw_fd(slave) };
    if let Some(user) = owner {
        // Without privilege the terminal stays the host's, whose user the command then has.
        // SAFETY: fchown takes plain numbers.
        unsafe { libc::fchown(slave.as_raw_fd(), user.uid, u32::MAX) };
    }
    // SAFETY: fchmod takes plain numbers.
    unsafe { libc::fchmod(slave.as_raw_fd(), TERMINAL_MODE) };
    Ok((master, slave))
}

fn resize_fd(master: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let size = libc::winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Sets the size; the foreground group is told with SIGWINCH.
pub(crate) fn resize(master: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    resize_fd(master, size)
}

/// The process group that has the terminal, if there is one.
pub(crate) fn foreground_group(master: BorrowedFd<'_>) -> Option<i32> {
    let mut group: c_int = 0;
    // SAFETY: TIOCGPGRP writes one int.
    let result = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPGRP, &raw mut group) };
    (result == 0 && group > 1).then_some(group)
}
