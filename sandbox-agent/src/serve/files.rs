//! The methods about single entries.

use rustix::{
    fs::{AtFlags, OFlags, unlinkat},
    io::Errno,
};
use sandbox_core::{ByteString, DirEntry, ErrorKind, FileKind, Result, SandboxError};
use sandbox_protocol::{
    StreamResponder,
    methods::{FileList, FilePath, FileRemove, MakeDir},
};

use super::{
    agent::{Agent, nothing},
    paths::{Place, bad_path, make_folders, names, os, stat},
    remove::remove_tree,
};

/// Does file work on a thread of its own: a file system that hangs holds nobody else.
pub(super) async fn work<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => Err(SandboxError::internal("the agent's worker panicked")),
        Err(_) => Err(SandboxError::invalid_state("the sandbox is closing")),
    }
}

impl Agent {
    pub(super) fn place(&self, path: &ByteString) -> Result<Place> {
        Place::new(path, self.surroundings.absolute(path.as_bytes()))
    }

    pub(super) async fn file_stat(&self, request: FilePath) -> Result<StreamResponder> {
        let place = self.place(&request.path)?;
        let found = work(move || {
            let file = place.open(OFlags::PATH | OFlags::NOFOLLOW)?;
            stat(file, b"").map_err(place.failed())
        })
        .await?;
        StreamResponder::reply(&found)
    }

    pub(super) async fn file_list(&self, request: FilePath) -> Result<StreamResponder> {
        let place = self.place(&request.path)?;
        let entries = work(move || {
            let folder = place.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
            let mut entries = Vec::new();
            for name in names(&folder, &place.shown)? {
                match stat(&folder, &name) {
                    Ok(stat) => entries.push(DirEntry { name: ByteString::new(name), stat }),
                    // Removed meanwhile.
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(os(&place.shown, errno)),
                }
            }
            Ok(entries)
        })
        .await?;
        StreamResponder::reply(&FileList { entries })
    }

    pub(super) async fn file_remove(&self, request: FileRemove) -> Result<StreamResponder> {
        let FileRemove { path, recursive } = request;
        let place = self.place(&path)?;
        nothing(
            work(move || {
                let entry = place.entry()?;
                let found = stat(&entry.folder, &entry.name).map_err(place.failed())?;
                let flags = match found.kind {
                    FileKind::Directory if recursive => return remove_tree(&entry.folder, &entry.name, &place.shown),
                    FileKind::Directory => AtFlags::REMOVEDIR,
                    _ if place.path.ends_with(b"/") => return Err(bad_path(&place.shown, "is not a folder")),
                    _ => AtFlags::empty(),
                };
                unlinkat(&entry.folder, entry.name.as_slice(), flags).map_err(place.failed())
            })
            .await,
        )
    }

    pub(super) async fn file_make_dir(&self, request: MakeDir) -> Result<StreamResponder> {
        let place = self.place(&request.path)?;
        let owner = self.surroundings.owner(request.owner.as_deref())?;
        nothing(
            work(move || match make_folders(&place.path, owner) {
                Ok(_) => Ok(()),
                Err(Errno::NOTDIR) => {
                    let message = format!("{} or a part of it is there and is not a folder", place.shown);
                    Err(SandboxError::new(ErrorKind::AlreadyExists, message))
                }
                Err(errno) => Err(os(&place.shown, errno)),
            })
            .await,
        )
    }
}
