//! Copying the contents of one file, and the file that appears in one step when it is whole.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, fchmod, fchown, fstat, openat, renameat, statat, unlinkat},
    io::Errno,
    process::{Gid, Uid},
};
use sandbox_core::{Result, SandboxError};
use tokio::sync::watch;

use crate::{
    error::{bad_path, not_open, os},
    fate::Fate,
    folder::random_hex,
    user::FileOwner,
};

/// How much is copied between two looks at whether anybody still wants it.
const STEP_BYTES: u64 = 8 * 1024 * 1024;

/// Tells work on another thread that it is not wanted any more.
#[derive(Clone, Debug)]
pub(crate) struct Cancel {
    pub(crate) id: String,
    pub(crate) fate: watch::Receiver<Fate>,
    pub(crate) is_dropped: Arc<AtomicBool>,
}

impl Cancel {
    pub(crate) fn check(&self) -> Result<()> {
        match *self.fate.borrow() {
            Fate::Open if self.is_dropped.load(Ordering::Relaxed) => Err(SandboxError::invalid_state("cancelled")),
            Fate::Open => Ok(()),
            fate => Err(not_open(&self.id, fate)),
        }
    }
}

/// Copies to the end of the source, by the kernel alone where it can. Both are named in errors.
pub(crate) fn copy(from: (&File, &str), to: (&File, &str), cancel: &Cancel) -> Result<u64> {
    let mut total = 0;
    loop {
        cancel.check()?;
        let mut to_file = to.0;
        let copied = io::copy(&mut from.0.take(STEP_BYTES), &mut to_file)
            .map_err(|error| SandboxError::io(format!("copying {} to {}", from.1, to.1), error))?;
        total += copied;
        // Only the end of the source gives less than was asked for.
        if copied < STEP_BYTES {
            return Ok(total);
        }
    }
}

/// Checks that an open file is a regular one, and gives its permission bits.
pub(crate) fn regular_mode(file: impl AsFd, shown: &str) -> Result<u32> {
    let stat = fstat(file).map_err(|errno| os(shown, errno))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(stat.st_mode & 0o7777),
        FileType::Directory => Err(bad_path(shown, "is a folder, not a regular file")),
        _ => Err(bad_path(shown, "is not a regular file")),
    }
}

/// A file that gets its name in one step, when it is whole. Dropped before that, it leaves nothing.
pub(crate) struct NewFile {
    file: File,
    folder: OwnedFd,
    name: Vec<u8>,
    temporary: Option<String>,
}

/// The mode and owner of a new file. No owner: this process's user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    pub(crate) mode: u32,
    pub(crate) owner: Option<FileOwner>,
}

impl NewFile {
    /// Begins a file with this name in a folder. Refused when something is there that is not a regular file.
    pub(crate) fn begin(folder: OwnedFd, name: Vec<u8>, shown: &str) -> Result<Self> {
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

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn write(&mut self, data: &[u8], shown: &str) -> Result<()> {
        self.file.write_all(data).map_err(|error| SandboxError::io(shown, error))
    }

    /// Gives the file its owner, mode and name.
    pub(crate) fn finish(mut self, traits: Traits, shown: &str) -> Result<()> {
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
