//! From a path of the sandbox to a file of this machine.
//!
//! Relative paths, and absolute ones below the working folder, are opened with `openat2` below that folder, so that
//! neither `..` nor a link leads out, whatever a command does to the folder meanwhile. Other absolute paths are this
//! machine's own. Links of `/proc` that lead to open files are never followed.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, open, openat2, readlinkat, statat},
    io::Errno,
};
use sandbox_core::{ByteString, Result, SandboxError};

use crate::{
    error::{bad_path, os},
    folder::{FileOwner, make_folder},
};

/// How often a link at the end of a path is followed, as in the kernel.
const MAX_LINKS: usize = 40;

/// How often a lookup that another process disturbed is tried again.
const MAX_DISTURBANCES: usize = 16;

/// How the working folder's paths are read.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    workdir: PathBuf,
    /// The working folder as it was given, when that leads through links.
    alias: Option<PathBuf>,
}

impl Paths {
    pub(crate) fn new(workdir: PathBuf, given: Option<PathBuf>) -> Self {
        let alias = given.filter(|given| *given != workdir);
        Self { workdir, alias }
    }

    /// The working folder.
    pub(crate) fn workdir(&self) -> &Path {
        &self.workdir
    }

    /// Where a path leads.
    pub(crate) fn place(&self, path: &ByteString) -> Result<Place<'_>> {
        let bytes = path.as_bytes();
        if bytes.is_empty() || bytes.contains(&0) {
            let why = if bytes.is_empty() { "must not be empty" } else { "must not contain a NUL byte" };
            return Err(SandboxError::invalid_input("path", why));
        }
        let (start, rest, is_confined) = self.interpret(bytes);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let start = open(start, flags, Mode::empty()).map_err(|errno| os("the working folder", errno))?;
        Ok(Place { paths: self, start, way: trim_front(rest), shown: path.to_string(), is_confined })
    }

    fn interpret<'a>(&'a self, path: &'a [u8]) -> (&'a Path, &'a [u8], bool) {
        if path.first() != Some(&b'/') {
            return (&self.workdir, path, true);
        }
        let below = |folder: &Path| {
            let rest = path.strip_prefix(folder.as_os_str().as_bytes())?;
            matches!(rest.first(), None | Some(b'/')).then_some(rest)
        };
        // A working folder that is `/` confines nothing.
        let rest = below(&self.workdir).or_else(|| below(self.alias.as_deref()?));
        match rest.filter(|_| self.workdir != Path::new("/")) {
            Some(rest) => (&self.workdir, rest, true),
            None => (Path::new("/"), path, false),
        }
    }
}

/// The way without slashes in front, never empty.
fn trim_front(way: &[u8]) -> Vec<u8> {
    let slashes = way.iter().take_while(|byte| **byte == b'/').count();
    match &way[slashes..] {
        [] => b".".to_vec(),
        rest => rest.to_vec(),
    }
}

/// A folder to start from and the way from there.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    paths: &'a Paths,
    start: OwnedFd,
    way: Vec<u8>,
    shown: String,
    is_confined: bool,
}

/// An entry of a folder, which need not be there.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) folder: OwnedFd,
    pub(crate) name: Vec<u8>,
}

impl Place<'_> {
    /// The path as the caller wrote it.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Opens what is there. The descriptor is not passed on to commands.
    pub(crate) fn open(&self, flags: OFlags) -> Result<OwnedFd> {
        self.try_open(&self.way, flags).map_err(|errno| self.refusal(errno))
    }

    /// The entry itself: a link at the end is not followed. With `make`, missing parent folders are made, for this owner.
    pub(crate) fn entry(&self, make: Option<Make>) -> Result<Entry> {
        let (parent, name) =
            split(&self.way).ok_or_else(|| bad_path(&self.shown, "does not name an entry of a folder"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let folder = match (self.try_open(parent, flags), make) {
            (Err(Errno::NOENT), Some(make)) => self.make_folders(parent, make)?,
            (opened, _) => opened.map_err(|errno| self.refusal(errno))?,
        };
        Ok(Entry { folder, name: name.to_vec() })
    }

    /// The entry to write to: a link at the end is followed, as a program would, within the same bounds.
    pub(crate) fn target(&self, make: Make) -> Result<Entry> {
        if self.way.ends_with(b"/") {
            return Err(bad_path(&self.shown, "names a folder, not a file"));
        }
        let mut entry = self.entry(Some(make))?;
        let mut way = self.way.clone();
        for _ in 0..MAX_LINKS {
            match statat(&entry.folder, entry.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {}
                Ok(_) | Err(Errno::NOENT) => return Ok(entry),
                Err(errno) => return Err(self.refusal(errno)),
            }
            let link = readlinkat(&entry.folder, entry.name.as_slice(), Vec::new())
                .map_err(|errno| self.refusal(errno))?
                .into_bytes();
            let next = self.follow(&way, link)?;
            entry = next.entry(None)?;
            way = next.way;
        }
        Err(self.refusal(Errno::LOOP))
    }

    /// Where a link leads that is at the end of `way`.
    fn follow(&self, way: &[u8], link: Vec<u8>) -> Result<Place<'_>> {
        let path = if link.starts_with(b"/") {
            link
        } else {
            let base: &[u8] = if self.is_confined { b"" } else { b"/" };
            [base, parent_of(way), b"/", &link].concat()
        };
        let mut next = self.paths.place(&ByteString::new(path))?;
        if self.is_confined && !next.is_confined {
            return Err(self.refusal(Errno::XDEV));
        }
        next.shown.clone_from(&self.shown);
        Ok(next)
    }

    fn make_folders(&self, way: &[u8], make: Make) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let mut folder = self.try_open(b".", flags).map_err(|errno| self.refusal(errno))?;
        let mut end = 0;
        for part in way.split(|byte| *byte == b'/') {
            end += part.len() + 1;
            let so_far = &way[..end - 1];
            if part.is_empty() || part == b"." {
                continue;
            }
            folder = match self.try_open(so_far, flags) {
                Err(Errno::NOENT) => {
                    make_folder(&folder, part, make.owner).map_err(|errno| self.refusal(errno))?;
                    self.try_open(so_far, flags)
                }
                opened => opened,
            }
            .map_err(|errno| self.refusal(errno))?;
        }
        Ok(folder)
    }

    fn try_open(&self, way: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = match self.is_confined {
            true => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
            false => ResolveFlags::NO_MAGICLINKS,
        };
        match open_at(&self.start, way, flags, resolve) {
            // Absolute links are refused by the kernel even when they lead to somewhere below. Those are found the slow
            // way, and opened without following any link.
            Err(Errno::XDEV) if self.is_confined => {
                let way = self.real_way(way, !flags.contains(OFlags::NOFOLLOW)).ok_or(Errno::XDEV)?;
                open_at(&self.start, &way, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
                    .map_err(|errno| if errno == Errno::LOOP { Errno::XDEV } else { errno })
            }
            opened => opened,
        }
    }

    /// The same way without links (but perhaps the last one), if it ends below the working folder.
    fn real_way(&self, way: &[u8], follow_last: bool) -> Option<Vec<u8>> {
        let workdir = self.paths.workdir.as_path();
        let real = |way: &[u8]| std::fs::canonicalize(workdir.join(OsStr::from_bytes(way))).ok();
        let path = match split(way).filter(|_| !follow_last) {
            Some((parent, name)) => real(parent)?.join(OsStr::from_bytes(name)),
            None => real(way)?,
        };
        Some(trim_front(path.strip_prefix(workdir).ok()?.as_os_str().as_bytes()))
    }

    fn refusal(&self, errno: Errno) -> SandboxError {
        match errno {
            Errno::XDEV => bad_path(&self.shown, "leads out of the working folder"),
            Errno::LOOP => bad_path(&self.shown, "leads through too many links, or one of /proc"),
            Errno::NXIO => bad_path(&self.shown, "is not a regular file"),
            errno => os(&self.shown, errno),
        }
    }
}

/// That missing folders are made, and for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Make {
    pub(crate) owner: Option<FileOwner>,
}

fn open_at(start: impl AsFd, way: &[u8], flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let mut disturbances = 0;
    loop {
        match openat2(&start, way, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // A rename elsewhere made the kernel unsure about a "..".
            Err(Errno::AGAIN | Errno::INTR) if disturbances < MAX_DISTURBANCES => disturbances += 1,
            opened => return opened,
        }
    }
}

/// Parent and name of a way. None when it does not end with a name.
fn split(way: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = way.len() - way.iter().rev().take_while(|byte| **byte == b'/').count();
    let way = &way[..end];
    let (parent, name) = match way.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&way[..at], &way[at + 1..]),
        None => (b".".as_slice(), way),
    };
    let parent = if parent.is_empty() { b".".as_slice() } else { parent };
    (!name.is_empty() && name != b"." && name != b"..").then_some((parent, name))
}

fn parent_of(way: &[u8]) -> &[u8] {
    split(way).map_or(b".".as_slice(), |(parent, _)| parent)
}

#[cfg(test)]
#[path = "paths_tests.rs"]
mod tests;
