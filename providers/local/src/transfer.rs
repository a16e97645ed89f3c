//! Single files, in and out.

use std::{
    fs::{File, OpenOptions},
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::Path,
};

use rustix::fs::OFlags;
use sandbox_core::{ByteString, Result, SandboxError};

use crate::{
    copy::{Cancel, NewFile, Traits, copy, regular_mode},
    error::bad_path,
    paths::{Make, host_folder},
    sandbox::Sandbox,
};

/// Set-user-id, set-group-id and sticky bits: nothing that comes out of a sandbox keeps them.
pub(crate) const SPECIAL_BITS: u32 = 0o7000;

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
    let (source, mode) = open_host(local)?;
    let local_shown = local.display().to_string();
    let place = sandbox.paths.place(remote)?;
    let owner = sandbox.user.file_owner();
    let target = place.target(Make { owner })?;
    let new = NewFile::begin(target.folder, target.name, place.shown())?;
    copy((&source, &local_shown), (new.file(), place.shown()), cancel)?;
    new.finish(Traits { mode, owner }, place.shown())
}

pub(crate) fn download(sandbox: &Sandbox, remote: &ByteString, local: &Path, cancel: &Cancel) -> Result<()> {
    let (source, mode) = open_inside(sandbox, remote)?;
    let local_shown = local.display().to_string();
    let new = begin_on_host(local)?;
    copy((&source, &remote.to_string()), (new.file(), &local_shown), cancel)?;
    new.finish(Traits { mode: mode & !SPECIAL_BITS, owner: None }, &local_shown)
}

/// Opens a regular file of this host that the caller named. Links are the caller's own and are followed.
pub(crate) fn open_host(local: &Path) -> Result<(File, u32)> {
    let shown = local.display().to_string();
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(local).map_err(|error| {
        match error.raw_os_error() {
            // A socket.
            Some(6) => bad_path(&shown, "is not a regular file"),
            _ => SandboxError::io(&shown, error),
        }
    })?;
    let mode = regular_mode(&file, &shown)?;
    Ok((file, mode))
}

/// Begins a file of this host; its parent folders are made. A file, or a link to one, may be replaced and nothing else.
pub(crate) fn begin_on_host(local: &Path) -> Result<NewFile> {
    let shown = local.display().to_string();
    let name = local.file_name().filter(|_| !local.as_os_str().as_bytes().ends_with(b"/"));
    let name = name.ok_or_else(|| bad_path(&shown, "does not name a file"))?;
    if std::fs::metadata(local).is_ok_and(|found| !found.is_file()) {
        return Err(bad_path(&shown, "is there and is not a regular file"));
    }
    let parent = match local.parent() {
        None => Path::new("."),
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    std::fs::create_dir_all(parent).map_err(|error| SandboxError::io(parent.display(), error))?;
    NewFile::begin(host_folder(parent)?, name.as_bytes().to_vec(), &shown)
}
