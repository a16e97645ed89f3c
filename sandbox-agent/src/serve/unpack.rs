//! Unpacks an archive. It is hostile: nothing is made outside of its folder.

use std::{
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, Mode, OFlags, ResolveFlags, Timespec, Timestamps, chmodat, futimens, linkat, openat, symlinkat,
        unlinkat,
    },
    io::Errno,
};
use sandbox_core::{Result, SandboxError};
use tar::{Archive, EntryType};

use super::paths::{
    Entry, MAX_ENTRIES, NewFile, Owner, Place, bad_path, give, make_folder, make_folders, open_at, os, split,
};

/// Unpacks into a folder, which is made if absent. Links that lead out of it are made, and never followed.
pub(super) fn unpack(place: &Place, owner: Owner, input: impl Read) -> Result<()> {
    let base = make_folders(&place.path, owner).map_err(place.failed())?;
    let mut archive = Archive::new(input);
    let mut folders = Vec::new();
    let broken = |error| SandboxError::invalid_input("archive", "cannot be read").with_source(error);
    for (index, entry) in archive.entries().map_err(broken)?.enumerate() {
        let mut entry = entry.map_err(broken)?;
        if index > MAX_ENTRIES {
            return Err(SandboxError::exhausted(format!("the archive holds more than {MAX_ENTRIES} entries")));
        }
        let path = clean(&entry.path_bytes())?;
        let header = entry.header();
        let mode = header.mode().map_err(broken)? & 0o7777;
        let kind = header.entry_type();
        let unpacker = Unpacker { base: &base, owner };
        let shown = String::from_utf8_lossy(&path).into_owned();
        match kind {
            EntryType::XGlobalHeader => {}
            EntryType::Directory => {
                unpacker.folder(&path).map_err(|errno| os(&shown, errno))?;
                folders.push((path, mode));
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let mtime = header.mtime().unwrap_or(0);
                unpacker.file(&path, &shown, mode, mtime, &mut entry)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or_else(|| bad_path(&shown, "is a link to nowhere"))?;
                unpacker.symlink(&path, &target).map_err(|errno| os(&shown, errno))?;
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().ok_or_else(|| bad_path(&shown, "is a link to nowhere"))?;
                unpacker.link(&path, &clean(&target)?).map_err(|errno| os(&shown, errno))?;
            }
            _ => return Err(bad_path(&shown, "is a special file, which no archive brings in")),
        }
    }
    // Last, so that a folder that may not be written can be filled; the innermost first.
    for (path, mode) in folders.into_iter().rev().filter(|(path, _)| !path.is_empty()) {
        let shown = String::from_utf8_lossy(&path);
        let set = || {
            let (parent, name) = split(&path).ok_or(Errno::INVAL)?;
            let parent = below(&base, parent)?;
            // A folder of this name, not what a link of it leads to.
            let folder = openat(
                &parent,
                name,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            );
            match folder {
                Ok(folder) => rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode)),
                Err(Errno::ACCESS) => chmodat(&parent, name, Mode::from_raw_mode(mode), AtFlags::empty()),
                Err(errno) => Err(errno),
            }
        };
        set().map_err(|errno: Errno| os(&shown, errno))?;
    }
    Ok(())
}

/// A path of an archive: relative, and without a way up.
fn clean(path: &[u8]) -> Result<Vec<u8>> {
    let shown = || String::from_utf8_lossy(path).into_owned();
    if path.starts_with(b"/") || path.contains(&0) {
        return Err(bad_path(shown(), "is not a relative path, in an archive"));
    }
    let mut clean = Vec::new();
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if part == b".." {
            return Err(bad_path(shown(), "leads out of its archive"));
        }
        if !clean.is_empty() {
            clean.push(b'/');
        }
        clean.extend_from_slice(part);
    }
    Ok(clean)
}

/// Opens a folder below the base: no link leads out.
fn below(base: &OwnedFd, way: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    open_at(
        base.as_fd(),
        if way.is_empty() { b"." } else { way },
        flags,
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
    )
}

struct Unpacker<'a> {
    base: &'a OwnedFd,
    owner: Owner,
}

impl Unpacker<'_> {
    /// Makes a folder and those above it, all below the base.
    fn folder(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        match below(self.base, path) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        let mut folder = below(self.base, b".")?;
        let mut end = 0;
        for part in path.split(|byte| *byte == b'/') {
            end += part.len() + 1;
            let so_far = &path[..end - 1];
            folder = match below(self.base, so_far) {
                Err(Errno::NOENT) => {
                    make_folder(&folder, part, self.owner)?;
                    below(self.base, so_far)?
                }
                opened => opened?,
            };
        }
        Ok(folder)
    }

    fn entry(&self, path: &[u8]) -> Result<Entry, Errno> {
        let (parent, name) = split(path).ok_or(Errno::INVAL)?;
        Ok(Entry { folder: self.folder(if parent == b"." { b"" } else { parent })?, name: name.to_vec() })
    }

    fn file(&self, path: &[u8], shown: &str, mode: u32, mtime: u64, contents: &mut impl Read) -> Result<()> {
        let new = NewFile::begin(self.entry(path).map_err(|errno| os(shown, errno))?, shown)?;
        io::copy(contents, &mut new.file()).map_err(|error| SandboxError::io(shown, error))?;
        let time = Timespec { tv_sec: i64::try_from(mtime).unwrap_or(0), tv_nsec: 0 };
        futimens(new.file(), &Timestamps { last_access: time, last_modification: time }).map_err(|e| os(shown, e))?;
        new.finish(mode, self.owner, shown)
    }

    fn symlink(&self, path: &[u8], target: &[u8]) -> Result<(), Errno> {
        let entry = self.entry(path)?;
        replace(&entry, || symlinkat(target, &entry.folder, entry.name.as_slice()))?;
        give(&entry.folder, &entry.name, self.owner)
    }

    fn link(&self, path: &[u8], target: &[u8]) -> Result<(), Errno> {
        let (parent, name) = split(target).ok_or(Errno::INVAL)?;
        let source = below(self.base, parent)?;
        let entry = self.entry(path)?;
        // A link to a link is a link to that link: it is not followed.
        replace(&entry, || linkat(&source, name, &entry.folder, entry.name.as_slice(), AtFlags::empty()))
    }
}

/// Makes an entry in the place of a file or link that may be there.
fn replace(entry: &Entry, make: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    match make() {
        Err(Errno::EXIST) => {
            unlinkat(&entry.folder, entry.name.as_slice(), AtFlags::empty())?;
            make()
        }
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn no_path_of_an_archive_leads_up_or_starts_at_the_root() {
        assert_eq!(clean(b"./a//b/.").unwrap(), b"a/b");
        assert_eq!(clean(b"./").unwrap(), b"");
        for bad in [&b"/a"[..], b"..", b"a/../b", b"a/..", b"a\0b"] {
            clean(bad).unwrap_err();
        }
    }
}
