//! Removing trees: never through a link, and however deep they are.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::{
    fs::{AtFlags, Mode, OFlags, chmod, openat, renameat, unlinkat},
    io::Errno,
};
use sandbox_core::{Result, SandboxError};

use crate::{
    error::os,
    folder::{folder_names, open_folder, random_hex},
};

/// Removes a folder and everything in it. One that is gone already is fine.
pub(crate) fn remove_tree(parent: impl AsFd, name: &[u8], shown: &str) -> Result<()> {
    let top = match open_anyway(&parent, name) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened.map_err(|errno| os(shown, errno))?,
    };
    empty(&top, shown)?;
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(os(shown, errno)),
    }
}

/// How deep folders are emptied in place. One stays open for each step down, so what lies deeper is moved up first.
const DEPTH_IN_PLACE: usize = 24;

/// How often a folder is read again: enough for any tree, and an end where somebody goes on writing.
const ROUNDS_MAX: u32 = 100_000;

/// Empties a folder.
fn empty(top: &OwnedFd, shown: &str) -> Result<()> {
    let prefix = format!(".removed-{}-", random_hex(6)?);
    let mut removal = Removal { top, shown, prefix, moved: 0 };
    // What was moved up is found by reading again.
    for _ in 0..ROUNDS_MAX {
        if folder_names(top, shown)?.is_empty() {
            return Ok(());
        }
        removal.empty(top, DEPTH_IN_PLACE)?;
    }
    Err(SandboxError::invalid_state(format!("{shown} is filled faster than it can be emptied")))
}

struct Removal<'a> {
    top: &'a OwnedFd,
    shown: &'a str,
    prefix: String,
    moved: u64,
}

impl Removal<'_> {
    fn empty(&mut self, folder: &OwnedFd, depth_left: usize) -> Result<()> {
        for name in folder_names(folder, self.shown)? {
            self.remove(folder, &name, depth_left).map_err(|step| match step {
                Step::Failed(errno) => os(self.shown, errno),
                Step::Inside(error) => error,
            })?;
        }
        Ok(())
    }

    fn remove(&mut self, folder: &OwnedFd, name: &[u8], depth_left: usize) -> Result<(), Step> {
        if unlink(folder, name)? {
            return Ok(());
        }
        let Some(depth_left) = depth_left.checked_sub(1) else {
            self.moved += 1;
            let up = format!("{}{}", self.prefix, self.moved);
            return Ok(move_anyway((folder, name), (self.top, up.as_bytes()))?);
        };
        self.empty(&open_anyway(folder, name)?, depth_left).map_err(Step::Inside)?;
        Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?)
    }
}

/// A step that failed, by itself or further down.
enum Step {
    Failed(Errno),
    Inside(SandboxError),
}

impl From<Errno> for Step {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
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
    let opened = open_folder(&parent, name);
    let folder = match opened {
        Err(Errno::ACCESS) => {
            allow(&parent, name)?;
            open_folder(&parent, name)?
        }
        opened => opened?,
    };
    // Reading alone does not allow to remove what is in it.
    let mode = rustix::fs::fstat(&folder)?.st_mode;
    if mode & 0o700 != 0o700 {
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o700))?;
    }
    Ok(folder)
}

fn move_anyway<A: AsFd, B: AsFd>(from: (A, &[u8]), to: (B, &[u8])) -> Result<(), Errno> {
    match renameat(&from.0, from.1, &to.0, to.1) {
        // A folder that gets another parent must be writable itself.
        Err(Errno::ACCESS) => {
            allow(&from.0, from.1)?;
            renameat(&from.0, from.1, &to.0, to.1)
        }
        moved => moved,
    }
}

/// Makes a folder accessible to this user, never through a link.
fn allow(parent: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(parent, name, flags, Mode::empty())?;
    // The mode of an O_PATH descriptor can be changed by this name only.
    chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), Mode::from_raw_mode(0o700))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::remove_tree;
    use crate::folder::host_folder;

    #[test]
    fn a_tree_goes_whatever_its_modes_and_what_links_lead_to_stays() {
        let temp = tempfile::tempdir().unwrap();
        let kept = temp.path().join("kept");
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("file"), "x").unwrap();
        let tree = temp.path().join("tree");
        let deep = tree.join("a/b/c/d");
        std::fs::create_dir_all(&deep).unwrap();
        for folder in [&tree, &tree.join("a"), &deep] {
            symlink(&kept, folder.join("link")).unwrap();
            symlink("/no/such", folder.join("dangling")).unwrap();
            std::fs::write(folder.join("file\n"), "x").unwrap();
        }
        for folder in ["a/b/c/d", "a/b/c", "a/b", "a"] {
            std::fs::set_permissions(tree.join(folder), std::fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(host_folder(temp.path()).unwrap(), b"tree", "tree").unwrap();
        assert!(!tree.exists());
        assert!(kept.join("file").exists());
        remove_tree(host_folder(temp.path()).unwrap(), b"tree", "tree").unwrap();
    }

    #[test]
    fn a_tree_deeper_than_any_path_goes() {
        let temp = tempfile::tempdir().unwrap();
        let parent = host_folder(temp.path()).unwrap();
        let mut folder = host_folder(temp.path()).unwrap();
        for _ in 0..3_000 {
            crate::folder::make_folder(&folder, b"down", None).unwrap();
            folder = crate::folder::open_folder(&folder, b"down").unwrap();
        }
        remove_tree(parent, b"down", "down").unwrap();
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    }
}
