//! What an archive from a sandbox holds, on this machine.

use std::{
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::Component,
};

use bytes::{Buf, Bytes};
use sandbox_core::{Result, SandboxError};
use sandbox_protocol::Body;
use tar::{Archive, EntryType};
use tokio::runtime::Handle;

use crate::{
    arrival::{Arrival, folder_below},
    error::bad_path,
    files::Cancel,
    folder::{MAX_ENTRIES, too_many_entries},
    folders::CHUNK_BYTES,
    new_file::NewFile,
    pack::as_path,
};

/// The archive that comes in.
pub(crate) struct Incoming {
    body: Body,
    runtime: Handle,
    cancel: Cancel,
    current: Bytes,
    /// What the archive broke off with.
    failure: Option<SandboxError>,
}

impl Incoming {
    /// For a thread that may block, within a runtime.
    pub(crate) fn new(body: Body, runtime: Handle, cancel: Cancel) -> Self {
        Self { body, runtime, cancel, current: Bytes::new(), failure: None }
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.current.is_empty() {
            let next = self.cancel.check().and_then(|()| self.runtime.block_on(self.body.next()));
            match next {
                Ok(None) => return Ok(0),
                Ok(Some(bytes)) => self.current = bytes,
                Err(error) => {
                    self.failure = Some(error);
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        let count = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

/// Makes what an archive holds. Its entries come from a hostile place: ways lead down only, and never through a link.
pub(crate) fn unpack(incoming: Incoming, arrival: &Arrival) -> Result<()> {
    let mut archive = Archive::new(incoming);
    let unpacked = unpack_entries(&mut archive, arrival);
    // Why it broke off says more than that it did.
    let mut incoming = archive.into_inner();
    let unpacked = match incoming.failure.take() {
        Some(failure) => Err(failure),
        None => unpacked,
    };
    // What follows the last entry is padding; only its end says that it is whole.
    unpacked.and_then(|()| match io::copy(&mut incoming, &mut io::sink()) {
        Ok(_) => Ok(()),
        Err(error) => Err(incoming.failure.take().unwrap_or_else(|| broken(error))),
    })
}

fn broken(error: io::Error) -> SandboxError {
    SandboxError::io("the folder's archive", error)
}

fn unpack_entries(archive: &mut Archive<Incoming>, arrival: &Arrival) -> Result<()> {
    let mut modes = Vec::new();
    for (index, entry) in archive.entries().map_err(broken)?.enumerate() {
        if index > MAX_ENTRIES {
            return Err(too_many_entries(&arrival.shown));
        }
        let mut entry = entry.map_err(broken)?;
        let way = strip(&clean(&entry.path_bytes())?, arrival.strip).to_vec();
        let Some((parent, name)) = split(&way) else { continue };
        let shown = arrival.shown_at(&way);
        let folder = folder_below(&arrival.target, parent, &shown)?;
        let traits = arrival.traits(entry.header().mode().map_err(broken)?);
        match entry.header().entry_type() {
            EntryType::Directory => {
                arrival.folder(&folder, name, &way)?;
                modes.push((way.clone(), traits.mode));
            }
            EntryType::Regular => {
                let mut new = NewFile::begin(folder, name.to_vec(), &shown)?;
                let mut chunk = vec![0; CHUNK_BYTES];
                loop {
                    match entry.read(&mut chunk).map_err(broken)? {
                        0 => break,
                        count => new.write(&chunk[..count], &shown)?,
                    }
                }
                new.finish(traits, &shown)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                arrival.link(&folder, name, &way, &target)?;
            }
            _ => return Err(bad_path(shown, "is neither a file, a folder nor a link")),
        }
    }
    arrival.finish(modes)
}

/// A way that leads down only, without anything else in it.
fn clean(path: &[u8]) -> Result<Vec<u8>> {
    let mut way = Vec::new();
    for component in as_path(path).components() {
        match component {
            Component::Normal(name) => {
                if !way.is_empty() {
                    way.push(b'/');
                }
                way.extend_from_slice(name.as_bytes());
            }
            Component::CurDir => {}
            _ => return Err(bad_path(String::from_utf8_lossy(path), "leads out of the folder")),
        }
    }
    Ok(way)
}

/// The way without its first `count` names.
fn strip(way: &[u8], count: usize) -> &[u8] {
    (0..count).fold(way, |way, _| way.iter().position(|byte| *byte == b'/').map_or(&[], |at| &way[at + 1..]))
}

/// The way to the folder, and the last name; none for the top itself.
fn split(way: &[u8]) -> Option<(&[u8], &[u8])> {
    match way.iter().rposition(|byte| *byte == b'/') {
        _ if way.is_empty() => None,
        Some(at) => Some((&way[..at], &way[at + 1..])),
        None => Some((b".", way)),
    }
}

#[cfg(test)]
mod tests {
    use super::{clean, split, strip};

    #[test]
    fn a_way_that_leads_up_or_from_the_root_is_refused() {
        for bad in ["../x", "a/../../x", "/etc/passwd", "a/.."] {
            assert!(clean(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(clean(b"./a//b/").unwrap(), b"a/b");
        assert_eq!((strip(b"a/b/c", 1), strip(b"a", 1), strip(b"a", 0)), (&b"b/c"[..], &b""[..], &b"a"[..]));
        assert_eq!(split(b"a/b"), Some((b"a".as_slice(), b"b".as_slice())));
        assert_eq!(split(b"a"), Some((b".".as_slice(), b"a".as_slice())));
        assert_eq!(split(b""), None);
    }
}
