//! The output of a command in the background: small ones in memory, others in a file without a name.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use crate::execd::new_id;

/// What is kept in memory.
const MEMORY_BYTES: usize = 16 * 1024;

/// Most that one look gives; the next one goes on from there.
const LOOK_BYTES: u64 = 8 * 1024 * 1024;

#[derive(Default)]
pub(super) struct Log(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    memory: Vec<u8>,
    file: Option<Arc<File>>,
    length: u64,
    /// Why there is no more of it.
    broken: Option<String>,
}

impl Log {
    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the end. One at a time.
    pub(super) async fn push(&self, bytes: Bytes) {
        let (file, rest, at) = {
            let mut kept = self.kept();
            if kept.broken.is_some() {
                return;
            }
            if kept.file.is_none() && kept.memory.len() + bytes.len() <= MEMORY_BYTES {
                kept.memory.extend_from_slice(&bytes);
                kept.length += bytes.len() as u64;
                return;
            }
            let mut rest = std::mem::take(&mut kept.memory);
            let at = kept.length - rest.len() as u64;
            rest.extend_from_slice(&bytes);
            (kept.file.clone(), rest, at)
        };
        // A file system that hangs holds a thread of its own.
        let written = tokio::task::spawn_blocking(move || {
            let file = match file {
                Some(file) => file,
                None => Arc::new(unnamed_file()?),
            };
            file.write_all_at(&rest, at)?;
            Ok::<_, io::Error>((file, at + rest.len() as u64))
        });
        let written = written.await.unwrap_or_else(|_| Err(io::Error::other("the writer broke")));
        let mut kept = self.kept();
        match written {
            Ok((file, length)) => (kept.file, kept.length) = (Some(file), length),
            Err(error) => kept.broken = Some(format!("the output could not be kept: {error}")),
        }
    }

    /// What there is from an offset on, and the offset of what comes then.
    pub(super) async fn read(&self, from: u64) -> Result<(Vec<u8>, u64), String> {
        let (file, length) = {
            let kept = self.kept();
            if let (Some(why), true) = (&kept.broken, from >= kept.length) {
                return Err(why.clone());
            }
            let Some(file) = kept.file.clone() else {
                let rest = usize::try_from(from).ok().and_then(|from| kept.memory.get(from..)).unwrap_or_default();
                return Ok((rest.to_vec(), kept.length));
            };
            (file, kept.length)
        };
        let count = length.saturating_sub(from).min(LOOK_BYTES);
        let read = tokio::task::spawn_blocking(move || {
            let mut rest = vec![0; usize::try_from(count).unwrap_or_default()];
            file.read_exact_at(&mut rest, from).map(|()| rest)
        });
        let rest = read.await.unwrap_or_else(|_| Err(io::Error::other("the reader broke")));
        rest.map(|rest| (rest, from.min(length) + count)).map_err(|error| error.to_string())
    }

    /// Whether it has a file, and so a descriptor.
    pub(super) fn has_file(&self) -> bool {
        self.kept().file.is_some()
    }

    /// Gives its file back.
    pub(super) fn forget(&self) {
        let mut kept = self.kept();
        kept.file = None;
        kept.broken = Some("the output of a command that ended long ago is no longer kept".to_owned());
        kept.length = 0;
    }
}

/// A file that nobody else finds, and that is gone when it is closed.
fn unnamed_file() -> io::Result<File> {
    let mut failure = io::Error::other("no folder");
    for folder in [std::env::temp_dir(), PathBuf::from("/var/tmp"), PathBuf::from("/dev/shm"), PathBuf::from("/")] {
        let path = folder.join(format!(".execd-{}", new_id()));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::{Log, MEMORY_BYTES};

    #[tokio::test]
    async fn every_byte_is_found_at_its_offset_however_long_the_output_is() {
        let (log, mut whole) = (Log::default(), Vec::new());
        for round in 0..7u8 {
            let piece = vec![round; MEMORY_BYTES / 2 - 1];
            whole.extend_from_slice(&piece);
            log.push(piece.into()).await;
            assert_eq!(log.has_file(), whole.len() > MEMORY_BYTES);
            for from in [0, 1, whole.len() / 2, whole.len()] {
                assert_eq!(log.read(from as u64).await.unwrap(), (whole[from..].to_vec(), whole.len() as u64));
            }
        }
        assert_eq!(log.read(1 << 40).await.unwrap(), (Vec::new(), whole.len() as u64));
        log.forget();
        assert!(log.read(0).await.is_err());
    }
}
