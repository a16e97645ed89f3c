use std::{path::Path, sync::Arc};

use sandbox_core::{
    ByteString, Capability, DirEntry, FileStat, Files, ReadRange, Result, SandboxError, WriteOptions, bytes::Bytes,
};

use super::{AsyncSandbox, state::Live};
use crate::{checks, staging::Staged};

/// Paths inside the sandbox are absolute, or relative to the default directory: that of
/// [`set_default_workdir`](Self::set_default_workdir), else the spec's workdir, the same as for commands. `~` means
/// nothing special.
///
/// The methods of this block fail with `InvalidState` when the sandbox is not started, with `InvalidInput` for an empty
/// path or one with a NUL byte, with `TimedOut`, and with what the provider says.
impl AsyncSandbox {
    /// Copies a file of this host into the sandbox. Parent folders are made; permission bits are kept; the owner is the
    /// sandbox's default user.
    ///
    /// # Errors
    /// As above, and those of [`upload_file`](sandbox_core::SandboxProvider::upload_file).
    pub async fn upload(&self, local: impl AsRef<Path> + Send, remote: impl Into<ByteString> + Send) -> Result<()> {
        let (live, remote) = self.at(remote)?;
        let upload = self.provider.upload_file(&live.handle, local.as_ref(), &remote);
        self.call("upload", self.timeouts.transfer, upload).await
    }

    /// Copies a regular file of the sandbox to this host. Parent folders are made; an old file stays as it was when
    /// this fails.
    ///
    /// # Errors
    /// As above, and those of [`download_file`](sandbox_core::SandboxProvider::download_file).
    pub async fn download(&self, remote: impl Into<ByteString> + Send, local: impl AsRef<Path> + Send) -> Result<()> {
        let (live, remote) = self.at(remote)?;
        let download = self.provider.download_file(&live.handle, &remote, local.as_ref());
        self.call("download", self.timeouts.transfer, download).await
    }

    /// Reads a whole file into memory. Works on every provider.
    ///
    /// # Errors
    /// As above.
    pub async fn read_file(&self, path: impl Into<ByteString> + Send) -> Result<Bytes> {
        self.read_file_range(path, ReadRange::default()).await
    }

    /// Reads a part of a file into memory. Works on every provider; one without the files capability transfers the
    /// whole file all the same.
    ///
    /// # Errors
    /// As above.
    pub async fn read_file_range(&self, path: impl Into<ByteString> + Send, range: ReadRange) -> Result<Bytes> {
        let (live, path) = self.at(path)?;
        if let Some(files) = self.provider.as_files() {
            return self.call("read", self.timeouts.transfer, files.read_file(&live.handle, path, range)).await;
        }
        let staged = Staged::empty().await?;
        let download = self.provider.download_file(&live.handle, &path, staged.path());
        self.call("read", self.timeouts.transfer, download).await?;
        let all = staged.read().await?;
        let start = usize::try_from(range.offset).unwrap_or(usize::MAX).min(all.len());
        let length = range.length.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX);
        Ok(all.slice(start..start.saturating_add(length).min(all.len())))
    }

    /// Writes a whole file. Parent folders are made. Works on every provider.
    ///
    /// # Errors
    /// As above.
    pub async fn write_file(
        &self,
        path: impl Into<ByteString> + Send,
        contents: impl Into<Bytes> + Send,
    ) -> Result<()> {
        self.write_file_with(path, contents, WriteOptions::default()).await
    }

    /// [`write_file`](Self::write_file) with permission bits and an owner. Only a provider with the files capability
    /// can set the owner, and keep the permission bits of an old file.
    ///
    /// # Errors
    /// As above; `Unsupported` for an owner without the capability.
    pub async fn write_file_with(
        &self,
        path: impl Into<ByteString> + Send,
        contents: impl Into<Bytes> + Send,
        options: WriteOptions,
    ) -> Result<()> {
        let contents = contents.into();
        let (live, path) = self.at(path)?;
        if let Some(files) = self.provider.as_files() {
            let write = files.write_file(&live.handle, path, contents, options);
            return self.call("write", self.timeouts.transfer, write).await;
        }
        if options.owner.is_some() {
            return Err(SandboxError::unsupported(self.provider.name(), Capability::Files));
        }
        let staged = Staged::with_contents(contents, options.mode).await?;
        let upload = self.provider.upload_file(&live.handle, staged.path(), &path);
        self.call("write", self.timeouts.transfer, upload).await
    }

    /// Copies the contents of a folder of this host into a folder of the sandbox; see
    /// [`Files::upload_dir`].
    ///
    /// # Errors
    /// As above; `Unsupported` without the files capability.
    pub async fn upload_dir(&self, local: impl AsRef<Path> + Send, remote: impl Into<ByteString> + Send) -> Result<()> {
        let (live, remote) = self.at(remote)?;
        let upload = self.files()?.upload_dir(&live.handle, local.as_ref(), &remote);
        self.call("upload", self.timeouts.transfer, upload).await
    }

    /// Copies the contents of a folder of the sandbox into a folder of this host; see [`Files::download_dir`].
    ///
    /// # Errors
    /// As above; `Unsupported` without the files capability.
    pub async fn download_dir(
        &self,
        remote: impl Into<ByteString> + Send,
        local: impl AsRef<Path> + Send,
    ) -> Result<()> {
        let (live, remote) = self.at(remote)?;
        let download = self.files()?.download_dir(&live.handle, &remote, local.as_ref());
        self.call("download", self.timeouts.transfer, download).await
    }

    /// The entries of a folder, sorted by name.
    ///
    /// # Errors
    /// As above; `Unsupported` without the files capability.
    pub async fn list(&self, path: impl Into<ByteString> + Send) -> Result<Vec<DirEntry>> {
        let (live, path) = self.at(path)?;
        self.call("list", self.timeouts.path, self.files()?.list_dir(&live.handle, path)).await
    }

    /// What a path is. A link is described itself.
    ///
    /// # Errors
    /// As above; `Unsupported` without the files capability.
    pub async fn stat(&self, path: impl Into<ByteString> + Send) -> Result<FileStat> {
        let (live, path) = self.at(path)?;
        self.call("stat", self.timeouts.path, self.files()?.stat(&live.handle, path)).await
    }

    /// Removes a file, a link or an empty folder.
    ///
    /// # Errors
    /// As above; `Unsupported` without the files capability.
    pub async fn remove(&self, path: impl Into<ByteString> + Send) -> Result<()> {
        let (live, path) = self.at(path)?;
        self.call("remove", self.timeouts.path, self.files()?.remove(&live.handle, path, false)).await
    }

    /// Removes a file, a link, or a folder with everything in it.
    ///
    /// # Errors
    /// As above; `Unsupported` without the files capability.
    pub async fn remove_all(&self, path: impl Into<ByteString> + Send) -> Result<()> {
        let (live, path) = self.at(path)?;
        self.call("remove", self.timeouts.path, self.files()?.remove(&live.handle, path, true)).await
    }

    /// Makes a folder and its parents. One that is there already is fine.
    ///
    /// # Errors
    /// As above; `Unsupported` without the files capability.
    pub async fn make_dir(&self, path: impl Into<ByteString> + Send) -> Result<()> {
        let (live, path) = self.at(path)?;
        self.call("make_dir", self.timeouts.path, self.files()?.make_dir(&live.handle, path)).await
    }

    fn files(&self) -> Result<&dyn Files> {
        checks::require(self.provider.name(), self.provider.as_files(), Capability::Files)
    }

    /// The sandbox, and a path as its provider is to see it.
    fn at(&self, path: impl Into<ByteString>) -> Result<(Arc<Live>, ByteString)> {
        let live = self.cell.live()?;
        let path = path.into();
        if path.is_empty() || path.as_bytes().contains(&0) {
            return Err(SandboxError::invalid_input("path", "must not be empty and must not contain a NUL byte"));
        }
        let path = live.resolve(path);
        Ok((live, path))
    }
}
