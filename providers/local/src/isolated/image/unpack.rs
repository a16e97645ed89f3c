//! What a tar file holds, as a folder that a sandbox can run on.
//!
//! The file may be hostile. Everything is made below the folder by the kernel's own rules (`RESOLVE_IN_ROOT`): a link in
//! the archive counts as inside the sandbox, and none leads out. Devices are not made.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path},
    rc::Rc,
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, fchown, futimens,
        linkat, mkdirat, mknodat, openat, openat2, statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
    process::{Gid, Uid},
};
use sandbox_core::{Result, SandboxError};
use tar::{Archive, Entry, EntryType};

use crate::{
    error::os,
    folder::{MAX_ENTRIES, too_many_entries},
    isolated::image::reader::{Bounds, Reader},
    remove::remove_tree,
};

const CHUNK_BYTES: usize = 256 * 1024;

/// Ids that a sandbox has; an owner beyond them is `nobody` inside.
const IDS: u64 = 65_536;
const NOBODY: u32 = 65_534;

/// Set-user-id bits never count in a sandbox, and outside of it they must not.
const FILE_MODE: u32 = 0o1777;
const FOLDER_MODE: u32 = 0o3777;

/// How much of a name is shown.
const SHOWN_MAX: usize = 200;

/// What an archive became.
pub(crate) struct Unpacked {
    pub(crate) bytes: u64,
}

/// Unpacks `file` into `folder`, which is empty. With `owners`, its files get the owners that the archive names.
pub(crate) fn unpack(file: File, shown: &str, folder: OwnedFd, limit: u64, owners: bool) -> Result<Unpacked> {
    let bounds = Bounds::new(limit);
    let reader = Reader::new(file, bounds.clone()).map_err(|error| match error.kind() {
        io::ErrorKind::Unsupported => image(format!("{shown} is compressed by xz or bzip2"))
            .with_help("give a plain tar file, or one compressed by gzip or zstd"),
        _ => SandboxError::io(shown, error).with_field("image"),
    })?;
    let mut unpacking = Unpacking {
        root: folder,
        shown,
        limit,
        left: limit,
        owners,
        bounds,
        folders: Vec::new(),
        last_parent: None,
        chunk: vec![0; CHUNK_BYTES],
        has_any: false,
    };
    let mut archive = Archive::new(reader);
    let unpacked = unpacking.entries(&mut archive);
    unpacked.and_then(|()| unpacking.finish(archive.into_inner())).map_err(|error| unpacking.explain(error))?;
    Ok(Unpacked { bytes: limit - unpacking.left })
}

/// The refusal of a file that is no image.
pub(crate) fn image(why: impl Into<String>) -> SandboxError {
    SandboxError::invalid_input("image", why.into())
}

struct Unpacking<'a> {
    root: OwnedFd,
    shown: &'a str,
    limit: u64,
    left: u64,
    owners: bool,
    bounds: Rc<Bounds>,
    /// What folders are to be when nothing is put into them any more, outermost first.
    folders: Vec<(Vec<u8>, Traits)>,
    /// The folder of the last entry: most follow one another.
    last_parent: Option<(Vec<u8>, Rc<OwnedFd>)>,
    chunk: Vec<u8>,
    has_any: bool,
}

#[derive(Clone, Copy)]
struct Traits {
    mode: u32,
    owner: Option<(Uid, Gid)>,
    modified_s: i64,
}

impl Unpacking<'_> {
    fn entries(&mut self, archive: &mut Archive<Reader>) -> Result<()> {
        let mut entries = archive.entries().map_err(|error| self.broken(error))?;
        for count in 0.. {
            self.bounds.begin_headers();
            let Some(entry) = entries.next() else { return Ok(()) };
            self.bounds.begin_contents();
            if count >= MAX_ENTRIES {
                return Err(too_many_entries(self.shown).with_field("image"));
            }
            let mut entry = entry.map_err(|error| self.broken(error))?;
            self.entry(&mut entry)?;
            // What nothing was made of is passed over here, and not when headers are counted.
            io::copy(&mut entry, &mut io::sink()).map_err(|error| self.broken(error))?;
        }
        Ok(())
    }

    fn entry(&mut self, entry: &mut Entry<'_, Reader>) -> Result<()> {
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        let path = entry.path_bytes().into_owned();
        let way = self.clean(&path)?;
        let traits = self.traits(entry)?;
        let shown = self.shown;
        let failed = |errno: Errno| os(format!("{} in {shown}", shorten(&path)), errno).with_field("image");
        let Some((above, name)) = split(&way) else {
            // The top itself.
            self.folders.push((b".".to_vec(), traits));
            return Ok(());
        };
        if matches!(kind, EntryType::Char | EntryType::Block) {
            // The sandbox makes its own.
            if way.starts_with(b"dev/") {
                return Ok(());
            }
            return Err(image(format!("{} in {} is a device", shorten(&path), self.shown))
                .with_help("take it out of the archive: devices are below /dev only, and are made by the sandbox"));
        }
        let parent = self.parent(above).map_err(failed)?;
        self.has_any = true;
        match kind {
            EntryType::Directory => {
                if !self.make_folder(&parent, name).map_err(failed)? {
                    self.replace(&parent, name)?;
                    mkdirat(&*parent, name, Mode::from_raw_mode(0o700)).map_err(failed)?;
                }
                self.folders.push((way.clone(), traits));
                Ok(())
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.replace(&parent, name)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(&*parent, name, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
                let mut file = File::from(file);
                self.copy(entry, &mut file, &path)?;
                put_traits(&file, &traits, FILE_MODE).map_err(failed)
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                self.replace(&parent, name)?;
                symlinkat(&*target, &*parent, name).map_err(failed)?;
                self.own(&parent, name, &traits).map_err(failed)
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                let target = self.clean(&target)?;
                let (above, target) = split(&target).ok_or_else(|| failed(Errno::INVAL))?;
                let source = self.open(above).map_err(failed)?;
                if above == split(&way).map_or(b"".as_slice(), |(above, _)| above) && target == name {
                    return Ok(());
                }
                self.replace(&parent, name)?;
                linkat(&source, target, &*parent, name, AtFlags::empty()).map_err(failed)
            }
            EntryType::Fifo => {
                self.replace(&parent, name)?;
                let mode = Mode::from_raw_mode(traits.mode & FILE_MODE);
                mknodat(&*parent, name, FileType::Fifo, mode, 0).map_err(failed)?;
                self.own(&parent, name, &traits).map_err(failed)
            }
            _ => Err(image(format!("{} in {} is of an unknown kind", shorten(&path), self.shown))),
        }
    }

    fn copy(&mut self, entry: &mut Entry<'_, Reader>, file: &mut File, path: &[u8]) -> Result<()> {
        loop {
            let count = entry.read(&mut self.chunk).map_err(|error| self.broken(error))?;
            if count == 0 {
                return Ok(());
            }
            // A sparse file is longer than what was read of it.
            self.left = self.left.checked_sub(count as u64).ok_or_else(|| self.too_large())?;
            file.write_all(&self.chunk[..count]).map_err(|error| {
                SandboxError::io(format!("{} of {}", shorten(path), self.shown), error).with_field("image")
            })?;
        }
    }

    /// What is left to do at the end: folders get their modes, innermost first, and the archive must be whole.
    fn finish(&mut self, reader: Reader) -> Result<()> {
        if !reader.finish().map_err(|error| self.broken(error))? {
            return Err(image(format!("{} breaks off: the end of the archive is missing", self.shown)));
        }
        self.refuse_other_archives()?;
        for (way, traits) in std::mem::take(&mut self.folders).iter().rev() {
            let failed = |errno| os(format!("{} in {}", shorten(way), self.shown), errno).with_field("image");
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            // It may have been replaced by a link since.
            match openat2(&self.root, way.as_slice(), flags, Mode::empty(), IN_ROOT) {
                Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT) => {}
                opened => put_traits(opened.map_err(failed)?, traits, FOLDER_MODE).map_err(failed)?,
            }
        }
        Ok(())
    }

    /// An image as a registry has it is no file system.
    fn refuse_other_archives(&self) -> Result<()> {
        let has = |name: &str| statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if (has("manifest.json") || has("oci-layout")) && !["bin", "usr", "etc"].iter().any(|name| has(name)) {
            return Err(image(format!("{} holds the layers of an image, not a file system", self.shown))
                .with_help("export a container of it instead: docker export"));
        }
        if !self.has_any {
            return Err(image(format!("{} holds nothing", self.shown)));
        }
        Ok(())
    }

    fn traits(&self, entry: &Entry<'_, Reader>) -> Result<Traits> {
        let header = entry.header();
        let id = |id: io::Result<u64>| match id {
            Ok(id) if id < IDS => Ok(u32::try_from(id).unwrap_or(NOBODY)),
            Ok(_) => Ok(NOBODY),
            Err(error) => Err(self.broken(error)),
        };
        let owner = match self.owners {
            true => Some((Uid::from_raw(id(header.uid())?), Gid::from_raw(id(header.gid())?))),
            false => None,
        };
        let mode = header.mode().map_err(|error| self.broken(error))?;
        let modified_s = i64::try_from(header.mtime().unwrap_or_default()).unwrap_or_default();
        Ok(Traits { mode, owner, modified_s })
    }

    fn own(&self, parent: &OwnedFd, name: &[u8], traits: &Traits) -> Result<(), Errno> {
        if let Some((uid, gid)) = traits.owner {
            rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        utimensat(parent, name, &timestamps(traits), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Opens a folder; links on the way count as the sandbox would see them.
    fn open(&self, way: &[u8]) -> Result<OwnedFd, Errno> {
        openat2(&self.root, way, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), IN_ROOT)
    }

    /// Opens the folder of an entry, which is made if the archive has not named it.
    fn parent(&mut self, way: &[u8]) -> Result<Rc<OwnedFd>, Errno> {
        if let Some((last, folder)) = &self.last_parent
            && last == way
        {
            return Ok(folder.clone());
        }
        let folder = match self.open(way) {
            Err(Errno::NOENT) => {
                for (at, _) in way.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
                    self.make_way(&way[..at])?;
                }
                self.make_way(way)?;
                self.open(way)?
            }
            opened => opened?,
        };
        let folder = Rc::new(folder);
        self.last_parent = Some((way.to_vec(), folder.clone()));
        Ok(folder)
    }

    fn make_way(&self, way: &[u8]) -> Result<(), Errno> {
        let Some((above, name)) = split(way) else { return Ok(()) };
        match mkdirat(self.open(above)?, name, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) | Ok(()) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Makes a folder, or finds that there is one. False where something else is.
    fn make_folder(&self, parent: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
        match mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => {
                let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Takes away what an earlier entry has made under this name.
    fn replace(&mut self, parent: &Rc<OwnedFd>, name: &[u8]) -> Result<()> {
        let failed = |errno| os(format!("{} in {}", shorten(name), self.shown), errno).with_field("image");
        match unlinkat(&**parent, name, AtFlags::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            Ok(()) => {}
            Err(Errno::ISDIR | Errno::PERM) => remove_tree(&**parent, name, self.shown)?,
            Err(errno) => return Err(failed(errno)),
        }
        // It may have been on the way.
        self.last_parent = None;
        Ok(())
    }

    /// A way from the top without dots. One that leads up is refused.
    fn clean(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut way = Vec::new();
        for component in as_path(path).components() {
            match component {
                Component::Normal(name) => {
                    if !way.is_empty() {
                        way.push(b'/');
                    }
                    way.extend_from_slice(name.as_bytes());
                }
                Component::CurDir | Component::RootDir => {}
                _ => return Err(image(format!("{} in {} leads out of the archive", shorten(path), self.shown))),
            }
        }
        if way.contains(&0) {
            return Err(image(format!("a name in {} holds a zero byte", self.shown)));
        }
        Ok(way)
    }

    fn too_large(&self) -> SandboxError {
        SandboxError::exhausted(format!("{} is larger than {} MiB when it is unpacked", self.shown, self.limit >> 20))
            .with_field("image")
            .with_help("raise the setting image_cache_mib")
    }

    fn broken(&self, error: io::Error) -> SandboxError {
        image(format!("{} is not a whole tar file: {error}", self.shown))
    }

    /// What broke a bound says more than where reading ended.
    fn explain(&self, error: SandboxError) -> SandboxError {
        if self.bounds.is_over() {
            self.too_large()
        } else if self.bounds.has_long_headers() {
            image(format!("{} has an entry with headers of more than 1 MiB", self.shown))
        } else {
            error
        }
    }
}

const IN_ROOT: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

fn put_traits(entry: impl AsFd, traits: &Traits, mask: u32) -> Result<(), Errno> {
    if let Some((uid, gid)) = traits.owner {
        fchown(&entry, Some(uid), Some(gid))?;
    }
    fchmod(&entry, Mode::from_raw_mode(traits.mode & mask))?;
    futimens(&entry, &timestamps(traits))
}

fn timestamps(traits: &Traits) -> Timestamps {
    let none = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    Timestamps { last_access: none, last_modification: Timespec { tv_sec: traits.modified_s, tv_nsec: 0 } }
}

/// The way to the folder, and the last name; none for the top itself.
fn split(way: &[u8]) -> Option<(&[u8], &[u8])> {
    match way.iter().rposition(|byte| *byte == b'/') {
        _ if way.is_empty() || way == b"." => None,
        Some(at) => Some((&way[..at], &way[at + 1..])),
        None => Some((b".", way)),
    }
}

fn shorten(name: &[u8]) -> String {
    let shown = as_path(name).display().to_string();
    shown.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect()
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
