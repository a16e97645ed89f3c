//! A `/dev` with what every program expects, and nothing that leads to a device.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::ids::Plan;
use super::mounts::{self, NOEXEC, NOSUID};
use crate::config::Basis;
use crate::error::{Context, LaunchError, Stage};

const NODES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
const LINKS: [(&str, &str); 6] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
    ("/dev/core", "/proc/kcore"),
];
const DEV_KIB: u64 = 64;
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC);
const TTY_GROUP: u32 = 5;
/// What masked paths show: an empty file and an empty folder, where the sandbox's own `/dev/shm` covers them in the end.
pub(super) const MASK_FILE: &str = "/dev/shm/mask";
pub(super) const MASK_FOLDER: &str = "/dev/shm/masks";

/// The host's device nodes; a user namespace cannot make any.
pub(super) struct Dev {
    nodes: Vec<(&'static str, OwnedFd)>,
}

impl Dev {
    pub(super) fn collect() -> Result<Dev, LaunchError> {
        let mut nodes = Vec::new();
        for path in NODES {
            match mounts::clone(path, NOSUID | NOEXEC) {
                Ok(mount) => nodes.push((path, mount)),
                // Small hosts may lack the rarer ones; programs need the first.
                Err(Errno::NOENT) if path != NODES[0] => {}
                Err(errno) => return Err(LaunchError::system(Stage::Dev, "mounting", errno).at(path)),
            }
        }
        Ok(Dev { nodes })
    }

    /// Mounts and fills what is the same for all sandboxes.
    pub(super) fn fill(&self) -> Result<(), LaunchError> {
        let dev = "/dev";
        mounts::make_folders(Path::new(dev)).stage_at(Stage::Dev, "making", dev)?;
        mounts::memory(dev, DEV_KIB, 0o755, FLAGS).stage_at(Stage::Dev, "mounting", dev)?;
        for (path, mount) in &self.nodes {
            mounts::attach_making(mount, Path::new(path), false).stage_at(Stage::Dev, "mounting", path)?;
        }
        for (link, target) in LINKS {
            std::os::unix::fs::symlink(target, link).stage_at(Stage::Dev, "linking", link)?;
        }
        for folder in ["/dev/pts", MASK_FOLDER] {
            mounts::make_folders(Path::new(folder)).stage_at(Stage::Dev, "making", folder)?;
        }
        mounts::make_file(Path::new(MASK_FILE), 0o444).stage_at(Stage::Dev, "making", MASK_FILE)
    }
}

/// Mounts what each sandbox has for itself.
pub(super) fn mount_own(basis: &Basis, plan: &Plan) -> Result<(), LaunchError> {
    let group = if plan.map.count > TTY_GROUP { format!(",gid={TTY_GROUP}") } else { String::new() };
    let data = CString::new(format!("newinstance,ptmxmode=0666,mode=0620{group}")).map_err(|_| Errno::INVAL);
    let mounted = data.and_then(|data| rustix::mount::mount(c"devpts", "/dev/pts", c"devpts", FLAGS, data.as_c_str()));
    mounted.stage_at(Stage::Dev, "mounting", "/dev/pts")?;
    let kib = u64::from(basis.sizes.shm_mib) * 1024;
    let mounted = mounts::memory("/dev/shm", kib, 0o1777, FLAGS | MountFlags::NODEV);
    mounted.stage_at(Stage::Dev, "mounting", "/dev/shm")
}
