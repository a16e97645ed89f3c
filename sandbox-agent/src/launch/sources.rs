//! What a sandbox sees of the host, opened before anything of the new root exists.
//!
//! Each is a mount of its own that is not attached anywhere yet, with its final flags. With privileges the outer half
//! opens the folders that the configuration names (the inner one may not pass the folders above them any more);
//! without, the inner half does, with exactly the caller's rights.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::process::Pid;

use super::ids::Plan;
use super::mapped;
use super::mounts::{NODEV, NOSUID, READ_ONLY};
use crate::config::{Access, Bind, BindOwner, LaunchConfig, Root};
use crate::error::{Context, LaunchError, Stage};
use crate::sys::{self, MountChange};

/// The mounts that the configuration asks for.
pub(super) struct Sources {
    pub(super) workdir: Option<Source>,
    pub(super) binds: Vec<Source>,
    /// Lower and upper folder.
    pub(super) rootfs: Option<(OwnedFd, OwnedFd)>,
}

/// A mount that is not attached yet.
pub(super) struct Source {
    pub(super) mount: OwnedFd,
    pub(super) is_folder: bool,
}

impl Sources {
    pub(super) fn open(config: &LaunchConfig, plan: &Plan) -> Result<Sources, LaunchError> {
        let workdir = match &config.workdir {
            None => None,
            Some(workdir) => {
                let source = open(&workdir.source, NOSUID | NODEV, Depth::Whole)?;
                require_folder(&source, &workdir.source)?;
                if workdir.chown && plan.privileged {
                    give(&source.mount, plan).stage_at(Stage::Source, "changing the owner", &workdir.source)?;
                }
                Some(source)
            }
        };
        let binds = config.binds.iter().map(|bind| open_bind(bind, plan)).collect::<Result<_, _>>()?;
        let rootfs = match &config.root {
            Root::System => None,
            Root::Rootfs { lower, upper } => {
                let depth = if plan.privileged { Depth::One } else { Depth::Whole };
                let below = open(lower, NOSUID | NODEV, depth)?;
                let above = open(upper, NOSUID | NODEV, Depth::Whole)?;
                require_folder(&below, lower)?;
                require_folder(&above, upper)?;
                prepare_upper(&above.mount, plan).stage_at(Stage::Source, "making upper and work", upper)?;
                Some((below.mount, above.mount))
            }
        };
        Ok(Sources { workdir, binds, rootfs })
    }

    /// Lets files of uid n below the lower folder be the sandbox's n, unless they are given to its ids already.
    pub(super) fn map_lower_owners(&self, pid: Pid, plan: &Plan, lower: &Path) -> Result<(), LaunchError> {
        let Some((mount, _)) = &self.rootfs else { return Ok(()) };
        let owner = stat(mount).stage_at(Stage::Source, "looking at", lower)?.st_uid;
        if owner.checked_sub(plan.map.outside_uid).is_some_and(|offset| offset < plan.map.count) {
            return Ok(());
        }
        let namespace = format!("/proc/{}/ns/user", pid.as_raw_pid());
        let namespace = File::open(&namespace).stage_at(Stage::Source, "opening", namespace)?;
        let change = MountChange { idmap: Some(namespace.as_fd()), ..MountChange::default() };
        let mapped = sys::mount_setattr(mount.as_fd(), &change);
        mapped.stage_at(Stage::Source, "mapping the owners of the rootfs (its file system must allow it)", lower)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Depth {
    One,
    /// With the mounts below it. Without privileges the kernel gives no less.
    Whole,
}

fn open(path: &Path, flags: u64, depth: Depth) -> Result<Source, LaunchError> {
    // No link is followed on the way: whoever may write a folder above could otherwise choose what is mounted.
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    let file = file.stage_at(Stage::Source, "opening", path)?;
    let kind = FileType::from_raw_mode(stat(&file).stage_at(Stage::Source, "looking at", path)?.st_mode);
    if kind != FileType::Directory && kind != FileType::RegularFile {
        return Err(LaunchError::new(Stage::Source, "only folders and regular files can be mounted").at(path));
    }
    let recursive = if depth == Depth::Whole { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
    let clone = OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(&file, c"", clone | recursive).stage_at(Stage::Source, "mounting", path)?;
    let change = MountChange { set: flags, recursive: depth == Depth::Whole, ..MountChange::default() };
    sys::mount_setattr(mount.as_fd(), &change).stage_at(Stage::Source, "protecting", path)?;
    Ok(Source { mount, is_folder: kind == FileType::Directory })
}

fn open_bind(bind: &Bind, plan: &Plan) -> Result<Source, LaunchError> {
    let flags = NOSUID | NODEV | if bind.access == Access::ReadOnly { READ_ONLY } else { 0 };
    let source = &bind.source;
    if !plan.privileged {
        return open(source, flags, Depth::Whole);
    }
    match bind.owner {
        BindOwner::Unchanged => open(source, flags, Depth::Whole),
        BindOwner::Given { uid, gid } => {
            let opened = open(source, flags & !READ_ONLY, Depth::Whole)?;
            let found = stat(&opened.mount).stage_at(Stage::Source, "looking at", source)?;
            if found.st_uid == 0 {
                let (uid, gid) = outside(plan, uid, gid)?;
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                let given = rustix::fs::chownat(&opened.mount, c"", uid, gid, AtFlags::EMPTY_PATH);
                given.stage_at(Stage::Source, "changing the owner", source)?;
            }
            let change = MountChange { set: flags, recursive: true, ..MountChange::default() };
            sys::mount_setattr(opened.mount.as_fd(), &change).stage_at(Stage::Source, "protecting", source)?;
            Ok(opened)
        }
        BindOwner::Mapped { uid, gid } => {
            let opened = open(source, flags, Depth::One)?;
            let found = stat(&opened.mount).stage_at(Stage::Source, "looking at", source)?;
            let is_read_only = bind.access == Access::ReadOnly;
            if found.st_uid.checked_sub(plan.map.outside_uid).is_some_and(|offset| offset < plan.map.count) {
                return open(source, flags, Depth::Whole);
            }
            if found.st_uid == 0 {
                if is_read_only {
                    return open(source, flags, Depth::Whole);
                }
                return Err(LaunchError::new(
                    Stage::Source,
                    "what is root's on the host cannot be written to from inside",
                )
                .at(source)
                .with_hint("give it to an ordinary user (chown), mount it read-only, or use a named volume"));
            }
            // Of root's group only the owner's part is seen.
            let group = if found.st_gid == 0 { found.st_uid } else { found.st_gid };
            let owner = mapped::Owner { stored: (found.st_uid, group), shown: outside(plan, uid, gid)? };
            match mapped::change_owner(&opened.mount, owner) {
                Err(_) if is_read_only => open(source, flags, Depth::Whole),
                Err(error) => Err(error.at(source).with_hint(
                    "its file system must allow mapped owners (ext4, xfs, btrfs, tmpfs since Linux 6.3): mount it \
                     read-only, or use another folder or a named volume",
                )),
                Ok(()) => Ok(opened),
            }
        }
    }
}

/// What ids of the sandbox are on the host.
fn outside(plan: &Plan, uid: u32, gid: u32) -> Result<(u32, u32), LaunchError> {
    if uid >= plan.map.count || gid >= plan.map.count {
        let last = plan.map.count - 1;
        return Err(LaunchError::new(Stage::Config, format!("the owner of a bind must be 0 to {last}")));
    }
    Ok((plan.map.outside_uid + uid, plan.map.outside_gid + gid))
}

fn require_folder(source: &Source, path: &Path) -> Result<(), LaunchError> {
    if source.is_folder { Ok(()) } else { Err(LaunchError::new(Stage::Source, "it must be a folder").at(path)) }
}

fn stat(fd: &OwnedFd) -> Result<Stat, Errno> {
    rustix::fs::statat(fd, c"", AtFlags::EMPTY_PATH)
}

fn give(fd: &OwnedFd, plan: &Plan) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(plan.map.outside_uid), Gid::from_raw(plan.map.outside_gid));
    rustix::fs::chownat(fd, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
}

/// Makes `upper` and `work`, and lets a folder that was used before (without syncing) be used again.
fn prepare_upper(mount: &OwnedFd, plan: &Plan) -> Result<(), Errno> {
    for name in [c"upper", c"work"] {
        match rustix::fs::mkdirat(mount, name, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) | Ok(()) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(mount, name, flags, Mode::empty())?;
        if plan.privileged {
            give(&folder, plan)?;
        }
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let marks = match rustix::fs::openat2(mount, c"work/work/incompat/volatile", flags, Mode::empty(), resolve) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    match rustix::fs::unlinkat(&marks, c"dirty", AtFlags::empty()) {
        Err(errno) if errno != Errno::NOENT => return Err(errno),
        _ => {}
    }
    let above = rustix::fs::openat2(mount, c"work/work/incompat", flags, Mode::empty(), resolve)?;
    rustix::fs::unlinkat(&above, c"volatile", AtFlags::REMOVEDIR)
}
