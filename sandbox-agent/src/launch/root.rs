//! The new root.
//!
//! First everything of the host that the sandbox sees is collected as unattached mounts; then the root is changed
//! and the old one dropped; only then are they attached, so no path or link of the new root can lead back to the host.
//! That root is the same for all sandboxes of a kind. What is one sandbox's own is mounted over it.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::ids::Plan;
use super::mounts::{self, NODEV, NOEXEC, NOSUID, READ_ONLY};
use super::proc::Hidden;
use super::sources::Sources;
use super::{dev, etc, network, overlay, proc};
use crate::config::{Access, Basis, LaunchConfig, MemoryFolder, Root, Target};
use crate::error::{Context, LaunchError, Stage};

/// Where the new root is put together. Any folder that every host has will do; it is covered in this mount
/// namespace only.
const STAGING: &str = "/proc";
const ROOT_KIB: u64 = 4096;
/// Beside `/usr`. Mostly links into it.
const SYSTEM: [&str; 7] = ["/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32", "/usr"];
/// What programs count processors by.
const CPUS: &str = "/sys/devices/system/cpu";

/// A part of the host's system folders.
enum Part {
    Link(PathBuf),
    Mount(OwnedFd),
}

/// Everything of the host that sandboxes of a kind see, as mounts that are attached nowhere.
pub(super) struct View {
    system: Vec<(&'static str, Part)>,
    etc: etc::Etc,
    dev: dev::Dev,
    proc: OwnedFd,
    cpus: Option<OwnedFd>,
}

impl View {
    /// Collects it while the host's root is this process's own.
    pub(super) fn collect(basis: &Basis) -> Result<View, LaunchError> {
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).stage(Stage::Root, "making mounts private")?;
        Ok(View {
            system: if basis.is_system { system_parts()? } else { Vec::new() },
            etc: etc::Etc::collect(basis)?,
            dev: dev::Dev::collect()?,
            proc: proc::mount()?,
            cpus: mounts::clone(CPUS, READ_ONLY | NOSUID | NODEV | NOEXEC).ok(),
        })
    }

    /// Changes the root of this process to one that has everything but what is one sandbox's own. `rootfs` is what is
    /// below it: lower and upper folder.
    pub(super) fn enter(
        self,
        basis: &Basis,
        plan: &Plan,
        rootfs: Option<&(OwnedFd, OwnedFd)>,
    ) -> Result<(), LaunchError> {
        change_root(rootfs)?;
        if basis.is_system {
            for (path, part) in &self.system {
                match part {
                    Part::Link(target) => {
                        std::os::unix::fs::symlink(target, path).stage_at(Stage::Root, "linking", path)?
                    }
                    Part::Mount(mount) => {
                        let attached = mounts::attach_making(mount, Path::new(path), true);
                        attached.stage_at(Stage::Root, "mounting", path)?;
                    }
                }
            }
            folders()?;
        }
        self.etc.fill(basis, plan)?;
        self.dev.fill()?;
        let attach = |mount: &_, path: &str| mounts::attach_making(mount, Path::new(path), true);
        attach(&self.proc, "/proc").stage_at(Stage::Proc, "mounting", "/proc")?;
        mounts::make_folders(Path::new("/sys")).stage_at(Stage::Root, "making", "/sys")?;
        if let Some(cpus) = &self.cpus {
            attach(cpus, CPUS).stage_at(Stage::Root, "mounting", CPUS)?;
        }
        Ok(())
    }
}

/// Completes a root of system folders that many sandboxes are to have: it can be changed no more.
pub(super) fn seal(basis: &Basis) -> Result<(), LaunchError> {
    for Target { path, is_folder } in &basis.targets {
        // What cannot be made here, where folders of the host are below, is there or fails when it is mounted.
        let _ = mounts::make_target(path, *is_folder);
    }
    etc::put_placeholders()?;
    protect_devices()?;
    protect_root()
}

/// Mounts what each sandbox has for itself, whatever it is. The process's root is one that was entered, or the copy of a
/// sealed one, of which is known what is to be hidden.
pub(super) fn furnish(basis: &Basis, plan: &Plan, sealed: Option<Hidden>) -> Result<Furnished, LaunchError> {
    let is_sealed = sealed.is_some();
    if is_sealed {
        proc::cover().stage_at(Stage::Proc, "mounting", "/proc")?;
    }
    network::set_up(basis.network, plan)?;
    let hidden = sealed.unwrap_or_else(Hidden::find);
    hidden.hide()?;
    if basis.is_system {
        private_folders(basis, plan)?;
    }
    dev::mount_own(basis, plan)?;
    Ok(Furnished { hidden, is_sealed })
}

/// The new root, to which what one configuration asks for can still be added.
pub(super) struct Furnished {
    pub(super) hidden: Hidden,
    is_sealed: bool,
}

impl Furnished {
    /// Adds it, and lets the root's own file system be changed no more.
    pub(super) fn finish(&self, config: &LaunchConfig, sources: &Sources) -> Result<(), LaunchError> {
        network::set_name(config)?;
        etc::put_names(config, self.is_sealed)?;
        bind(config, sources)?;
        if self.is_sealed {
            return Ok(());
        }
        protect_devices()?;
        if config.root == Root::System { protect_root() } else { Ok(()) }
    }
}

fn protect_devices() -> Result<(), LaunchError> {
    mounts::add_flags("/dev", READ_ONLY, false).stage_at(Stage::Dev, "protecting", "/dev")
}

fn protect_root() -> Result<(), LaunchError> {
    let flags = READ_ONLY | NOSUID | NODEV;
    mounts::add_flags("/", flags, false).stage_at(Stage::Root, "protecting", "/")
}

/// Paths of the host whose replacement makes another view.
pub(super) fn seen() -> impl Iterator<Item = &'static str> {
    SYSTEM.into_iter().chain([CPUS])
}

fn system_parts() -> Result<Vec<(&'static str, Part)>, LaunchError> {
    let mut parts = Vec::new();
    for path in SYSTEM {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_symlink() => {
                let target = std::fs::read_link(path).stage_at(Stage::Source, "reading", path)?;
                parts.push((path, Part::Link(target)));
            }
            Ok(_) => {
                let mount = mounts::clone(path, READ_ONLY | NOSUID | NODEV);
                parts.push((path, Part::Mount(mount.stage_at(Stage::Source, "mounting", path)?)));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).stage_at(Stage::Source, "looking at", path),
        }
    }
    Ok(parts)
}

fn change_root(rootfs: Option<&(OwnedFd, OwnedFd)>) -> Result<(), LaunchError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let old = rustix::fs::open("/", flags, Mode::empty()).stage(Stage::Root, "opening the old root")?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    mounts::memory(STAGING, ROOT_KIB, 0o755, safe).stage(Stage::Root, "mounting the new root")?;
    rustix::process::chdir(STAGING).stage(Stage::Root, "entering the new root")?;
    if let Some((lower, upper)) = rootfs {
        overlay::mount(lower, upper)?;
    }
    rustix::process::pivot_root(".", ".").stage(Stage::Root, "changing the root")?;
    // The old root now covers the new one; it is reached by its descriptor only.
    rustix::process::fchdir(&old).stage(Stage::Root, "entering the old root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).stage(Stage::Root, "dropping the old root")?;
    rustix::process::chdir("/").stage(Stage::Root, "entering the new root")
}

/// Makes what the private folders are mounted on, and what is beside them.
fn folders() -> Result<(), LaunchError> {
    for path in ["/tmp", "/var/tmp", "/run", "/home", "/root", "/var/log", "/var/cache", "/var/lib"] {
        mounts::make_folders(Path::new(path)).stage_at(Stage::Root, "making", path)?;
    }
    for (link, target) in [("/var/run", "/run"), ("/var/lock", "/run/lock")] {
        std::os::unix::fs::symlink(target, link).stage_at(Stage::Root, "linking", link)?;
    }
    Ok(())
}

fn private_folders(basis: &Basis, plan: &Plan) -> Result<(), LaunchError> {
    let sizes = &basis.sizes;
    let folders = [
        ("/tmp", sizes.tmp_mib, 0o1777),
        ("/var/tmp", sizes.var_tmp_mib, 0o1777),
        ("/run", sizes.run_mib, 0o755),
        ("/home", sizes.home_mib, 0o755),
        ("/root", sizes.root_mib, 0o700),
    ];
    for (path, mib, mode) in folders {
        let mounted = mounts::memory(path, u64::from(mib) * 1024, mode, MountFlags::NOSUID | MountFlags::NODEV);
        mounted.stage_at(Stage::Root, "mounting", path)?;
    }
    rustix::fs::mkdir("/run/lock", Mode::from_raw_mode(0o1777)).stage_at(Stage::Root, "making", "/run/lock")?;
    let home = format!("/home/{}", basis.user.name);
    rustix::fs::mkdir(&home, Mode::from_raw_mode(0o755)).stage_at(Stage::Root, "making", &home)?;
    if plan.map.count > 1 {
        let (uid, gid) = (Uid::from_raw(basis.user.uid), Gid::from_raw(basis.user.gid));
        rustix::fs::chown(&home, Some(uid), Some(gid)).stage_at(Stage::Root, "changing the owner", &home)?;
    }
    Ok(())
}

/// Something that is mounted at a path of the new root.
enum Piece<'a> {
    Source(&'a super::sources::Source, &'static str),
    Memory(&'a MemoryFolder),
}

/// Attaches what the configuration asks for, the outermost first: one may be within another.
fn bind(config: &LaunchConfig, sources: &Sources) -> Result<(), LaunchError> {
    let mut pieces: Vec<(&Path, Piece<'_>)> = Vec::new();
    if let (Some(workdir), Some(source)) = (&config.workdir, &sources.workdir) {
        pieces.push((&workdir.target, Piece::Source(source, "mounting the workdir at")));
    }
    for (bind, source) in config.binds.iter().zip(&sources.binds) {
        pieces.push((&bind.target, Piece::Source(source, "mounting a bind at")));
    }
    pieces.extend(config.memory.iter().map(|folder| (folder.target.as_path(), Piece::Memory(folder))));
    pieces.sort_by_key(|(target, _)| target.components().count());
    for (target, piece) in pieces {
        match piece {
            Piece::Source(source, what) => {
                let attached = mounts::attach_making(&source.mount, target, source.is_folder);
                attached.stage_at(Stage::Root, what, target)?;
            }
            Piece::Memory(folder) => memory(folder).stage_at(Stage::Root, "mounting memory at", target)?,
        }
    }
    Ok(())
}

fn memory(folder: &MemoryFolder) -> std::io::Result<()> {
    mounts::make_folders(&folder.target)?;
    // What JSON holds is text.
    let target = folder.target.to_str().ok_or(ErrorKind::InvalidInput)?;
    mounts::memory(target, u64::from(folder.mib) * 1024, 0o1777, MountFlags::NOSUID | MountFlags::NODEV)?;
    if folder.access == Access::ReadOnly {
        mounts::add_flags(target, READ_ONLY, false)?;
    }
    Ok(())
}
