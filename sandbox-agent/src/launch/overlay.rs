//! A given root folder with everything written kept apart.

use std::os::fd::OwnedFd;

use rustix::mount::MountFlags;

use super::mounts;
use crate::error::{Context, LaunchError, Stage};

/// Mounts the overlay below the current folder, and enters it.
pub(super) fn mount(lower: &OwnedFd, upper: &OwnedFd) -> Result<(), LaunchError> {
    for (name, mount) in [("lower", Some(lower)), ("data", Some(upper)), ("merged", None)] {
        rustix::fs::mkdir(name, rustix::fs::Mode::from_raw_mode(0o755))
            .stage(Stage::Root, "making the overlay's folders")?;
        if let Some(mount) = mount {
            mounts::attach(mount, name).stage(Stage::Root, "mounting the overlay's folders")?;
        }
    }
    // Teardown without `volatile` syncs the file system of the upper folder.
    let data = c"lowerdir=lower,upperdir=data/upper,workdir=data/work,userxattr,volatile";
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let mounted = rustix::mount::mount(c"overlay", c"merged", c"overlay", flags, data);
    mounted.map_err(|errno| {
        let error = LaunchError::system(Stage::Root, "mounting the overlay", errno);
        error.with_hint("root.upper must be on a file system that overlay can write to (not an overlay itself), and the kernel 5.19 or newer if the launcher is root")
    })?;
    rustix::process::chdir("merged").stage(Stage::Root, "entering the overlay")
}
