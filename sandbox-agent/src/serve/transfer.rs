//! Contents of files, in and out, in constant memory.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
};

use bytes::{Bytes, BytesMut};
use rustix::fs::OFlags;
use sandbox_core::{FileKind, FileStat, Result, SandboxError, WriteOptions};
use sandbox_protocol::{
    Body, BodySender, StreamResponder,
    methods::{BytesMoved, FileRead, FileWrite},
};

use super::{
    agent::Agent,
    files::work,
    paths::{NewFile, Owner, Place, bad_path, stat},
};

/// Reading flags with which no kind of file makes `open` wait.
pub(super) const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// How much a worker moves before it looks whether anybody still wants it.
const STEP_BYTES: usize = 256 * 1024;
/// Most bytes of one chunk of a body.
const CHUNK_BYTES: usize = 64 * 1024;
/// Mode of a file that was not there and for which none was asked.
pub(super) const MODE_DEFAULT: u32 = 0o644;

impl Agent {
    pub(super) async fn file_read(&self, request: FileRead) -> Result<StreamResponder> {
        let FileRead { path, range } = request;
        let place = self.place(&path)?;
        let shown = place.shown.clone();
        let (file, found) = work(move || {
            let (mut file, found) = open_regular(&place)?;
            if range.offset > 0 {
                file.seek(SeekFrom::Start(range.offset.min(i64::MAX as u64)))
                    .map_err(|error| SandboxError::io(&place.shown, error))?;
            }
            Ok((file, found))
        })
        .await?;
        let (sender, body) = Body::channel();
        tokio::spawn(send(file, range.length.unwrap_or(u64::MAX), sender, shown));
        StreamResponder::body(&found, body)
    }

    /// Who gets a new file, and who the folders that are made for it.
    pub(super) fn owners(&self, options: &WriteOptions) -> Result<(Owner, Owner)> {
        let folders_owner = self.surroundings.owner(None)?;
        let owner = match &options.owner {
            Some(owner) => self.surroundings.owner(Some(owner))?,
            None => folders_owner,
        };
        Ok((owner, folders_owner))
    }

    pub(super) async fn file_write(&self, request: FileWrite, input: &mut Body) -> Result<StreamResponder> {
        let bytes = self.write_all(request, input).await?;
        StreamResponder::reply(&BytesMoved { bytes })
    }

    /// Writes a file with a whole body. Returns how many bytes it had.
    pub(super) async fn write_all(&self, request: FileWrite, input: &mut Body) -> Result<u64> {
        let FileWrite { path, options } = request;
        check_mode(&options)?;
        let place = self.place(&path)?;
        let (owner, folders_owner) = self.owners(&options)?;
        let shown = place.shown.clone();
        let mut new = work(move || NewFile::begin(place.target(folders_owner)?, &place.shown)).await?;
        let mut total = 0;
        let mut is_over = false;
        while !is_over {
            let mut step: Vec<Bytes> = Vec::new();
            let mut step_bytes = 0;
            while step_bytes < STEP_BYTES {
                match input.next().await? {
                    Some(bytes) => {
                        step_bytes += bytes.len();
                        step.push(bytes);
                    }
                    None => {
                        is_over = true;
                        break;
                    }
                }
            }
            total += step_bytes as u64;
            if step_bytes > 0 {
                let shown = shown.clone();
                new = work(move || {
                    for bytes in step {
                        new.write(&bytes, &shown)?;
                    }
                    Ok(new)
                })
                .await?;
            }
        }
        work(move || {
            let mode = options.mode.or_else(|| new.old_mode()).unwrap_or(MODE_DEFAULT);
            new.finish(mode, owner, &shown)
        })
        .await?;
        Ok(total)
    }
}

/// Opens a regular file for reading.
pub(super) fn open_regular(place: &Place) -> Result<(File, FileStat)> {
    let file = File::from(place.open(READ)?);
    let found = stat(&file, b"").map_err(place.failed())?;
    check_regular(&found, &place.shown)?;
    Ok((file, found))
}

pub(super) fn check_mode(options: &WriteOptions) -> Result<()> {
    match options.mode {
        Some(mode) if mode > 0o7777 => {
            Err(SandboxError::invalid_input("mode", "must be permission bits, at most 0o7777"))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_regular(found: &FileStat, shown: &str) -> Result<()> {
    match found.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(bad_path(shown, "is a folder, not a regular file")),
        _ => Err(bad_path(shown, "is not a regular file")),
    }
}

/// Sends what is there, not what was announced: a file of `/proc` says that it is empty and is not.
pub(super) async fn send(mut file: File, mut left: u64, sender: BodySender, shown: String) {
    loop {
        let shown = shown.clone();
        let read = work(move || {
            let mut step = BytesMut::zeroed(STEP_BYTES.min(usize::try_from(left).unwrap_or(STEP_BYTES)));
            let mut length = 0;
            while length < step.len() {
                match file.read(&mut step[length..]) {
                    Ok(0) => break,
                    Ok(count) => length += count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(SandboxError::io(&shown, error)),
                }
            }
            let is_last = length < STEP_BYTES;
            step.truncate(length);
            Ok((file, step, is_last))
        })
        .await;
        let (next, mut step, is_last) = match read {
            Ok(read) => read,
            Err(error) => return sender.fail(error).await,
        };
        file = next;
        left -= step.len() as u64;
        while !step.is_empty() {
            let chunk = step.split_to(step.len().min(CHUNK_BYTES)).freeze();
            if !sender.send(chunk).await {
                return;
            }
        }
        if is_last || left == 0 {
            return sender.finish().await;
        }
    }
}
