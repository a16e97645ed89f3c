//! Private places on this host's disk for what passes through on its way into or out of a sandbox.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use sandbox_core::{Result, SandboxError, bytes::Bytes};
use tempfile::TempDir;

/// Permission bits of a file that is written into a sandbox, unless asked otherwise.
const DEFAULT_MODE: u32 = 0o644;

/// A file in a folder that only this user can enter, so that the file itself can have the permission bits that it is
/// to have in the sandbox. Removed when dropped.
pub(crate) struct Staged {
    // Removes the folder.
    _folder: TempDir,
    file: PathBuf,
}

impl Staged {
    /// A file with these contents.
    pub(crate) async fn with_contents(contents: Bytes, mode: Option<u32>) -> Result<Self> {
        blocking(move || {
            let staged = Self::new()?;
            fs::write(&staged.file, &contents)?;
            fs::set_permissions(&staged.file, fs::Permissions::from_mode(mode.unwrap_or(DEFAULT_MODE)))?;
            Ok(staged)
        })
        .await
    }

    /// A place for a file that is not there yet.
    pub(crate) async fn empty() -> Result<Self> {
        blocking(Self::new).await
    }

    /// The contents.
    pub(crate) async fn read(self) -> Result<Bytes> {
        blocking(move || fs::read(&self.file).map(Bytes::from)).await
    }

    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("sandbox-").tempdir()?;
        let file = folder.path().join("file");
        Ok(Self { _folder: folder, file })
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| SandboxError::io("temporary file", error)),
        Err(_) => Err(SandboxError::internal("the temporary file could not be written: the runtime is shutting down")),
    }
}
