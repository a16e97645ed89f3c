//! Mounts whose files have other owners inside than on the host.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, Signal, WaitOptions};

use crate::error::{Context, LaunchError, Stage};
use crate::sys::{self, Forked, MountChange};

/// One user and one group of the host's file system, and what they are while it is mounted, as the host counts.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    pub(super) stored: (u32, u32),
    pub(super) shown: (u32, u32),
}

/// Lets the files of a mount that is not attached yet have another owner. Everybody else is nobody there.
pub(super) fn change_owner(mount: &OwnedFd, owner: Owner) -> Result<(), LaunchError> {
    let namespace = namespace(owner)?;
    let change = MountChange { idmap: Some(namespace.as_fd()), ..MountChange::default() };
    sys::mount_setattr(mount.as_fd(), &change).stage(Stage::Source, "mapping the owners of the files of a bind")
}

/// A user namespace with this map, and no process.
fn namespace(owner: Owner) -> Result<File, LaunchError> {
    let parent = rustix::process::getpid();
    match sys::fork_into(libc::CLONE_NEWUSER, None).stage(Stage::Namespaces, "making a user namespace for a bind")? {
        Forked::Child => wait_to_be_killed(parent),
        Forked::Parent(pid) => {
            let opened = describe(pid, owner);
            // It is this process's child and not reaped, so the pid is still its own.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty()));
            opened
        }
    }
}

fn describe(pid: Pid, owner: Owner) -> Result<File, LaunchError> {
    let folder = format!("/proc/{}", pid.as_raw_pid());
    for (file, stored, shown) in
        [("uid_map", owner.stored.0, owner.shown.0), ("gid_map", owner.stored.1, owner.shown.1)]
    {
        let path = format!("{folder}/{file}");
        fs::write(&path, format!("{stored} {shown} 1")).stage_at(Stage::IdMaps, "writing", path)?;
    }
    let path = format!("{folder}/ns/user");
    File::open(&path).stage_at(Stage::IdMaps, "opening", path)
}

fn wait_to_be_killed(parent: Pid) -> ! {
    let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // A parent that has ended before that is seen here.
    while set.is_ok() && rustix::process::getppid() == Some(parent) {
        let forever = rustix::event::Timespec { tv_sec: 3600, tv_nsec: 0 };
        let _ = rustix::event::poll(&mut [], Some(&forever));
    }
    // exit runs no destructors: what the parent owns is not this copy's to clean up.
    std::process::exit(0)
}
