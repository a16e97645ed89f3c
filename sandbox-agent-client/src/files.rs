//! File operations through the agent: paths are the sandbox's own, and are opened by it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use sandbox_core::{ByteString, DirEntry, ErrorKind, FileStat, ReadRange, Result, SandboxError, WriteOptions};
use sandbox_protocol::{
    Body, Client,
    methods::{self, BytesMoved, FileList, FilePath, FileRead, FileRemove, FileWrite, MakeDir, Nothing, TarIn},
};

use crate::{
    folders,
    host_file::{feed, open_source, receive_file},
    passed,
};

/// The most that is read of a file at once, in bytes.
pub const READ_MAX_BYTES: usize = 64 << 20;

/// The contract's file operations of one sandbox. Dropping a future cancels the call.
#[derive(Clone, Copy, Debug)]
pub struct AgentFiles<'a>(pub &'a Client);

impl AgentFiles<'_> {
    /// Reads a file or a part of it, at most [`READ_MAX_BYTES`].
    ///
    /// # Errors
    /// Those of the contract; `Exhausted` for more bytes.
    pub async fn read(&self, path: ByteString, range: ReadRange) -> Result<Bytes> {
        self.read_at_most(path, range, READ_MAX_BYTES).await
    }

    /// As [`AgentFiles::read`], with another limit, in bytes.
    ///
    /// # Errors
    /// As there.
    pub async fn read_at_most(&self, path: ByteString, range: ReadRange, max_bytes: usize) -> Result<Bytes> {
        let request = FileRead { path, range };
        let (_, body): (FileStat, _) = self.0.call_for_body(methods::FILE_READ, &request).await?;
        body.collect(max_bytes).await.map_err(|error| match error.kind() {
            ErrorKind::Exhausted => {
                let message = format!("{} has more than {max_bytes} bytes to read at once", request.path);
                SandboxError::exhausted(message).with_help("download it, or read it in parts")
            }
            _ => error,
        })
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// Those of the contract.
    pub async fn write(&self, path: ByteString, data: Bytes, options: WriteOptions) -> Result<()> {
        let request = FileWrite { path, options };
        let body = Body::from_bytes(data);
        self.0.call_with_body::<BytesMoved>(methods::FILE_WRITE, &request, body).await.map(drop)
    }

    /// The entries of a folder.
    ///
    /// # Errors
    /// Those of the contract.
    pub async fn list(&self, path: ByteString) -> Result<Vec<DirEntry>> {
        let list: FileList = self.0.call(methods::FILE_LIST, &FilePath { path }).await?;
        Ok(list.entries)
    }

    /// What a path is.
    ///
    /// # Errors
    /// Those of the contract.
    pub async fn stat(&self, path: ByteString) -> Result<FileStat> {
        self.0.call(methods::FILE_STAT, &FilePath { path }).await
    }

    /// Removes a file, a link or a folder.
    ///
    /// # Errors
    /// Those of the contract.
    pub async fn remove(&self, path: ByteString, recursive: bool) -> Result<()> {
        self.0.call::<Nothing>(methods::FILE_REMOVE, &FileRemove { path, recursive }).await.map(drop)
    }

    /// Makes a folder and its parents.
    ///
    /// # Errors
    /// Those of the contract.
    pub async fn make_dir(&self, path: ByteString) -> Result<()> {
        self.make_dir_for(path, None).await
    }

    /// The same for an owner, in the forms of a user; none: the agent's own default.
    ///
    /// # Errors
    /// As there; `Unsupported` where the agent is too old to give folders an owner.
    pub async fn make_dir_for(&self, path: ByteString, owner: Option<String>) -> Result<()> {
        if owner.is_some() {
            self.0.peer().require(methods::FEATURE_MAKE_DIR_OWNER)?;
        }
        self.0.call::<Nothing>(methods::FILE_MAKE_DIR, &MakeDir { path, owner }).await.map(drop)
    }

    /// Copies a file of this host into the sandbox, by the kernel where the connection passes descriptors.
    ///
    /// # Errors
    /// Those of the contract.
    pub async fn upload_file(&self, local: &Path, remote: ByteString) -> Result<()> {
        self.upload_file_for(local, remote, None).await
    }

    /// The same for an owner, in the forms of a user; none: the agent's own default.
    ///
    /// # Errors
    /// As there.
    pub async fn upload_file_for(&self, local: &Path, remote: ByteString, owner: Option<String>) -> Result<()> {
        let source = open_source(local).await?;
        let options = WriteOptions { mode: Some(source.mode), owner };
        if let Some(moved) = passed::upload(self.0, &source, &remote, &options).await {
            return moved;
        }
        let request = FileWrite { path: remote, options };
        let (sender, body) = Body::channel();
        let call = self.0.call_with_body::<BytesMoved>(methods::FILE_WRITE, &request, body);
        // The call tells what went wrong on either side.
        let (moved, ()) = tokio::join!(call, feed(source, sender));
        moved.map(drop)
    }

    /// Copies a regular file out of the sandbox, by the kernel where the connection passes descriptors. A failure leaves
    /// an old file as it was.
    ///
    /// # Errors
    /// Those of the contract.
    pub async fn download_file(&self, remote: ByteString, local: &Path) -> Result<()> {
        if let Some(moved) = passed::download(self.0, &remote, local).await {
            return moved;
        }
        let request = FileRead { path: remote, ..FileRead::default() };
        let (stat, body): (FileStat, Body) = self.0.call_for_body(methods::FILE_READ, &request).await?;
        receive_file(body, stat.mode, local).await
    }

    /// Copies the contents of a folder of this host into a folder of the sandbox.
    ///
    /// # Errors
    /// Those of the contract.
    pub async fn upload_dir(&self, local: &Path, remote: ByteString) -> Result<()> {
        self.upload_dir_for(local, remote, None).await
    }

    /// The same for an owner, in the forms of a user; none: the agent's own default.
    ///
    /// # Errors
    /// As there.
    pub async fn upload_dir_for(&self, local: &Path, remote: ByteString, owner: Option<String>) -> Result<()> {
        let (sender, body) = Body::channel();
        let packing = folders::send_folder(local.to_owned(), sender);
        let request = TarIn { path: remote, owner };
        let call = self.0.call_with_body::<BytesMoved>(methods::FILE_TAR_IN, &request, body);
        // The call tells what went wrong on either side.
        let (moved, packed) = tokio::join!(call, packing);
        // A folder of this host that cannot be opened is not sent at all, and that is what is told.
        match packed {
            Err(error) if moved.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost) => Err(error),
            packed => moved.and(packed),
        }
    }

    /// Copies the contents of a folder of the sandbox into a folder of this host.
    ///
    /// # Errors
    /// Those of the contract.
    pub async fn download_dir(&self, remote: ByteString, local: &Path) -> Result<()> {
        // A folder, or a link to one, and nothing else.
        let path = ByteString::new([remote.as_bytes(), b"/."].concat());
        let request = FilePath { path };
        let (Nothing {}, body) = self.0.call_for_body(methods::FILE_TAR_OUT, &request).await?;
        folders::receive_folder(body, local.to_owned(), remote.to_string(), 0).await
    }
}

/// Tells work on another thread that nobody waits for it any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(SandboxError::invalid_state("cancelled")),
            false => Ok(()),
        }
    }

    /// Cancels when it is dropped.
    pub(crate) fn on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }
}

pub(crate) struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}
