//! The few ways in which this launcher mounts.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags};

use crate::sys::{self, MountChange};

pub(super) const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub(super) const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub(super) const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub(super) const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// A copy of what is mounted at `path` and below, attached nowhere, with `flags` added.
pub(super) fn clone(path: &str, flags: u64) -> Result<OwnedFd, Errno> {
    let how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let mount = rustix::mount::open_tree(CWD, path, how)?;
    sys::mount_setattr(mount.as_fd(), &MountChange { set: flags, recursive: true, ..MountChange::default() })?;
    Ok(mount)
}

/// Attaches a mount at a folder or file that exists. A link there is refused, not followed.
pub(super) fn attach(mount: &OwnedFd, target: impl AsRef<Path>) -> Result<(), Errno> {
    rustix::mount::move_mount(mount, c"", CWD, target.as_ref(), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Attaches a mount at a path that is made if need be.
pub(super) fn attach_making(mount: &OwnedFd, target: &Path, is_folder: bool) -> io::Result<()> {
    match attach(mount, target) {
        Err(Errno::NOENT) => {
            make_target(target, is_folder)?;
            Ok(attach(mount, target)?)
        }
        attached => Ok(attached?),
    }
}

/// Makes what something can be mounted on, unless it is there.
pub(super) fn make_target(target: &Path, is_folder: bool) -> io::Result<()> {
    if is_folder {
        return make_folders(target);
    }
    target.parent().map_or(Ok(()), make_folders)?;
    Ok(make_file(target, 0o644)?)
}

/// Shows what is at `path` at `over` as well, where it is of the same kind, with `flags` added. Neither may be a link.
pub(super) fn show(path: &str, over: &str, flags: u64) -> Result<(), Errno> {
    rustix::mount::mount_bind(path, over)?;
    let over = CString::new(over).map_err(|_| Errno::INVAL)?;
    sys::mount_setattr_at(&over, &MountChange { set: flags, ..MountChange::default() })
}

/// Makes a folder and those above it, with mode 0755.
pub(super) fn make_folders(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Makes an empty file unless something is there.
pub(super) fn make_file(path: &Path, mode: u32) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) | Ok(_) => Ok(()),
        // A bind into a folder that is mounted read-only: its target must be there already.
        Err(Errno::ROFS) if path.exists() => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Mounts a file system in memory, whose files cannot outnumber its pages.
pub(super) fn memory(target: &str, kib: u64, mode: u32, flags: MountFlags) -> Result<(), Errno> {
    let files = (kib / 4).max(256);
    let data = CString::new(format!("size={kib}k,nr_inodes={files},mode={mode:o}")).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(c"tmpfs", target, c"tmpfs", flags, data.as_c_str())
}

/// Adds `flags` to what is mounted at `path`, and below it if `recursive`.
pub(super) fn add_flags(path: &str, flags: u64, recursive: bool) -> Result<(), Errno> {
    let root = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    sys::mount_setattr(root.as_fd(), &MountChange { set: flags, recursive, ..MountChange::default() })
}

pub(super) fn open_null() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}
