//! One open file: what is read, checked and loaded is the same.

use std::{
    fs::{File, Metadata},
    io::Read,
    os::unix::fs::MetadataExt,
    path::Path,
};

use rustix::fs::{Mode, OFlags};
use sandbox_core::{Result, SandboxError};

use super::trust;
use crate::mismatch::Mismatch;

/// More than any plugin; less than what makes the host run out of memory.
const MAX_PLUGIN_BYTES: u64 = 512 * 1024 * 1024;

/// Which file, in which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl From<&Metadata> for FileStamp {
    fn from(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.size(),
            modified_s: found.mtime(),
            modified_ns: found.mtime_nsec(),
        }
    }
}

/// Opens a regular file that nobody else may write. Never waits: a pipe or a device is looked at, but not opened for
/// long.
pub(crate) fn open(resolved: &Path, asked: &Path, euid: u32) -> Result<(File, FileStamp)> {
    // Opening a device can do something; so the kind is asked before as well as after.
    let before = std::fs::symlink_metadata(resolved).map_err(|error| trust::io_error(asked, &error))?;
    check_regular(&before, asked)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let descriptor =
        rustix::fs::open(resolved, flags, Mode::empty()).map_err(|error| trust::io_error(asked, &error.into()))?;
    let file = File::from(descriptor);
    let found = file.metadata().map_err(|error| trust::io_error(asked, &error))?;
    check_regular(&found, asked)?;
    trust::check(resolved, &found, euid).map_err(|mismatch| mismatch.at(asked))?;
    if found.len() > MAX_PLUGIN_BYTES {
        return Err(size_error(asked, found.len()));
    }
    Ok((file, FileStamp::from(&found)))
}

fn check_regular(found: &Metadata, asked: &Path) -> Result<()> {
    let kind = found.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let found = if kind.is_dir() { "a folder" } else { "a pipe, socket, device or link" };
    Err(Mismatch::new("file", "a regular file", found).at(asked))
}

fn size_error(asked: &Path, found: u64) -> SandboxError {
    Mismatch::new("file", format!("at most {MAX_PLUGIN_BYTES} bytes"), format!("{found}")).at(asked)
}

/// Reads the whole file, as many bytes as it had when it was opened.
pub(crate) fn read(mut file: &File, stamp: &FileStamp, asked: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(stamp.bytes).unwrap_or_default());
    file.by_ref().take(MAX_PLUGIN_BYTES + 1).read_to_end(&mut bytes).map_err(|error| trust::io_error(asked, &error))?;
    check_unchanged(file, stamp, asked)?;
    if bytes.len() as u64 != stamp.bytes {
        return Err(changed(asked));
    }
    Ok(bytes)
}

/// Checks that the open file is still what it was.
pub(crate) fn check_unchanged(file: &File, stamp: &FileStamp, asked: &Path) -> Result<()> {
    let found = file.metadata().map_err(|error| trust::io_error(asked, &error))?;
    if FileStamp::from(&found) == *stamp { Ok(()) } else { Err(changed(asked)) }
}

fn changed(asked: &Path) -> SandboxError {
    Mismatch::new("unchanged", "the file to stay as it was while it was looked at", "that it was written to")
        .with_help("replace a plugin by writing a new file and renaming it, as cargo xtask install does")
        .at(asked)
}
