//! File operations in an isolated sandbox, all through its agent: paths are the sandbox's own, and are opened by it.

use std::path::Path;

use bytes::Bytes;
use sandbox_agent_client::AgentFiles;
use sandbox_core::{ByteString, DirEntry, FileStat, ReadRange, Result, WriteOptions};

use crate::{
    files::READ_MAX_BYTES,
    isolated::{create::is_only_user, inside::Inside},
    sandbox::Sandbox,
};

/// The files of one isolated sandbox.
pub(crate) struct IsolatedFiles<'a> {
    sandbox: &'a Sandbox,
    inside: &'a Inside,
}

impl<'a> IsolatedFiles<'a> {
    /// None for a sandbox that is not isolated.
    pub(crate) fn of(sandbox: &'a Sandbox) -> Option<Self> {
        Some(Self { sandbox, inside: sandbox.inside.as_deref()? })
    }

    fn agent(&self) -> AgentFiles<'a> {
        AgentFiles(&self.inside.client)
    }

    /// Does work that a close waits for.
    async fn work<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let _busy = self.sandbox.enter()?;
        self.inside.check_not_paused(&self.sandbox.id)?;
        work.await.map_err(|error| self.sandbox.explain(error))
    }

    pub(crate) async fn read(&self, path: ByteString, range: ReadRange) -> Result<Bytes> {
        self.work(self.agent().read_at_most(path, range, READ_MAX_BYTES as usize)).await
    }

    pub(crate) async fn write(&self, path: ByteString, data: Bytes, mut options: WriteOptions) -> Result<()> {
        if self.inside.has_one_user() {
            options.owner = options.owner.filter(|owner| !is_only_user(owner));
        }
        self.work(self.agent().write(path, data, options)).await
    }

    pub(crate) async fn list(&self, path: ByteString) -> Result<Vec<DirEntry>> {
        self.work(self.agent().list(path)).await
    }

    pub(crate) async fn stat(&self, path: ByteString) -> Result<FileStat> {
        self.work(self.agent().stat(path)).await
    }

    pub(crate) async fn remove(&self, path: ByteString, recursive: bool) -> Result<()> {
        self.work(self.agent().remove(path, recursive)).await
    }

    pub(crate) async fn make_dir(&self, path: ByteString) -> Result<()> {
        self.work(self.agent().make_dir(path)).await
    }

    pub(crate) async fn upload_file(&self, local: &Path, remote: ByteString) -> Result<()> {
        self.work(self.agent().upload_file(local, remote)).await
    }

    pub(crate) async fn download_file(&self, remote: ByteString, local: &Path) -> Result<()> {
        self.work(self.agent().download_file(remote, local)).await
    }

    pub(crate) async fn upload_dir(&self, local: &Path, remote: ByteString) -> Result<()> {
        self.work(self.agent().upload_dir(local, remote)).await
    }

    pub(crate) async fn download_dir(&self, remote: ByteString, local: &Path) -> Result<()> {
        self.work(self.agent().download_dir(remote, local)).await
    }
}
