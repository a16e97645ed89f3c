//! The file that appears in one step when it is whole.

use std::{
    fs::File,
    io::Write,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, fchmod, fchown, fstat, openat, renameat, statat, unlinkat},
    io::Errno,
    process::{Gid, Uid},
};
use sandbox_core::{Result, SandboxError};

use crate::{
    error::{bad_path, os},
    folder::{FileOwner, random_hex},
};

/// Checks that an open file is a regular one, and gives its permission bits.
///
/// # Errors
/// `InvalidInput` for anything else.
pub fn regular_mode(file: impl AsFd, shown: &str) -> Result<u32> {
    let stat = fstat(file).map_err(|errno| os(shown, errno))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(stat.st_mode & 0o7777),
        FileType::Directory => Err(bad_path(shown, "is a folder, not a regular file")),
        _ => Err(bad_path(shown, "is not a regular file")),
    }
}

/// A file that gets its name in one step, when it is whole. Dropped before that, it leaves nothing.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    folder: OwnedFd,
    name: Vec<u8>,
    temporary: Option<String>,
}

/// The mode and owner of a new file.
#[derive(Clone, Copy, Debug)]
pub struct FileTraits {
    /// Permission bits, the special ones among them.
    pub mode: u32,
    /// None: this process's user.
    pub owner: Option<FileOwner>,
}

impl NewFile {
    /// Begins a file with this name in a folder.
    ///
    /// # Errors
    /// `InvalidInput` when something is there that is not a regular file, and what the system refuses with.
    pub fn begin(folder: OwnedFd, name: Vec<u8>, shown: &str) -> Result<Self> {
        match statat(&folder, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)
            .map(|stat| FileType::from_raw_mode(stat.st_mode))
        {
            Ok(FileType::RegularFile | FileType::Symlink) | Err(Errno::NOENT) => {}
            Ok(FileType::Directory) => return Err(bad_path(shown, "is a folder, not a regular file")),
            Ok(_) => return Err(bad_path(shown, "is there and is not a regular file")),
            Err(errno) => return Err(os(shown, errno)),
        }
        let temporary = format!(".sandbox-{}.part", random_hex(6)?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            openat(&folder, temporary.as_str(), flags, Mode::from_raw_mode(0o600)).map_err(|errno| os(shown, errno))?;
        Ok(Self { file: file.into(), folder, name, temporary: Some(temporary) })
    }

    /// Open for writing alone.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes the next part.
    ///
    /// # Errors
    /// `Exhausted` where there is no room, and what else the system refuses with.
    pub fn write(&mut self, data: &[u8], shown: &str) -> Result<()> {
        self.file.write_all(data).map_err(|error| SandboxError::io(shown, error))
    }

    /// Gives the file its owner, mode and name.
    ///
    /// # Errors
    /// What the system refuses with; nothing is left of it then.
    pub fn finish(mut self, traits: FileTraits, shown: &str) -> Result<()> {
        let failed = |errno| os(shown, errno);
        if let Some(FileOwner { uid, gid }) = traits.owner {
            fchown(&self.file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).map_err(failed)?;
        }
        // After the owner: a change of owner clears bits.
        fchmod(&self.file, Mode::from_raw_mode(traits.mode)).map_err(failed)?;
        if let Some(temporary) = &self.temporary {
            renameat(&self.folder, temporary.as_str(), &self.folder, self.name.as_slice()).map_err(failed)?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The failure that led here is what is told.
            let _ = unlinkat(&self.folder, temporary.as_str(), AtFlags::empty());
        }
    }
}
