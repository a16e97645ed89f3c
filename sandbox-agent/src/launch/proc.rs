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

/// Which of the paths that are to be hidden this kernel has.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Hidden {
    /// Whether each is a folder.
    masked: Vec<(&'static str, bool)>,
    read_only: Vec<&'static str>,
}

impl Hidden {
    /// Looks at the `/proc` that is seen now, whose processes do not matter.
    pub(super) fn find() -> Hidden {
        let masked = |path| Some((path, std::fs::symlink_metadata(path).ok()?.is_dir()));
        Hidden {
            masked: MASKED.into_iter().filter_map(masked).collect(),
            read_only: READ_ONLY_PATHS.into_iter().filter(|path| Path::new(path).exists()).collect(),
        }
    }

    /// Hides what is the host's. Before, settings below `/proc/sys` can be made.
    pub(super) fn hide(&self) -> Result<(), LaunchError> {
        for (path, is_folder) in &self.masked {
            put(if *is_folder { MASK_FOLDER } else { MASK_FILE }, path)?;
        }
        self.read_only.iter().try_for_each(|path| put(path, path))
    }

    pub(super) fn masked_paths(&self) -> Vec<String> {
        self.masked.iter().map(|(path, _)| (*path).to_owned()).collect()
    }

    pub(super) fn read_only_paths(&self) -> Vec<String> {
        self.read_only.iter().map(|path| (*path).to_owned()).collect()
    }
}

fn put(what: &str, over: &str) -> Result<(), LaunchError> {
    mounts::show(what, over, READ_ONLY | NOSUID | NODEV | NOEXEC).stage_at(Stage::Proc, "hiding", over)
}
