//! Single files, in and out.

use std::{fs::File, path::Path};

use rustix::fs::OFlags;
use sandbox_agent_client::{FileTraits, NewFile, begin_host_file, kept_traits, open_host_file, regular_mode};
use sandbox_core::{ByteString, Result};

use crate::{
    copy::{Cancel, copy},
    paths::Make,
    sandbox::Sandbox,
};

/// Reading flags with which no kind of file makes `open` wait.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens a regular file of the sandbox for reading and gives its permission bits.
pub(crate) fn open_inside(sandbox: &Sandbox, path: &ByteString) -> Result<(File, u32)> {
    let place = sandbox.paths.place(path)?;
    let file = place.open(READ)?;
    let mode = regular_mode(&file, place.shown())?;
    Ok((file.into(), mode))
}

pub(crate) fn upload(sandbox: &Sandbox, local: &Path, remote: &ByteString, cancel: &Cancel) -> Result<()> {
    let (source, mode) = open_host_file(local)?;
    let local_shown = local.display().to_string();
    let place = sandbox.paths.place(remote)?;
    let owner = sandbox.user.file_owner();
    let target = place.target(Make { owner })?;
    let new = NewFile::begin(target.folder, target.name, place.shown())?;
    copy((&source, &local_shown), (new.file(), place.shown()), cancel)?;
    new.finish(FileTraits { mode, owner }, place.shown())
}

pub(crate) fn download(sandbox: &Sandbox, remote: &ByteString, local: &Path, cancel: &Cancel) -> Result<()> {
    let (source, mode) = open_inside(sandbox, remote)?;
    let local_shown = local.display().to_string();
    let new = begin_host_file(local)?;
    copy((&source, &remote.to_string()), (new.file(), &local_shown), cancel)?;
    new.finish(kept_traits(mode), &local_shown)
}
