//! Removing trees: never through a link, and however deep they are.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    fs::{AtFlags, Mode, OFlags, chmodat, fchmod, fstat, openat, renameat, unlinkat},
    io::Errno,
};
use sandbox_core::{Result, SandboxError};

use super::paths::{names, os, unguessable};

/// How deep folders are emptied in place. One stays open for each step down, so what lies deeper is moved up first.
const DEPTH_IN_PLACE: usize = 24;
/// How often a folder is read again: enough for any tree, and an end where somebody goes on writing.
const ROUNDS_MAX: u32 = 100_000;

/// Removes a folder and everything in it. One that is gone already is fine.
pub(super) fn remove_tree(parent: impl AsFd, name: &[u8], shown: &str) -> Result<()> {
    let top = match open_anyway(&parent, name) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened.map_err(|errno| os(shown, errno))?,
    };
    let mut removal = Removal { top: &top, shown, prefix: unguessable(".removed-"), moved: 0 };
    let mut rounds = 0;
    // What was moved up is found by reading again.
    while !names(&top, shown)?.is_empty() {
        rounds += 1;
        if rounds > ROUNDS_MAX {
            return Err(SandboxError::invalid_state(format!("{shown} is filled faster than it can be emptied")));
        }
        removal.empty(&top, DEPTH_IN_PLACE)?;
    }
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(os(shown, errno)),
    }
}

struct Removal<'a> {
    top: &'a OwnedFd,
    shown: &'a str,
    prefix: String,
    moved: u64,
}

impl Removal<'_> {
    fn empty(&mut self, folder: &OwnedFd, depth_left: usize) -> Result<()> {
        let shown = self.shown;
        let failed = |errno| os(shown, errno);
        for name in names(folder, self.shown)? {
            if unlink(folder, &name).map_err(failed)? {
                continue;
            }
            match depth_left.checked_sub(1) {
                Some(depth_left) => {
                    self.empty(&open_anyway(folder, &name).map_err(failed)?, depth_left)?;
                    unlinkat(folder, name.as_slice(), AtFlags::REMOVEDIR).map_err(failed)?;
                }
                None => {
                    self.moved += 1;
                    let up = format!("{}-{}", self.prefix, self.moved);
                    renameat(folder, name.as_slice(), self.top, up.as_str()).map_err(failed)?;
                }
            }
        }
        Ok(())
    }
}

/// Removes a file, a link or an empty folder. False for a folder that is not empty.
fn unlink(folder: impl AsFd, name: &[u8]) -> Result<bool, Errno> {
    match unlinkat(&folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        // Linux says ISDIR for a folder.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    match unlinkat(&folder, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Opens a folder, after making it accessible where it is not.
fn open_anyway(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(&parent, name, flags, Mode::empty());
    let folder = match open() {
        Err(Errno::ACCESS) => {
            // Only without privilege, where what a link leads to is not this user's to change either.
            chmodat(&parent, name, Mode::from_raw_mode(0o700), AtFlags::empty())?;
            open()?
        }
        opened => opened?,
    };
    // Reading alone does not allow to remove what is in it.
    if fstat(&folder)?.st_mode & 0o700 != 0o700 {
        fchmod(&folder, Mode::from_raw_mode(0o700))?;
    }
    Ok(folder)
}
