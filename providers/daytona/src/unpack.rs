//! An archive from a sandbox becomes a folder of this host. What it holds is hostile.
//!
//! It is unpacked into a new folder of our own, links last, so that nothing is ever written through a link of it. Then what
//! is there is moved to its place, never through a link that was there before.

use std::{
    fs,
    io::{self, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
};

use sandbox_core::{Result, SandboxError};
use tar::{Archive, EntryType};

use crate::folders::MAX_ENTRIES;

fn about(path: &Path) -> impl FnOnce(io::Error) -> SandboxError {
    let path = path.display().to_string();
    move |error| SandboxError::io(path, error)
}

fn refused(path: &Path, why: &str) -> SandboxError {
    SandboxError::invalid_input("path", format!("{} {why}", path.display().to_string().escape_debug()))
}

/// Where something goes below a folder: down only.
fn below(path: &Path) -> Result<PathBuf> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => return Err(refused(path, "leads out of the folder")),
        }
    }
    Ok(clean)
}

/// Unpacks an archive into a folder, which is made if absent.
pub(crate) fn unpack(archive: &Path, target: &Path) -> Result<()> {
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(about(parent))?;
    let fresh = tempfile::Builder::new().prefix(".sandbox-").tempdir_in(parent).map_err(about(parent))?;
    let root = fresh.path().canonicalize().map_err(about(fresh.path()))?;
    let mut links = Vec::new();
    let file = fs::File::open(archive).map_err(about(archive))?;
    let mut archive = Archive::new(BufReader::new(file));
    let broken = |error| SandboxError::io("the folder's archive", error);
    for (index, entry) in archive.entries().map_err(broken)?.enumerate() {
        let mut entry = entry.map_err(broken)?;
        if index >= MAX_ENTRIES {
            return Err(SandboxError::invalid_input("path", format!("has more than {MAX_ENTRIES} entries")));
        }
        let path = below(&entry.path().map_err(broken)?)?;
        let at = root.join(&path);
        let mode = entry.header().mode().unwrap_or(0o644) & 0o777 & !0o022;
        let target = entry.link_name().map_err(broken)?.map(std::borrow::Cow::into_owned);
        match (entry.header().entry_type(), target) {
            (EntryType::Directory, _) => fs::create_dir_all(&at).map_err(about(&path))?,
            (EntryType::Regular | EntryType::Continuous, _) => {
                make_parents(&at, &path)?;
                let mut out = fs::File::create_new(&at).map_err(about(&path))?;
                io::copy(&mut entry, &mut out).map_err(about(&path))?;
                out.set_permissions(fs::Permissions::from_mode(mode)).map_err(about(&path))?;
            }
            // A second name of a file that came before: a copy.
            (EntryType::Link, Some(first)) => {
                make_parents(&at, &path)?;
                fs::copy(root.join(below(&first)?), &at).map_err(about(&path))?;
            }
            (EntryType::Symlink, Some(target)) => links.push((path, target)),
            _ => return Err(refused(&path, "is neither a file, a folder nor a link")),
        }
    }
    for (path, target) in &links {
        make_parents(&root.join(path), path)?;
        symlink(target, root.join(path)).map_err(about(path))?;
    }
    for (path, target) in &links {
        check_link(&root, path, target)?;
    }
    fs::create_dir_all(target).map_err(about(target))?;
    settle(&root, target)
}

fn make_parents(at: &Path, path: &Path) -> Result<()> {
    let parent = at.parent().ok_or_else(|| refused(path, "has no folder"))?;
    fs::create_dir_all(parent).map_err(about(path))
}

/// A link must stay within the folder, through all other links.
fn check_link(root: &Path, path: &Path, target: &Path) -> Result<()> {
    let out = || refused(path, "is a link that leads out of the folder");
    if target.is_absolute() {
        return Err(out());
    }
    if let Ok(real) = root.join(path).canonicalize() {
        return if real.starts_with(root) { Ok(()) } else { Err(out()) };
    }
    // It leads nowhere, as yet: it may climb first and go down then, within the folder.
    let depth = path.components().count() - 1;
    let climbs = target.components().take_while(|part| !matches!(part, Component::Normal(_)));
    let climbs = climbs.filter(|part| *part == Component::ParentDir).count();
    let falls_back = target.components().skip_while(|part| !matches!(part, Component::Normal(_)));
    let falls_back = falls_back.filter(|part| *part == Component::ParentDir).count();
    if climbs > depth || falls_back > 0 { Err(out()) } else { Ok(()) }
}

/// Moves what is in one folder into another, over what is there.
fn settle(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).map_err(about(from))? {
        let entry = entry.map_err(about(from))?;
        let target = to.join(entry.file_name());
        let there = fs::symlink_metadata(&target).ok();
        let is_folder = entry.file_type().map_err(about(&target))?.is_dir();
        match there {
            Some(there) if is_folder && there.is_dir() => settle(&entry.path(), &target)?,
            Some(_) if is_folder => return Err(refused(&target, "is there already and is no folder")),
            Some(there) if there.is_dir() => return Err(refused(&target, "is there already and is a folder")),
            _ => fs::rename(entry.path(), &target).map_err(about(&target))?,
        }
    }
    Ok(())
}
