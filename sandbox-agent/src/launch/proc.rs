//! `/proc` of the sandbox's own processes, without what it says and allows about the host.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags};

use super::dev::{MASK_FILE, MASK_FOLDER};
use super::mounts::{self, NODEV, NOEXEC, NOSUID, READ_ONLY};
use crate::error::{Context, LaunchError, Stage};

const MASKED: [&str; 13] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
];
const READ_ONLY_PATHS: [&str; 6] = ["/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/mtrr", "/proc/sys"];

/// Makes a proc file system for this pid namespace, attached nowhere. The kernel allows it only while the host's own
/// one can be seen whole, so before the root changes.
pub(super) fn mount() -> Result<OwnedFd, LaunchError> {
    let make = || -> Result<OwnedFd, Errno> {
        let context = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // Only what mount tables show as its device.
        rustix::mount::fsconfig_set_string(context.as_fd(), "source", "proc")?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        let flags =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
    };
    make().stage_at(Stage::Proc, "mounting", "/proc")
}

/// Mounts one over another one, which has to be seen whole in this root.
pub(super) fn cover() -> Result<(), Errno> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount(c"proc", c"/proc", c"proc", flags, None)
}

/// Hides what is the host's. Before, settings below `/proc/sys` can be made. Returns the masked and the read-only paths,
/// as far as this kernel has them.
pub(super) fn hide() -> Result<(Vec<String>, Vec<String>), LaunchError> {
    let mut masked = Vec::new();
    for path in MASKED {
        let Ok(metadata) = std::fs::symlink_metadata(path) else { continue };
        let mask = if metadata.is_dir() { MASK_FOLDER } else { MASK_FILE };
        put(mask, path)?;
        masked.push(path.to_owned());
    }
    let mut read_only = Vec::new();
    for path in READ_ONLY_PATHS {
        if Path::new(path).exists() {
            put(path, path)?;
            read_only.push(path.to_owned());
        }
    }
    Ok((masked, read_only))
}

fn put(what: &str, over: &str) -> Result<(), LaunchError> {
    mounts::show(what, over, READ_ONLY | NOSUID | NODEV | NOEXEC).stage_at(Stage::Proc, "hiding", over)
}
