//! From a path to a file, as a program inside would get there, but for the links of `/proc` that lead to open files:
//! those of "self" would be the agent's own.

use std::{
    fmt,
    fs::File,
    hash::{BuildHasher, Hasher, RandomState},
    io::Write,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, chownat, fchmod, fchown, fstat,
        mkdirat, openat, openat2, readlinkat, renameat, renameat_with, statat, unlinkat,
    },
    io::Errno,
    process::{Gid, Uid},
};
use sandbox_core::{ByteString, FileKind, FileStat, Result, SandboxError};

/// How often a link at the end of a path is followed, as in the kernel.
const MAX_LINKS: usize = 40;
/// How often a lookup that another process disturbed is tried again.
const MAX_DISTURBANCES: usize = 16;
/// Entries of one folder that are read.
pub(super) const MAX_ENTRIES: usize = 1_000_000;
/// Mode of parent folders that are made.
const FOLDER_MODE: u32 = 0o755;

/// Owner and group, or the agent's own.
pub(super) type Owner = Option<(u32, u32)>;

/// A system call about `what` failed.
pub(super) fn os(what: impl fmt::Display, errno: Errno) -> SandboxError {
    match errno {
        Errno::LOOP => bad_path(what, "leads through too many links, or one of /proc"),
        Errno::XDEV => bad_path(what, "leads out of the folder"),
        Errno::NXIO => bad_path(what, "is not a regular file"),
        errno => SandboxError::io(what, errno.into()),
    }
}

pub(super) fn bad_path(path: impl fmt::Display, why: &str) -> SandboxError {
    SandboxError::invalid_input("path", format!("{path} {why}"))
}

/// A path, checked and absolute, and how the caller wrote it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: Vec<u8>,
    pub(super) shown: String,
}

/// An entry of a folder, which need not be there.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) folder: OwnedFd,
    pub(super) name: Vec<u8>,
}

impl Place {
    pub(super) fn new(path: &ByteString, absolute: Vec<u8>) -> Result<Self> {
        if path.is_empty() || path.as_bytes().contains(&0) {
            let why = if path.is_empty() { "must not be empty" } else { "must not contain a NUL byte" };
            return Err(SandboxError::invalid_input("path", why));
        }
        Ok(Self { path: absolute, shown: path.to_string() })
    }

    pub(super) fn failed(&self) -> impl Fn(Errno) -> SandboxError + '_ {
        |errno| os(&self.shown, errno)
    }

    /// Opens what is there.
    pub(super) fn open(&self, flags: OFlags) -> Result<OwnedFd> {
        self.open_raw(flags).map_err(self.failed())
    }

    pub(super) fn open_raw(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_at(CWD, &self.path, flags, ResolveFlags::NO_MAGICLINKS)
    }

    /// The entry itself: a link at the end is not followed.
    pub(super) fn entry(&self) -> Result<Entry> {
        let (parent, name) = split(&self.path).ok_or_else(|| bad_path(&self.shown, "does not name an entry"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let folder = open_at(CWD, parent, flags, ResolveFlags::NO_MAGICLINKS).map_err(self.failed())?;
        Ok(Entry { folder, name: name.to_vec() })
    }

    /// The entry to write to: parent folders are made for the owner, and a link at the end is followed.
    pub(super) fn target(&self, owner: Owner) -> Result<Entry> {
        if self.path.ends_with(b"/") {
            return Err(bad_path(&self.shown, "names a folder, not a file"));
        }
        let found = self.target_raw_for(owner).map_err(self.failed())?;
        found.ok_or_else(|| bad_path(&self.shown, "does not name an entry"))
    }

    /// As [`Place::target`], for the agent's own owner.
    pub(super) fn target_raw(&self) -> Result<Entry, Errno> {
        self.target_raw_for(None)?.ok_or(Errno::ISDIR)
    }

    fn target_raw_for(&self, owner: Owner) -> Result<Option<Entry>, Errno> {
        let mut path = self.path.clone();
        for round in 0..MAX_LINKS {
            let Some((parent, name)) = split(&path) else { return Ok(None) };
            let folder = match round {
                0 => make_folders(parent, owner),
                _ => open_at(CWD, parent, OFlags::PATH | OFlags::DIRECTORY, ResolveFlags::NO_MAGICLINKS),
            }?;
            match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Symlink => {
                    let link = readlinkat(&folder, name, Vec::new())?.into_bytes();
                    path = if link.starts_with(b"/") { link } else { [parent, b"/", &link].concat() };
                }
                Ok(_) | Err(Errno::NOENT) => return Ok(Some(Entry { folder, name: name.to_vec() })),
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::LOOP)
    }
}

/// Opens below `start`, in the ways that `resolve` allows.
pub(super) fn open_at(start: impl AsFd, way: &[u8], flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    let mut disturbances = 0;
    loop {
        match openat2(&start, way, flags, Mode::empty(), resolve) {
            // A rename elsewhere made the kernel unsure about a "..".
            Err(Errno::AGAIN | Errno::INTR) if disturbances < MAX_DISTURBANCES => disturbances += 1,
            // Before Linux 5.6, and in sandboxes that do not know the call.
            Err(Errno::NOSYS) if resolve == ResolveFlags::NO_MAGICLINKS => {
                return openat(&start, way, flags, Mode::empty());
            }
            opened => return opened,
        }
    }
}

/// Parent and name. None when the path does not end with a name.
pub(super) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
    let path = &path[..end];
    let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (b"/".as_slice(), &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b".".as_slice(), path),
    };
    (!name.is_empty() && name != b"." && name != b"..").then_some((parent, name))
}

/// Opens a folder, after making what is missing of it for the owner.
pub(super) fn make_folders(path: &[u8], owner: Owner) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let open = |path: &[u8]| open_at(CWD, path, flags, ResolveFlags::NO_MAGICLINKS);
    match open(path) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    let mut folder = open(b"/")?;
    let mut end = 0;
    for part in path.split(|byte| *byte == b'/') {
        end += part.len() + 1;
        if part.is_empty() || part == b"." {
            continue;
        }
        let so_far = &path[..end - 1];
        folder = match open(so_far) {
            Err(Errno::NOENT) => {
                make_folder(&folder, part, owner)?;
                open(so_far)?
            }
            opened => opened?,
        };
    }
    Ok(folder)
}

/// Makes a folder for an owner. One that is there already stays as it is.
pub(super) fn make_folder(parent: impl AsFd, name: &[u8], owner: Owner) -> Result<(), Errno> {
    match mkdirat(&parent, name, Mode::from_raw_mode(FOLDER_MODE)) {
        Ok(()) => give(parent, name, owner),
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Gives an entry to an owner, never through a link.
pub(super) fn give(parent: impl AsFd, name: &[u8], owner: Owner) -> Result<(), Errno> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    chownat(parent, name, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)
}

/// The names in a folder, sorted, without `.` and `..`. `folder` must be open for reading.
pub(super) fn names(folder: impl AsFd, shown: &str) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder).map_err(|errno| os(shown, errno))? {
        let entry = entry.map_err(|errno| os(shown, errno))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
        if names.len() > MAX_ENTRIES {
            return Err(SandboxError::exhausted(format!("{shown} holds more than {MAX_ENTRIES} entries")));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// What an entry is, never through a link. The empty name is `parent` itself.
pub(super) fn stat(parent: impl AsFd, name: &[u8]) -> Result<FileStat, Errno> {
    let found = match name {
        [] => fstat(&parent)?,
        name => statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?,
    };
    let kind = kind(&found);
    let link_target = match kind {
        FileKind::Symlink => Some(ByteString::new(readlinkat(&parent, name, Vec::new())?.into_bytes())),
        _ => None,
    };
    Ok(FileStat {
        kind,
        size: u64::try_from(found.st_size).unwrap_or_default(),
        mode: found.st_mode & 0o7777,
        uid: found.st_uid,
        gid: found.st_gid,
        modified_ms: found.st_mtime * 1000 + (found.st_mtime_nsec / 1_000_000) as i64,
        link_target,
    })
}

pub(super) fn kind(found: &Stat) -> FileKind {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

/// A name that nobody can guess.
pub(super) fn unguessable(prefix: &str) -> String {
    // Seeded by the system's random numbers.
    let random = || RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}", random())
}

/// A file that gets its name in one step, when it is whole. Dropped before that, it leaves nothing.
#[derive(Debug)]
pub(super) struct NewFile {
    file: File,
    folder: OwnedFd,
    name: Vec<u8>,
    temporary: Option<String>,
}

impl NewFile {
    /// Begins a file. Refused when something is there that is no regular file or link.
    pub(super) fn begin(entry: Entry, shown: &str) -> Result<Self> {
        match statat(&entry.folder, entry.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).map(|found| kind(&found)) {
            Ok(FileKind::File | FileKind::Symlink) | Err(Errno::NOENT) => {}
            Ok(FileKind::Directory) => return Err(bad_path(shown, "is a folder, not a regular file")),
            Ok(_) => return Err(bad_path(shown, "is there and is not a regular file")),
            Err(errno) => return Err(os(shown, errno)),
        }
        Self::begin_raw(entry).map_err(|errno| os(shown, errno))
    }

    /// Begins a file in the place of whatever is there.
    pub(super) fn begin_raw(entry: Entry) -> Result<Self, Errno> {
        let Entry { folder, name } = entry;
        let temporary = unguessable(".sandbox-part-");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&folder, temporary.as_str(), flags, Mode::from_raw_mode(0o600))?;
        Ok(Self { file: file.into(), folder, name, temporary: Some(temporary) })
    }

    /// Mode of the file that is there now.
    pub(super) fn old_mode(&self) -> Option<u32> {
        let found = stat(&self.folder, &self.name).ok()?;
        (found.kind == FileKind::File).then_some(found.mode)
    }

    pub(super) fn write(&mut self, bytes: &[u8], shown: &str) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| SandboxError::io(shown, error))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn write_raw(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.file.write_all(bytes).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// Gives the file its owner, mode and name.
    pub(super) fn finish(self, mode: u32, owner: Owner, shown: &str) -> Result<()> {
        self.finish_raw(mode, owner).map_err(|errno| os(shown, errno))
    }

    pub(super) fn finish_raw(mut self, mode: u32, owner: Owner) -> Result<(), Errno> {
        if let Some((uid, gid)) = owner {
            fchown(&self.file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        // After the owner: a change of owner clears bits.
        fchmod(&self.file, Mode::from_raw_mode(mode))?;
        if let Some(temporary) = self.temporary.take()
            && let Err(errno) = put_in_place(&self.folder, temporary.as_str(), &self.name)
        {
            self.temporary = Some(temporary);
            return Err(errno);
        }
        Ok(())
    }
}

/// Gives a file its name, in one step.
///
/// A file that is there changes places with it first. Renaming over it would have file systems write the new one to the
/// disk before (ext4's `auto_da_alloc`): what is in a sandbox is gone with the machine anyway.
fn put_in_place(folder: &OwnedFd, temporary: &str, name: &[u8]) -> Result<(), Errno> {
    let is_file = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| kind(&found) == FileKind::File);
    if !is_file || renameat_with(folder, temporary, folder, name, RenameFlags::EXCHANGE).is_err() {
        return renameat(folder, temporary, folder, name);
    }
    unlinkat(folder, temporary, AtFlags::empty()).or_else(|errno| {
        // Something else came there in between: back, and as if nothing had been.
        renameat_with(folder, temporary, folder, name, RenameFlags::EXCHANGE)?;
        Err(errno)
    })
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The failure that led here is what is told.
            let _ = unlinkat(&self.folder, temporary.as_str(), AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn only_a_name_at_the_end_is_an_entry() {
        for (path, parts) in [
            ("/a", Some(("/", "a"))),
            ("/a/b//", Some(("/a", "b"))),
            ("//a", Some(("/", "a"))),
            ("/", None),
            ("/a/..", None),
            ("/a/.", None),
        ] {
            let parts = parts.map(|(parent, name)| (parent.as_bytes(), name.as_bytes()));
            assert_eq!(split(path.as_bytes()), parts, "{path}");
        }
    }
}
