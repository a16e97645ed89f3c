//! Making, reading and naming entries of folders.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, chownat, fstat, mkdirat, openat, readlinkat, statat},
    io::Errno,
    process::{Gid, Uid},
};
use sandbox_core::{ByteString, FileKind, FileStat, Result, SandboxError};

use crate::error::os;

/// How many entries are read of one folder, or copied with one tree.
pub const MAX_ENTRIES: usize = 1_000_000;

/// Owner and group of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOwner {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

/// Makes a folder for an owner; without one it is this process's user's. One that is there already stays as it is.
///
/// # Errors
/// What the system refuses with.
pub fn make_folder(parent: impl AsFd, name: &[u8], owner: Option<FileOwner>) -> Result<(), Errno> {
    match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => give_entry(parent, name, owner),
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Gives an entry to an owner, never through a link.
///
/// # Errors
/// What the system refuses with.
pub fn give_entry(parent: impl AsFd, name: &[u8], owner: Option<FileOwner>) -> Result<(), Errno> {
    let Some(FileOwner { uid, gid }) = owner else { return Ok(()) };
    chownat(parent, name, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)
}

/// Opens a folder of this host that the caller named, to open things in it.
///
/// # Errors
/// `NotFound`, `PermissionDenied`, or what else the system refuses with.
pub fn host_folder(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|errno| os(path.display(), errno))
}

/// Opens a folder of a folder for reading, never through a link.
///
/// # Errors
/// What the system refuses with.
pub fn open_folder(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// The names in a folder, sorted, without `.` and `..`. `folder` must be open for reading.
///
/// # Errors
/// `Exhausted` for more than [`MAX_ENTRIES`], or what the system refuses with.
pub fn folder_names(folder: impl AsFd, shown: &str) -> Result<Vec<Vec<u8>>> {
    let failed = |errno| os(shown, errno);
    let mut names = Vec::new();
    for entry in Dir::read_from(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
        if names.len() > MAX_ENTRIES {
            return Err(too_many_entries(shown));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The refusal of more entries than [`MAX_ENTRIES`].
pub fn too_many_entries(shown: &str) -> SandboxError {
    SandboxError::exhausted(format!("{shown} holds more than {MAX_ENTRIES} entries"))
}

/// What an entry is, never through a link. The empty name is `parent` itself.
///
/// # Errors
/// What the system refuses with.
pub fn entry_stat(parent: impl AsFd, name: &[u8]) -> Result<FileStat, Errno> {
    let stat = match name {
        [] => fstat(&parent)?,
        name => statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?,
    };
    let kind = entry_kind(&stat);
    let link_target = match kind {
        FileKind::Symlink => Some(ByteString::new(readlinkat(&parent, name, Vec::new())?.into_bytes())),
        _ => None,
    };
    Ok(FileStat {
        kind,
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_ms: stat.st_mtime * 1000 + (stat.st_mtime_nsec / 1_000_000) as i64,
        link_target,
    })
}

/// What kind of entry the system says it is.
pub fn entry_kind(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

/// The kernel gives so many random bytes or none.
const RANDOM_WHOLE: usize = 256;

/// `2 * count` random hexadecimal digits.
///
/// # Errors
/// When the system has no random bytes.
pub fn random_hex(count: usize) -> Result<String> {
    let mut bytes = vec![0; count];
    // Whole at once for as few as a name has.
    for chunk in bytes.chunks_mut(RANDOM_WHOLE) {
        rustix::rand::getrandom(&mut *chunk, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| SandboxError::io("random bytes", errno.into()))?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
