//! Packs a tree: links as links, special files not at all.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, openat},
    io::Errno,
};
use sandbox_core::{FileKind, FileStat, Result, SandboxError};
use tar::{Builder, EntryType, Header};

use super::{
    paths::{Place, bad_path, names, os, split, stat},
    transfer::READ,
};

/// Folders in folders: each level that is packed holds a descriptor.
const DEPTH_MAX: usize = 256;

/// Packs what is at a place, and gives the output back if it still takes something.
pub(super) fn pack<W: Write>(output: W, place: &Place, file: OwnedFd, found: &FileStat) -> (Result<()>, Option<W>) {
    let mut packer = Packer { builder: Builder::new(output), shown: &place.shown };
    let packed = packer.pack(place, file, found).and_then(|()| packer.finish());
    (packed, packer.builder.into_inner().ok())
}

struct Packer<'a, W: Write> {
    builder: Builder<W>,
    shown: &'a str,
}

impl<W: Write> Packer<'_, W> {
    /// Packs the contents of a folder, or a file under its own name.
    fn pack(&mut self, place: &Place, file: OwnedFd, found: &FileStat) -> Result<()> {
        match found.kind {
            FileKind::Directory => self.folder(&file, &mut Vec::new(), 0),
            FileKind::File => {
                let name = split(&place.path).map_or(b"file".as_slice(), |(_, name)| name);
                self.file(file, name, found)
            }
            _ => Err(bad_path(self.shown, "is neither a folder nor a regular file")),
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.builder.finish().and_then(|()| self.builder.get_mut().flush()).map_err(|e| self.failed(e))
    }

    fn failed(&self, error: io::Error) -> SandboxError {
        SandboxError::io(format!("packing {}", self.shown), error)
    }

    fn folder(&mut self, folder: &OwnedFd, path: &mut Vec<u8>, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(bad_path(self.shown, "has too many folders in folders"));
        }
        for name in names(folder, self.shown)? {
            let found = match stat(folder, &name) {
                Err(Errno::NOENT) => continue,
                found => found.map_err(|errno| os(self.shown, errno))?,
            };
            let length = path.len();
            path.extend_from_slice(&name);
            self.entry(folder, &name, path, &found, depth)?;
            path.truncate(length);
        }
        Ok(())
    }

    fn entry(
        &mut self,
        folder: &OwnedFd,
        name: &[u8],
        path: &mut Vec<u8>,
        found: &FileStat,
        depth: usize,
    ) -> Result<()> {
        let failed = |errno| os(self.shown, errno);
        match found.kind {
            FileKind::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below = openat(folder, name, flags, Mode::empty()).map_err(failed)?;
                path.push(b'/');
                let mut header = header(found, EntryType::Directory, 0);
                self.append(&mut header, path, io::empty())?;
                self.folder(&below, path, depth + 1)
            }
            FileKind::File => {
                let file = openat(folder, name, READ | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
                self.file(file.map_err(failed)?, path, found)
            }
            FileKind::Symlink => {
                let mut header = header(found, EntryType::Symlink, 0);
                let target = found.link_target.as_ref().map_or(b"".as_slice(), |target| target.as_bytes());
                self.builder
                    .append_link(&mut header, as_path(path), as_path(target))
                    .map_err(|error| SandboxError::io(format!("packing {}", self.shown), error))
            }
            _ => Err(bad_path(String::from_utf8_lossy(path), "is a special file, which no archive takes out")),
        }
    }

    fn file(&mut self, file: OwnedFd, path: &[u8], found: &FileStat) -> Result<()> {
        let mut header = header(found, EntryType::Regular, found.size);
        // A file that shrinks meanwhile is filled up: the size is announced already.
        let contents = File::from(file).chain(io::repeat(0)).take(found.size);
        self.append(&mut header, path, contents)
    }

    fn append(&mut self, header: &mut Header, path: &[u8], contents: impl Read) -> Result<()> {
        let appended = self.builder.append_data(header, as_path(path), contents);
        appended.map_err(|error| self.failed(error))
    }
}

fn header(found: &FileStat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(found.mode);
    header.set_uid(found.uid.into());
    header.set_gid(found.gid.into());
    header.set_mtime(u64::try_from(found.modified_ms / 1000).unwrap_or(0));
    header.set_size(size);
    header
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
