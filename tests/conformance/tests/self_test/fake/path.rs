use std::path::{Component, Path, PathBuf};

use sandbox_core::{ByteString, Result, SandboxError};

use super::world::{FakeBox, World};
use crate::fault::Fault;

/// A path of a file call on this host. A relative one stays below the workdir.
pub(super) fn resolve(world: &World, sandbox: &FakeBox, remote: &ByteString) -> Result<PathBuf> {
    let path = remote.as_path();
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let mut depth = 0_i32;
    for component in path.components() {
        depth += if component == Component::ParentDir { -1 } else { 1 };
        if depth < 0 && !world.has(Fault::ParentStepsEscape) {
            return Err(SandboxError::invalid_input("path", "leaves the workdir"));
        }
    }
    if world.has(Fault::NamesMangled) {
        let name: String = remote.to_text_lossy().chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
        return Ok(sandbox.workdir.join(name));
    }
    if world.has(Fault::RelativePathBelowTmp) {
        return Ok(sandbox.home.join("elsewhere").join(path));
    }
    Ok(sandbox.workdir.join(path))
}

/// True if a link at this place (relative to the top of its tree) points out of the tree.
pub(super) fn leads_out(link: &Path, target: &Path) -> bool {
    if target.is_absolute() {
        return true;
    }
    let mut depth = link.components().count() as i32 - 1;
    for component in target.components() {
        match component {
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            _ => {}
        }
        if depth < 0 {
            return true;
        }
    }
    false
}
