//! Who answers for a cgroup: so that one that is still empty can be told from one that was left behind.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::place::Places;
use super::{Cgroup, CgroupError, files, settle};

/// Locks on the folders of a cgroup. While they are held nobody else removes it; the kernel takes them back, whatever
/// their holder dies of.
#[derive(Debug, Default)]
pub(crate) struct Claim(Vec<OwnedFd>);

impl Claim {
    /// Makes a folder that is claimed from its first moment on.
    pub(super) fn make(&mut self, folder: &Path) -> Result<(), CgroupError> {
        settle(|| {
            files::make(folder)?;
            match lock(folder, FlockOperation::NonBlockingLockShared) {
                Ok(locked) if folder.is_dir() => self.0.push(locked),
                // Between the two steps somebody has taken it for one that was left behind.
                Ok(_) | Err(Errno::NOENT | Errno::WOULDBLOCK) => {
                    let _ = files::remove(folder);
                    return Err(CgroupError::busy(folder, "somebody removes the cgroup that was just made"));
                }
                // Where there are no locks, nobody can take it for that either.
                Err(_) => {}
            }
            Ok(())
        })
    }
}

impl Cgroup {
    /// Removes what launchers that were killed have left: every cgroup of this machine with a name that is meant which
    /// holds no process, for which nobody answers, and which this process may remove. Returns how many folders.
    ///
    /// # Errors
    /// `System` when it cannot be found out where cgroups are.
    pub fn remove_abandoned(is_meant: impl Fn(&str) -> bool) -> Result<usize, CgroupError> {
        let mut removed = 0;
        let mut folders = Places::mounts()?;
        while let Some(folder) = folders.pop() {
            // What cannot be read, or goes meanwhile, holds nothing to be removed.
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                match entry.file_name().to_str().is_some_and(&is_meant) {
                    true => removed += usize::from(remove_if_abandoned(&entry.path())),
                    false => folders.push(entry.path()),
                }
            }
        }
        Ok(removed)
    }
}

/// The kernel refuses to remove one with processes.
fn remove_if_abandoned(folder: &Path) -> bool {
    let claim = lock(folder, FlockOperation::NonBlockingLockExclusive);
    claim.is_ok_and(|_claim| fs::remove_dir(folder).is_ok())
}

fn lock(folder: &Path, how: FlockOperation) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&opened, how))?;
    Ok(opened)
}
