//! Files that are copied by the kernel, from and to descriptors that came over the connection.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{OFlags, copy_file_range, fcntl_getfl},
    io::Errno,
};
use sandbox_core::{FileKind, Result, SandboxError};
use sandbox_protocol::{
    ReceivedDescriptors, StreamResponder,
    methods::{BytesMoved, FileReadFd, FileReadFdDone, FileWriteFd},
};

use super::{
    agent::Agent,
    files::work,
    paths::{NewFile, os, stat},
    transfer::{MODE_DEFAULT, READ, check_mode, check_regular},
};

/// How much the kernel copies before it is looked whether anybody still wants it.
const STEP_BYTES: usize = 8 * 1024 * 1024;
/// The same where bytes go through this process: as fast as in the kernel from here on.
const BUFFER_BYTES: usize = 512 * 1024;

impl Agent {
    pub(super) async fn file_write_fd(
        &self,
        request: FileWriteFd,
        descriptors: &ReceivedDescriptors,
    ) -> Result<StreamResponder> {
        let FileWriteFd { path, options, descriptor } = request;
        // First of all, so that it is closed whatever happens.
        let source = take(descriptors, descriptor, OFlags::RDONLY)?;
        check_mode(&options)?;
        let place = self.place(&path)?;
        let (owner, folders_owner) = self.owners(&options)?;
        let wanted = Wanted::default();
        let is_wanted = wanted.0.clone();
        let bytes = work(move || {
            let new = NewFile::begin(place.target(folders_owner)?, &place.shown)?;
            let bytes = copy(Copy { from: &source, from_at: 0, to: new.file(), length: u64::MAX }, &is_wanted)
                .map_err(|errno| os(&place.shown, errno))?;
            let mode = options.mode.or_else(|| new.old_mode()).unwrap_or(MODE_DEFAULT);
            new.finish(mode, owner, &place.shown)?;
            Ok(bytes)
        })
        .await?;
        StreamResponder::reply(&BytesMoved { bytes })
    }

    pub(super) async fn file_read_fd(
        &self,
        request: FileReadFd,
        descriptors: &ReceivedDescriptors,
    ) -> Result<StreamResponder> {
        let FileReadFd { path, range, descriptor } = request;
        let mut target = take(descriptors, descriptor, OFlags::WRONLY)?;
        let place = self.place(&path)?;
        let wanted = Wanted::default();
        let is_wanted = wanted.0.clone();
        let done = work(move || {
            let source = File::from(place.open(READ)?);
            let found = stat(&source, b"").map_err(place.failed())?;
            check_regular(&found, &place.shown)?;
            target.seek(SeekFrom::Start(0)).map_err(|error| SandboxError::io("the descriptor", error))?;
            let length = range.length.unwrap_or(u64::MAX);
            let from_at = range.offset.min(i64::MAX as u64);
            let bytes = copy(Copy { from: &source, from_at, to: &target, length }, &is_wanted)
                .map_err(|errno| os(&place.shown, errno))?;
            Ok(FileReadFdDone { stat: Some(found), bytes })
        })
        .await?;
        StreamResponder::reply(&done)
    }
}

/// A descriptor of the client: what a client must send is checked here too.
fn take(descriptors: &ReceivedDescriptors, number: u64, access: OFlags) -> Result<File> {
    let file = File::from(descriptors.take(number)?);
    let refused = |why: &str| SandboxError::invalid_input("descriptor", why);
    let found = stat(&file, b"").map_err(|errno| os("the descriptor", errno))?;
    if found.kind != FileKind::File {
        return Err(refused("must be that of a regular file"));
    }
    let flags = fcntl_getfl(&file).map_err(|errno| os("the descriptor", errno))?;
    if flags.contains(OFlags::PATH) || flags & OFlags::ACCMODE != access {
        return Err(refused("must be open for the one direction alone"));
    }
    Ok(file)
}

/// Tells a worker when nobody waits for it any more.
struct Wanted(Arc<AtomicBool>);

impl Default for Wanted {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

struct Copy<'a> {
    from: &'a File,
    from_at: u64,
    /// Written where it stands.
    to: &'a File,
    /// At most.
    length: u64,
}

/// Copies to the end or the length: in the kernel, with shared blocks where the file system can, or through this process
/// (`sendfile` from one file system to another moves less at a time, and takes half as long again).
fn copy(copy: Copy<'_>, is_wanted: &AtomicBool) -> Result<u64, Errno> {
    let Copy { from, from_at, to, length } = copy;
    let mut total = 0u64;
    while total < length {
        if !is_wanted.load(Ordering::Relaxed) {
            return Err(Errno::CANCELED);
        }
        let step = STEP_BYTES.min(usize::try_from(length - total).unwrap_or(STEP_BYTES));
        let mut at = from_at + total;
        match copy_file_range(from, Some(&mut at), to, None, step) {
            // A file of /proc says so and has bytes all the same.
            Ok(0) if total == 0 => return copy_bytes(from, at, to, length, is_wanted),
            Ok(0) => break,
            Ok(moved) => total += moved as u64,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => return Err(errno),
            Err(_) => return Ok(total + copy_bytes(from, at, to, length - total, is_wanted)?),
        }
    }
    Ok(total)
}

fn copy_bytes(mut from: &File, at: u64, mut to: &File, length: u64, is_wanted: &AtomicBool) -> Result<u64, Errno> {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    if at > 0 {
        from.seek(SeekFrom::Start(at)).map_err(errno)?;
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut total = 0;
    while total < length && is_wanted.load(Ordering::Relaxed) {
        let most = BUFFER_BYTES.min(usize::try_from(length - total).unwrap_or(BUFFER_BYTES));
        match from.read(&mut buffer[..most]) {
            Ok(0) => return Ok(total),
            Ok(count) => {
                to.write_all(&buffer[..count]).map_err(errno)?;
                total += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(errno(error)),
        }
    }
    if total < length { Err(Errno::CANCELED) } else { Ok(total) }
}
