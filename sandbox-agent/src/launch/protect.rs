//! The file that every process of a launcher executes, out of the reach of those inside.

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use super::mounts::{NODEV, NOSUID, READ_ONLY};
use crate::error::{Context, LaunchError, Stage};
use crate::sys::{self, MountChange};

/// What tells a launcher that it runs from a protected file already.
pub(super) const PROTECTED: &str = "--protected";

/// Executes this program anew from a read-only mount of its file, so that no process inside can get from
/// `/proc/PID/exe` to a writable one; where it cannot be mounted (without privileges, or deleted), from a sealed copy in
/// memory. Returns only on failure. Descriptors from 3 on are closed.
pub(super) fn execute() -> Result<Infallible, LaunchError> {
    let link = "/proc/self/exe";
    let path = std::fs::read_link(link).stage_at(Stage::Exec, "reading", link)?;
    let file = rustix::fs::open(link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let file = file.stage_at(Stage::Exec, "opening", link)?;
    let program = match mount(&file, &path) {
        Ok(mount) => mount,
        Err(_) => copy(file).stage(Stage::Exec, "copying the agent")?,
    };
    // Whoever looks for the processes of an agent file finds them by its path.
    let name = std::env::args_os().next().map(OsString::into_vec).unwrap_or_default();
    let argv = [name, b"launch".to_vec(), PROTECTED.into()].map(|word| CString::new(word).unwrap_or_default());
    Err(LaunchError::system(Stage::Exec, "executing the agent", sys::execute(program.as_fd(), c"", &argv, &[])))
}

fn mount(file: &OwnedFd, path: &std::path::Path) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(CWD, path, flags)?;
    let (found, own) = (rustix::fs::statat(&mount, c"", AtFlags::EMPTY_PATH)?, rustix::fs::fstat(file)?);
    if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino) {
        return Err(Errno::STALE);
    }
    let change = MountChange { set: READ_ONLY | NOSUID | NODEV, ..MountChange::default() };
    sys::mount_setattr(mount.as_fd(), &change)?;
    Ok(mount)
}

fn copy(file: OwnedFd) -> std::io::Result<OwnedFd> {
    let copy = rustix::fs::memfd_create(c"sandbox-agent", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut copy = File::from(copy);
    std::io::copy(&mut File::from(file), &mut copy)?;
    rustix::fs::fchmod(&copy, Mode::from_raw_mode(0o555))?;
    rustix::fs::fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    // A file that is open for writing cannot be executed, so only this name of it stays open.
    let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}
