//! A folder of this machine as an archive.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::Path,
};

use rustix::fs::{Mode, OFlags, openat};
use sandbox_core::{FileKind, FileStat, Result, SandboxError};
use sandbox_protocol::BodySender;
use tar::{Builder, EntryType, Header};
use tokio::runtime::Handle;

use crate::{
    arrival::{folder_below, join_way},
    error::{bad_path, os},
    folder::{MAX_ENTRIES, entry_stat, folder_names, too_many_entries},
    folders::CHUNK_BYTES,
    new_file::regular_mode,
};

/// The archive that goes out.
pub(crate) struct Outgoing {
    sender: BodySender,
    runtime: Handle,
    buffer: Vec<u8>,
}

impl Outgoing {
    /// For a thread that may block, within a runtime.
    pub(crate) fn new(sender: BodySender, runtime: Handle) -> Self {
        Self { sender, runtime, buffer: Vec::new() }
    }

    /// Says that this was everything.
    pub(crate) async fn finish(self) {
        self.sender.finish().await;
    }

    /// Breaks the archive off with this error.
    pub(crate) async fn fail(self, error: SandboxError) {
        self.sender.fail(error).await;
    }
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk = std::mem::take(&mut self.buffer);
        match self.runtime.block_on(self.sender.send(chunk)) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

pub(crate) struct Packer {
    builder: Builder<Outgoing>,
    shown: String,
    entries: usize,
}

impl Packer {
    pub(crate) fn new(output: Outgoing, shown: String) -> Self {
        Self { builder: Builder::new(output), shown, entries: 0 }
    }

    /// What the archive went to. Fails where nobody reads it any more.
    pub(crate) fn into_output(self) -> io::Result<Outgoing> {
        self.builder.into_inner()
    }

    /// Packs a folder, without itself.
    pub(crate) fn pack(&mut self, source: &impl AsFd) -> Result<()> {
        // Folders that are still to be read, by their way from the top.
        let mut waiting = vec![b".".to_vec()];
        while let Some(way) = waiting.pop() {
            let folder = folder_below(source, &way, &self.shown_at(&way))?;
            for name in folder_names(&folder, &self.shown_at(&way))? {
                self.entries += 1;
                if self.entries > MAX_ENTRIES {
                    return Err(too_many_entries(&self.shown));
                }
                let inner = join_way(&way, &name);
                let found = entry_stat(&folder, &name).map_err(|errno| os(self.shown_at(&inner), errno))?;
                match found.kind {
                    FileKind::Directory => {
                        let mut header = header(EntryType::Directory, found.mode, &found, 0);
                        self.append(&mut header, &[&inner, b"/".as_slice()].concat(), io::empty())?;
                        waiting.push(inner);
                    }
                    FileKind::File => self.file(&folder, &name, &inner, &found)?,
                    FileKind::Symlink => {
                        let mut header = header(EntryType::Symlink, found.mode, &found, 0);
                        let target = found.link_target.clone().unwrap_or_default();
                        let appended =
                            self.builder.append_link(&mut header, as_path(&inner), as_path(target.as_bytes()));
                        appended.map_err(|error| SandboxError::io(self.shown_at(&inner), error))?;
                    }
                    _ => return Err(bad_path(self.shown_at(&inner), "is a device, socket or pipe")),
                }
            }
        }
        self.builder
            .finish()
            .and_then(|()| self.builder.get_mut().flush())
            .map_err(|e| SandboxError::io(&self.shown, e))
    }

    fn file(&mut self, folder: &impl AsFd, name: &[u8], way: &[u8], found: &FileStat) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let shown = self.shown_at(way);
        let file: File = openat(folder, name, flags, Mode::empty()).map_err(|errno| os(&shown, errno))?.into();
        let mode = regular_mode(&file, &shown)?;
        let mut header = header(EntryType::Regular, mode, found, found.size);
        // A file that shrinks meanwhile is filled up: its size is announced already.
        self.append(&mut header, way, file.chain(io::repeat(0)).take(found.size))
    }

    fn append(&mut self, header: &mut Header, way: &[u8], contents: impl Read) -> Result<()> {
        let appended = self.builder.append_data(header, as_path(way), contents);
        appended.map_err(|error| SandboxError::io(self.shown_at(way), error))
    }

    fn shown_at(&self, way: &[u8]) -> String {
        format!("{}/{}", self.shown.trim_end_matches('/'), String::from_utf8_lossy(way))
    }
}

fn header(kind: EntryType, mode: u32, found: &FileStat, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(u64::try_from(found.modified_ms / 1000).unwrap_or(0));
    header.set_size(size);
    header
}

pub(crate) fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
