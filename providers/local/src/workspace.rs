//! The folder that holds the folders of sandboxes.

use std::{
    fs::DirBuilder,
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use rustix::process::geteuid;
use sandbox_core::{ErrorKind, Result, SandboxError};

use crate::{
    folder::{FileOwner, give_entry, host_folder},
    remove::remove_tree,
    user::is_privileged,
};

/// Who may list it: nobody else. Root's sandboxes may belong to other users, who must be able to pass through.
const ROOT_MODE: u32 = 0o700;
const ROOT_MODE_PRIVILEGED: u32 = 0o711;

/// Write permission of the group and of others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Holds the working folders of isolated sandboxes: to their users belong those, and not the way to them.
const INSIDE: &str = ".inside";

/// Behind the name of a working folder: what was written elsewhere in its sandbox.
const UPPER_SUFFIX: &str = "upper";

/// The folder for workspaces and records.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder if it is absent, and makes sure that it is this user's alone.
    pub(crate) fn prepare(&self) -> Result<()> {
        let mode = if is_privileged() { ROOT_MODE_PRIVILEGED } else { ROOT_MODE };
        if let Err(error) = DirBuilder::new().recursive(true).mode(mode).create(&self.0) {
            return Err(SandboxError::io(self.0.display(), error).context("the workspace root cannot be made"));
        }
        self.check()
    }

    /// Makes sure that the folder is this user's alone, so that nobody else can swap what is in it.
    pub(crate) fn check(&self) -> Result<()> {
        check_private(&self.0, "workspace_root")
    }

    /// The folder of one sandbox.
    pub(crate) fn workspace(&self, id: &str) -> PathBuf {
        self.0.join(id)
    }

    /// Makes the folder of one sandbox.
    pub(crate) fn make_workspace(&self, id: &str, owner: Option<FileOwner>) -> Result<PathBuf> {
        let path = self.workspace(id);
        let failed = |error: io::Error| SandboxError::io(path.display(), error);
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        give_entry(self.open()?, id.as_bytes(), owner).map_err(|errno| failed(errno.into()))?;
        Ok(path)
    }

    /// The working folder of an isolated sandbox.
    pub(crate) fn inside(&self, id: &str) -> PathBuf {
        self.0.join(INSIDE).join(id)
    }

    /// Where what an isolated sandbox with a system of its own writes to that is kept.
    pub(crate) fn upper(&self, id: &str) -> PathBuf {
        self.inside(id).with_extension(UPPER_SUFFIX)
    }

    /// Makes a folder that is one of those two.
    pub(crate) fn make_inside(&self, path: &Path) -> Result<()> {
        let make = |path: &Path, mode| DirBuilder::new().mode(mode).create(path);
        let made = match make(path, 0o755) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match make(&self.0.join(INSIDE), 0o700) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => make(path, 0o755),
            },
            made => made,
        };
        made.map_err(|error| SandboxError::io(path.display(), error))
    }

    /// Removes the folders of one sandbox and everything in them. Those that are gone already are fine.
    pub(crate) fn remove_workspace(&self, id: &str) -> Result<()> {
        let shown = format!("the workspace of {id}");
        let inside = self.0.join(INSIDE);
        for (folder, name) in [(&self.0, id), (&inside, id), (&inside, &format!("{id}.{UPPER_SUFFIX}"))] {
            match host_folder(folder) {
                Ok(folder) => remove_tree(folder, name.as_bytes(), &shown)?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn open(&self) -> Result<OwnedFd> {
        host_folder(&self.0)
    }
}

/// Makes sure that the folder of a setting is this user's alone.
pub(crate) fn check_private(path: &Path, key: &str) -> Result<()> {
    let found = std::fs::symlink_metadata(path).map_err(|error| SandboxError::io(path.display(), error))?;
    let problem = if !found.is_dir() {
        "is not a folder"
    } else if found.uid() != geteuid().as_raw() {
        "belongs to another user"
    } else if found.mode() & WRITABLE_BY_OTHERS != 0 {
        "is writable by other users"
    } else {
        return Ok(());
    };
    let message = format!("{} ({key}) {problem}", path.display());
    Err(SandboxError::new(ErrorKind::PermissionDenied, message)
        .with_field(key)
        .with_help(format!("set {key} to a folder of your own")))
}

/// Makes a folder that the caller named, with its parents, and tells which were made, outermost first. What was made
/// before a failure is removed.
pub(crate) fn make_workdir(path: &Path, owner: Option<FileOwner>) -> Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    let result = make_missing(path, owner, &mut made);
    if let Err(error) = result {
        unmake(&made);
        return Err(SandboxError::io(path.display(), error).context("the workdir cannot be made"));
    }
    Ok(made)
}

/// Removes folders that were made and are still empty.
pub(crate) fn unmake(made: &[PathBuf]) {
    for path in made.iter().rev() {
        // What is not empty has become somebody's.
        let _ = std::fs::remove_dir(path);
    }
}

fn make_missing(path: &Path, owner: Option<FileOwner>, made: &mut Vec<PathBuf>) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Some(parent) = path.parent() {
        make_missing(parent, owner, made)?;
    }
    match std::fs::create_dir(path) {
        Ok(()) => made.push(path.to_owned()),
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
        Err(error) => return Err(error),
    }
    match owner {
        Some(FileOwner { uid, gid }) => std::os::unix::fs::lchown(path, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use sandbox_core::ErrorKind;

    use super::{Root, make_workdir, unmake};

    #[test]
    fn a_root_that_others_can_write_to_or_that_is_a_link_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let open = temp.path().join("open");
        std::fs::create_dir(&open).unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(temp.path(), &link).unwrap();
        for mode in [0o770, 0o702] {
            std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Root::new(open.clone()).prepare().unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        assert_eq!(Root::new(link).prepare().unwrap_err().kind(), ErrorKind::PermissionDenied);
        let fresh = Root::new(temp.path().join("a/b"));
        fresh.prepare().unwrap();
        assert_eq!(std::fs::metadata(fresh.path()).unwrap().permissions().mode() & 0o066, 0);
    }

    #[test]
    fn a_workdir_that_cannot_be_made_leaves_no_parent_behind() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("file"), "x").unwrap();
        assert!(make_workdir(&temp.path().join("file/sub"), None).is_err());
        let long = temp.path().join("a/b").join("x".repeat(300));
        assert!(make_workdir(&long, None).is_err());
        assert!(!temp.path().join("a").exists());
        let made = make_workdir(&temp.path().join("a/b"), None).unwrap();
        assert_eq!(made.len(), 2);
        unmake(&made);
        assert!(!temp.path().join("a").exists());
    }
}
