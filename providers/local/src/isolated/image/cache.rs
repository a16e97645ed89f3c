//! Unpacked images, each once, within a bound.
//!
//! `.images/KEY` is one, `KEY.lock` says who has it, and holds its size. Whoever unpacks or removes it has the lock alone;
//! whoever makes a sandbox of it shares the lock until the sandbox's record names the key. A key says which file it was:
//! another content is another key.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    fs::{FlockOperation, OFlags, flock, syncfs},
    io::Errno,
};
use sandbox_core::{Result, SandboxError, SandboxStatus, tracing};

use super::unpack::{image, unpack};
use crate::{
    error::os, folder::host_folder, records::Records, remove::remove_tree, user::is_privileged, workspace::Root,
};

const FOLDER: &str = ".images";
const LOCK_SUFFIX: &str = ".lock";
const PARTIAL_SUFFIX: &str = ".partial";

/// How long somebody else may take to unpack what is needed here.
const WAIT_MAX: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A sweep takes what nobody uses and nobody has asked for in this time.
const UNUSED_FOR: Duration = Duration::from_secs(7 * 86_400);

/// The unpacked images of one root.
pub(crate) struct Images {
    folder: PathBuf,
    records: Records,
    limit: u64,
}

/// An unpacked image that is not removed while this lives.
pub(crate) struct Held {
    key: String,
    folder: PathBuf,
    _shared: File,
}

impl Held {
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Images {
    pub(super) fn new(root: &Root, records: Records, limit: u64) -> Self {
        Self { folder: root.path().join(FOLDER), records, limit }
    }

    /// The unpacked form of a tar file. Blocks while it is unpacked, here or elsewhere.
    pub(super) fn take(&self, tar: &Path) -> Result<Held> {
        let shown = tar.display().to_string();
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(tar);
        let file = opened.map_err(|error| SandboxError::io(&shown, error).with_field("image"))?;
        let key = key(&file, &shown)?;
        self.prepare()?;
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let lock = self.open_lock(&key)?;
            let has = self.path(&key).is_dir();
            let operation =
                if has { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
            if self.has_locked(&lock, &key, operation)? {
                match (has, self.path(&key).is_dir()) {
                    (true, true) => return self.hold(key, lock),
                    (false, false) => {
                        self.unpack(&file, &shown, &key, &lock)?;
                        // Whoever takes it away between the locks is followed by another round.
                        flock(&lock, FlockOperation::LockShared).map_err(|errno| os(&shown, errno))?;
                        if self.path(&key).is_dir() {
                            return self.hold(key, lock);
                        }
                    }
                    _ => {}
                }
            }
            if Instant::now() > deadline {
                let why = format!("{shown} is still being unpacked by somebody else");
                return Err(SandboxError::timed_out(why).with_field("image"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn hold(&self, key: String, shared: File) -> Result<Held> {
        // When it was last used; not telling it makes it go earlier.
        let _ = shared.set_modified(SystemTime::now());
        Ok(Held { folder: self.path(&key), key, _shared: shared })
    }

    /// Unpacks it under the lock, whole or not at all.
    fn unpack(&self, file: &File, shown: &str, key: &str, lock: &File) -> Result<()> {
        let failed = |error| SandboxError::io("the folder of unpacked images", error);
        let partial = format!("{key}{PARTIAL_SUFFIX}");
        let images = host_folder(&self.folder)?;
        // Of somebody who was killed.
        remove_tree(&images, partial.as_bytes(), shown)?;
        let path = self.folder.join(&partial);
        DirBuilder::new().mode(0o755).create(&path).map_err(failed)?;
        let started = Instant::now();
        let source = file.try_clone().map_err(failed)?;
        let done = unpack(source, shown, host_folder(&path)?, self.limit, is_privileged()).and_then(|unpacked| {
            if key_of(file).ok().as_deref() != Some(key) {
                return Err(image(format!("{shown} was changed while it was read")));
            }
            self.make_room(key, unpacked.bytes)?;
            // What a lost machine leaves must not look whole.
            let synced = File::open(&path).and_then(|folder| Ok(syncfs(folder)?));
            synced.and_then(|()| write_size(lock, unpacked.bytes)).map_err(failed)?;
            std::fs::rename(&path, self.path(key)).map_err(failed)?;
            Ok(unpacked.bytes)
        });
        match done {
            Ok(bytes) => {
                tracing::debug!(bytes, elapsed_ms = started.elapsed().as_millis() as u64, "an image was unpacked");
                Ok(())
            }
            Err(error) => {
                // The reason to fail is told; a leftover is swept.
                let _ = remove_tree(&images, partial.as_bytes(), shown);
                let _ = std::fs::remove_file(self.lock_path(key));
                Err(error)
            }
        }
    }

    /// Removes images that nobody uses, the longest unused first, until another one of this size fits.
    fn make_room(&self, key: &str, bytes: u64) -> Result<()> {
        let mut all: Vec<Found> = self.found()?.into_iter().filter(|found| found.key != key).collect();
        all.sort_by_key(|found| found.used);
        let mut total = all.iter().fold(bytes, |sum, found| sum.saturating_add(found.bytes));
        for found in all {
            if total <= self.limit {
                break;
            }
            if self.remove_unused(&found.key)? {
                total -= found.bytes;
            }
        }
        if total <= self.limit {
            return Ok(());
        }
        let why = format!(
            "{} MiB of unpacked images are in use, and this one has {} MiB more; image_cache_mib is {}",
            (total - bytes) >> 20,
            bytes >> 20,
            self.limit >> 20
        );
        Err(SandboxError::exhausted(why).with_field("image").with_help("close sandboxes, or raise image_cache_mib"))
    }

    /// Removes what was not finished, and what nobody has used for long.
    pub(crate) fn sweep(&self) -> Result<()> {
        for found in self.found()? {
            let is_old = found.used.elapsed().is_ok_and(|age| age > UNUSED_FOR);
            if is_old || !self.path(&found.key).is_dir() {
                self.remove_unused(&found.key)?;
            }
        }
        Ok(())
    }

    /// Removes an image unless somebody has it.
    fn remove_unused(&self, key: &str) -> Result<bool> {
        let lock = self.open_lock(key)?;
        if !self.has_locked(&lock, key, FlockOperation::NonBlockingLockExclusive)? || self.is_used(key)? {
            return Ok(false);
        }
        let images = host_folder(&self.folder)?;
        for name in [key.to_owned(), format!("{key}{PARTIAL_SUFFIX}")] {
            remove_tree(&images, name.as_bytes(), "an unpacked image")?;
        }
        // Last, and while it is locked: who waits for it sees that it is another file.
        std::fs::remove_file(self.lock_path(key)).map_err(|error| SandboxError::io("an unpacked image", error))?;
        Ok(true)
    }

    fn is_used(&self, key: &str) -> Result<bool> {
        let uses = |record: &crate::record::Record| record.image_key.as_deref() == Some(key);
        Ok(self.records.read_all()?.iter().any(|record| uses(record) && record.status() != SandboxStatus::Stopped))
    }

    fn prepare(&self) -> Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(SandboxError::io(self.folder.display(), error))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(key)
    }

    fn lock_path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}{LOCK_SUFFIX}"))
    }

    fn open_lock(&self, key: &str) -> Result<File> {
        let path = self.lock_path(key);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        opened.map_err(|error| SandboxError::io("the lock of an unpacked image", error))
    }

    /// False when somebody else has it, or has removed it in between.
    fn has_locked(&self, lock: &File, key: &str, operation: FlockOperation) -> Result<bool> {
        match flock(lock, operation) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(false),
            locked => locked.map_err(|errno| os("the lock of an unpacked image", errno))?,
        }
        let (Ok(named), Ok(own)) = (std::fs::metadata(self.lock_path(key)), lock.metadata()) else { return Ok(false) };
        Ok((named.dev(), named.ino()) == (own.dev(), own.ino()))
    }

    fn found(&self) -> Result<Vec<Found>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| SandboxError::io(self.folder.display(), error))?,
        };
        let mut found = Vec::new();
        for entry in entries.filter_map(std::result::Result::ok) {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Some(key) = name.strip_suffix(LOCK_SUFFIX) else { continue };
            let used = entry.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            found.push(Found { key: key.to_owned(), used, bytes: read_size(&entry.path()) });
        }
        Ok(found)
    }
}

struct Found {
    key: String,
    used: SystemTime,
    bytes: u64,
}

fn write_size(mut lock: &File, bytes: u64) -> io::Result<()> {
    lock.rewind()?;
    lock.set_len(0)?;
    lock.write_all(bytes.to_string().as_bytes())
}

fn read_size(path: &Path) -> u64 {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(32).read_to_string(&mut text));
    read.ok().and_then(|_| text.trim().parse().ok()).unwrap_or_default()
}

/// The name of a file's content, as far as the file system tells contents apart.
fn key(file: &File, shown: &str) -> Result<String> {
    let failed = |error| SandboxError::io(shown, error).with_field("image");
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(image(format!("{shown} is not a regular file")));
    }
    key_of(file).map_err(failed)
}

fn key_of(file: &File) -> io::Result<String> {
    let found = file.metadata()?;
    let time = |seconds: i64, nanoseconds: i64| format!("{seconds:x}.{nanoseconds:x}");
    let (modified, changed) = (time(found.mtime(), found.mtime_nsec()), time(found.ctime(), found.ctime_nsec()));
    Ok(format!("tar-{:x}-{:x}-{:x}-{modified}-{changed}", found.dev(), found.ino(), found.size()))
}
