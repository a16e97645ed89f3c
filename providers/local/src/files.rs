//! File operations by bytes.

use std::{
    io::{Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::Path,
};

use bytes::Bytes;
use rustix::{
    fs::{AtFlags, OFlags, statat, unlinkat},
    io::Errno,
};
use sandbox_agent_client::{FileTraits, NewFile};
use sandbox_core::{
    ByteString, DirEntry, ErrorKind, FileKind, FileStat, Files, ReadRange, Result, SandboxError, SandboxHandle,
    WriteOptions, async_trait,
};

use crate::{
    error::{NAME, bad_path, os},
    folder::{FileOwner, entry_stat, folder_names},
    isolated::IsolatedFiles,
    paths::{Entry, Make},
    provider::LocalProvider,
    remove::remove_tree,
    sandbox::Sandbox,
    transfer::open_inside,
    tree,
    user::{Identity, is_privileged},
};

/// The most that is read into memory at once.
pub(crate) const READ_MAX_BYTES: u64 = 1 << 30;

/// Mode of a file that was not there and for which none was asked.
const MODE_DEFAULT: u32 = 0o644;

#[async_trait]
impl Files for LocalProvider {
    async fn read_file(&self, handle: &SandboxHandle, path: ByteString, range: ReadRange) -> Result<Bytes> {
        if let Some(files) = IsolatedFiles::of(&*self.open(handle).await?) {
            return files.read(path, range).await;
        }
        self.file_work(handle, move |sandbox, _| read(sandbox, &path, range)).await
    }

    async fn write_file(
        &self,
        handle: &SandboxHandle,
        path: ByteString,
        data: Bytes,
        options: WriteOptions,
    ) -> Result<()> {
        if let Some(files) = IsolatedFiles::of(&*self.open(handle).await?) {
            return files.write(path, data, options).await;
        }
        self.file_work(handle, move |sandbox, _| write(sandbox, &path, &data, &options)).await
    }

    async fn list_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<Vec<DirEntry>> {
        if let Some(files) = IsolatedFiles::of(&*self.open(handle).await?) {
            return files.list(path).await;
        }
        self.file_work(handle, move |sandbox, _| list(sandbox, &path)).await
    }

    async fn stat(&self, handle: &SandboxHandle, path: ByteString) -> Result<FileStat> {
        if let Some(files) = IsolatedFiles::of(&*self.open(handle).await?) {
            return files.stat(path).await;
        }
        self.file_work(handle, move |sandbox, _| {
            let place = sandbox.paths.place(&path)?;
            entry_stat(place.open(OFlags::PATH | OFlags::NOFOLLOW)?, b"").map_err(|errno| os(place.shown(), errno))
        })
        .await
    }

    async fn remove(&self, handle: &SandboxHandle, path: ByteString, recursive: bool) -> Result<()> {
        if let Some(files) = IsolatedFiles::of(&*self.open(handle).await?) {
            return files.remove(path, recursive).await;
        }
        self.file_work(handle, move |sandbox, _| remove(sandbox, &path, recursive)).await
    }

    async fn make_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<()> {
        if let Some(files) = IsolatedFiles::of(&*self.open(handle).await?) {
            return files.make_dir(path).await;
        }
        self.file_work(handle, move |sandbox, _| tree::make_inside(sandbox, &path, sandbox.user.file_owner()).map(drop))
            .await
    }

    async fn upload_dir(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        if let Some(files) = IsolatedFiles::of(&*self.open(handle).await?) {
            return files.upload_dir(local, remote.clone()).await;
        }
        let (local, remote) = (local.to_owned(), remote.clone());
        self.file_work(handle, move |sandbox, cancel| tree::upload(sandbox, &local, &remote, cancel)).await
    }

    async fn download_dir(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        if let Some(files) = IsolatedFiles::of(&*self.open(handle).await?) {
            return files.download_dir(remote.clone(), local).await;
        }
        let (local, remote) = (local.to_owned(), remote.clone());
        self.file_work(handle, move |sandbox, cancel| tree::download(sandbox, &remote, &local, cancel)).await
    }
}

fn read(sandbox: &Sandbox, path: &ByteString, range: ReadRange) -> Result<Bytes> {
    let (mut file, _) = open_inside(sandbox, path)?;
    let failed = |error| SandboxError::io(path, error);
    // A file of /proc says that it is empty and is not, so what is there is read, not what is announced.
    file.seek(SeekFrom::Start(range.offset.min(i64::MAX as u64))).map_err(failed)?;
    let wanted = range.length.unwrap_or(u64::MAX);
    let mut data = Vec::new();
    file.take(wanted.min(READ_MAX_BYTES + 1)).read_to_end(&mut data).map_err(failed)?;
    if data.len() as u64 > READ_MAX_BYTES {
        return Err(SandboxError::exhausted(format!("{path} has more than {READ_MAX_BYTES} bytes to read at once"))
            .with_help("download it, or read it in parts"));
    }
    Ok(data.into())
}

fn write(sandbox: &Sandbox, path: &ByteString, data: &[u8], options: &WriteOptions) -> Result<()> {
    if options.mode.is_some_and(|mode| mode > 0o7777) {
        return Err(SandboxError::invalid_input("mode", "must be permission bits, at most 0o7777"));
    }
    let place = sandbox.paths.place(path)?;
    let make = Make { owner: sandbox.user.file_owner() };
    let owner = match &options.owner {
        None => make.owner,
        Some(owner) => chosen_owner(owner)?,
    };
    let target = place.target(make)?;
    let old = entry_stat(&target.folder, &target.name).ok().map(|found| found.mode);
    let mode = options.mode.or(old).unwrap_or(MODE_DEFAULT);
    let mut new = NewFile::begin(target.folder, target.name, place.shown())?;
    new.write(data, place.shown())?;
    new.finish(FileTraits { mode, owner }, place.shown())
}

/// The owner that a caller asked for: never silently someone else.
fn chosen_owner(owner: &str) -> Result<Option<FileOwner>> {
    let identity = Identity::resolve(owner).map_err(|error| SandboxError::invalid_input("owner", error.to_string()))?;
    if identity.switch.is_some() && !is_privileged() {
        return Err(SandboxError::new(ErrorKind::PermissionDenied, "only root can give files to another user")
            .with_field("owner")
            .with_provider(NAME));
    }
    Ok(identity.file_owner())
}

fn list(sandbox: &Sandbox, path: &ByteString) -> Result<Vec<DirEntry>> {
    let place = sandbox.paths.place(path)?;
    let folder = place.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut entries = Vec::new();
    for name in folder_names(&folder, place.shown())? {
        match entry_stat(&folder, &name) {
            Ok(stat) => entries.push(DirEntry { name: ByteString::new(name), stat }),
            // Removed meanwhile.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(os(place.shown(), errno)),
        }
    }
    Ok(entries)
}

fn remove(sandbox: &Sandbox, path: &ByteString, recursive: bool) -> Result<()> {
    let place = sandbox.paths.place(path)?;
    let failed = |errno| os(place.shown(), errno);
    let entry = place.entry(None)?;
    let found = entry_stat(&entry.folder, &entry.name).map_err(failed)?;
    match found.kind {
        FileKind::Directory if recursive => {
            if holds_workdir(sandbox, &entry).map_err(failed)? {
                return Err(bad_path(place.shown(), "holds the sandbox's own working folder"));
            }
            remove_tree(&entry.folder, &entry.name, place.shown())
        }
        FileKind::Directory => unlinkat(&entry.folder, entry.name.as_slice(), AtFlags::REMOVEDIR).map_err(failed),
        _ => unlinkat(&entry.folder, entry.name.as_slice(), AtFlags::empty()).map_err(failed),
    }
}

/// Whether a folder is the working folder or one above it, by whatever path it was named.
fn holds_workdir(sandbox: &Sandbox, entry: &Entry) -> Result<bool, Errno> {
    let found = statat(&entry.folder, entry.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
    let is_found = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|above| (above.dev(), above.ino()) == (found.st_dev, found.st_ino))
    };
    Ok(sandbox.paths.workdir().ancestors().any(is_found))
}
