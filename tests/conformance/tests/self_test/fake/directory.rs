use std::{
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use sandbox_core::{Result, SandboxError};

use super::{path::leads_out, world::World};
use crate::fault::Fault;

fn io<T>(end: std::io::Result<T>, what: &str) -> Result<T> {
    end.map_err(|error| SandboxError::io(what, error))
}

/// Every path below a folder, parents first, relative to it. Links are not followed.
fn walk(top: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut open) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = open.pop() {
        for entry in io(std::fs::read_dir(top.join(&folder)), "the folder")? {
            let path = folder.join(io(entry, "the folder")?.file_name());
            if io(top.join(&path).symlink_metadata(), "an entry")?.is_dir() {
                open.push(path.clone());
            }
            found.push(path);
        }
    }
    Ok(found)
}

/// Copies the contents of a folder. Nothing is written outside of the target.
pub(super) fn copy(world: &World, from: &Path, to: &Path, is_download: bool) -> Result<()> {
    let paths = walk(from)?;
    for path in &paths {
        let kind = io(from.join(path).symlink_metadata(), "an entry")?.file_type();
        let is_special = !kind.is_file() && !kind.is_dir() && !kind.is_symlink();
        if is_special && !world.has(Fault::SpecialFilesSkipped) {
            return Err(SandboxError::invalid_input("folder", "holds a special file"));
        }
        let is_hostile = kind.is_symlink() && leads_out(path, &io(from.join(path).read_link(), "a link")?);
        if is_download && is_hostile && !world.has(Fault::HostileLinksKept) {
            return Err(SandboxError::invalid_input("folder", "holds a link that leads out"));
        }
    }
    io(std::fs::create_dir_all(to), "the target folder")?;
    for path in &paths {
        let (source, target) = (from.join(path), to.join(path));
        let found = io(source.symlink_metadata(), "an entry")?;
        let old = target.symlink_metadata();
        let follows = world.has(Fault::LocalDirLinkFollowed) && target.is_dir();
        if old.is_ok_and(|old| !old.is_dir()) && !follows {
            io(std::fs::remove_file(&target), "the old entry")?;
        }
        if found.is_symlink() && world.has(Fault::UploadDirFollowsLinks) && !is_download {
            let _ = std::fs::copy(&source, &target);
        } else if found.is_symlink() {
            io(symlink(io(source.read_link(), "a link")?, &target), "the new link")?;
        } else if found.is_dir() {
            io(std::fs::create_dir_all(&target), "the new folder")?;
        } else if found.is_file() {
            io(std::fs::copy(&source, &target), "the new file")?;
            let mode = std::fs::Permissions::from_mode(found.permissions().mode() & 0o7777);
            io(std::fs::set_permissions(&target, mode), "the new file")?;
        }
    }
    Ok(())
}
