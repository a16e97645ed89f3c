//! Single files of this host on their way in and out.

use std::{
    fs::{File, OpenOptions},
    io::Read,
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::Path,
};

use bytes::{Bytes, BytesMut};
use rustix::fs::OFlags;
use sandbox_core::{Result, SandboxError};
use sandbox_protocol::{Body, BodySender};

use crate::{
    arrival::SPECIAL_BITS,
    error::bad_path,
    folder::host_folder,
    new_file::{FileTraits, NewFile, regular_mode},
};

/// How much moves between a file of this machine and the connection at once: one trip to another thread each.
const STEP_BYTES: usize = 1 << 20;

/// Does work on a thread where it may block.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(SandboxError::internal("file work panicked")))
}

/// A regular file of this host, open for reading.
#[derive(Debug)]
pub struct Source {
    pub(crate) file: File,
    shown: String,
    /// Its permission bits.
    pub mode: u32,
    /// Its size when it was opened, in bytes.
    pub size: u64,
}

/// Opens a regular file of this host that the caller named. Links are the caller's own and are followed.
///
/// # Errors
/// `NotFound`, `PermissionDenied`; `InvalidInput` for anything but a regular file.
pub async fn open_source(local: &Path) -> Result<Source> {
    let local = local.to_owned();
    blocking(move || {
        let shown = local.display().to_string();
        let (file, mode) = open_host_file(&local)?;
        let size = file.metadata().map_err(|error| SandboxError::io(&shown, error))?.len();
        Ok(Source { file, shown, mode, size })
    })
    .await
}

/// Opens a regular file of this host that the caller named, and gives its permission bits. Links are the caller's own and
/// are followed; no kind of file makes it wait. Blocks.
///
/// # Errors
/// As [`open_source`].
pub fn open_host_file(local: &Path) -> Result<(File, u32)> {
    let shown = local.display().to_string();
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(local).map_err(|error| {
        match error.raw_os_error() {
            // A socket.
            Some(6) => bad_path(&shown, "is not a regular file"),
            _ => SandboxError::io(&shown, error),
        }
    })?;
    let mode = regular_mode(&file, &shown)?;
    Ok((file, mode))
}

/// Sends a file to its end, or until nobody takes any more.
pub async fn feed(source: Source, sender: BodySender) {
    let Source { mut file, shown, .. } = source;
    loop {
        let name = shown.clone();
        let step = blocking(move || {
            let mut data = Vec::with_capacity(STEP_BYTES);
            let read = (&mut file).take(STEP_BYTES as u64).read_to_end(&mut data);
            read.map_err(|error| SandboxError::io(name, error))?;
            Ok((file, Bytes::from(data)))
        });
        match step.await {
            Err(error) => return sender.fail(error).await,
            Ok((_, data)) if data.is_empty() => return sender.finish().await,
            Ok((rest, data)) => {
                if !sender.send(data).await {
                    return;
                }
                file = rest;
            }
        }
    }
}

/// Writes everything that comes to a file of this host; its parent folders are made. What breaks off leaves an old file
/// as it was. Set-user-id bits and the like of `mode` are dropped.
///
/// # Errors
/// What the body failed with, and the host's own.
pub async fn receive_file(mut body: Body, mode: u32, local: &Path) -> Result<()> {
    let shown = local.display().to_string();
    let target = local.to_owned();
    let mut new = blocking(move || begin_host_file(&target)).await?;
    let mut is_over = false;
    while !is_over {
        let mut step = BytesMut::new();
        while step.len() < STEP_BYTES && !is_over {
            match body.next().await? {
                Some(bytes) => step.extend_from_slice(&bytes),
                None => is_over = true,
            }
        }
        let name = shown.clone();
        new = blocking(move || new.write(&step, &name).map(|()| new)).await?;
    }
    blocking(move || new.finish(kept_traits(mode), &shown)).await
}

/// What a file on this host keeps of its permission bits inside. It is this process's user's.
pub fn kept_traits(mode: u32) -> FileTraits {
    FileTraits { mode: mode & !SPECIAL_BITS & 0o777, owner: None }
}

/// Begins a file of this host; its parent folders are made. A file, or a link to one, may be replaced and nothing else.
/// Blocks.
///
/// # Errors
/// `InvalidInput` for a path that names no file, or something else that is there; what the system refuses with.
pub fn begin_host_file(local: &Path) -> Result<NewFile> {
    let shown = local.display().to_string();
    let name = local.file_name().filter(|_| !local.as_os_str().as_bytes().ends_with(b"/"));
    let name = name.ok_or_else(|| bad_path(&shown, "does not name a file"))?;
    if std::fs::metadata(local).is_ok_and(|found| !found.is_file()) {
        return Err(bad_path(&shown, "is there and is not a regular file"));
    }
    let parent = match local.parent() {
        None => Path::new("."),
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    };
    std::fs::create_dir_all(parent).map_err(|error| SandboxError::io(parent.display(), error))?;
    NewFile::begin(host_folder(parent)?, name.as_bytes().to_vec(), &shown)
}
