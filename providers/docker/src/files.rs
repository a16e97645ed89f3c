//! Files: through the agent where there is one, else through the engine's archives.

use std::path::Path;

use bytes::Bytes;
use sandbox_agent_client::AgentFiles;
use sandbox_core::{
    ByteString, DirEntry, FileStat, Files, ReadRange, Result, SandboxHandle, WriteOptions, async_trait,
};

use crate::{bare, provider::DockerProvider};

impl DockerProvider {
    pub(crate) async fn upload(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        let sandbox = self.open(handle).await?;
        if sandbox.link.is_none() {
            sandbox.check_not_paused()?;
            return bare::upload_file(&self.shared.target(&sandbox), local, remote).await;
        }
        let work = async |client| AgentFiles(&client).upload_file(local, remote.clone()).await;
        sandbox.ask(&self.shared.engine, "an upload", work).await
    }

    pub(crate) async fn download(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        let sandbox = self.open(handle).await?;
        if sandbox.link.is_none() {
            sandbox.check_not_paused()?;
            return bare::download_file(&self.shared.target(&sandbox), remote, local).await;
        }
        let work = async |client| AgentFiles(&client).download_file(remote.clone(), local).await;
        sandbox.ask(&self.shared.engine, "a download", work).await
    }
}

#[async_trait]
impl Files for DockerProvider {
    async fn read_file(&self, handle: &SandboxHandle, path: ByteString, range: ReadRange) -> Result<Bytes> {
        let work = async |client| AgentFiles(&client).read(path, range).await;
        self.open(handle).await?.ask(&self.shared.engine, "reading a file", work).await
    }

    async fn write_file(
        &self,
        handle: &SandboxHandle,
        path: ByteString,
        data: Bytes,
        options: WriteOptions,
    ) -> Result<()> {
        let work = async |client| AgentFiles(&client).write(path, data, options).await;
        self.open(handle).await?.ask(&self.shared.engine, "writing a file", work).await
    }

    async fn list_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<Vec<DirEntry>> {
        let work = async |client| AgentFiles(&client).list(path).await;
        self.open(handle).await?.ask(&self.shared.engine, "listing a folder", work).await
    }

    async fn stat(&self, handle: &SandboxHandle, path: ByteString) -> Result<FileStat> {
        let work = async |client| AgentFiles(&client).stat(path).await;
        self.open(handle).await?.ask(&self.shared.engine, "looking at a file", work).await
    }

    async fn remove(&self, handle: &SandboxHandle, path: ByteString, recursive: bool) -> Result<()> {
        let work = async |client| AgentFiles(&client).remove(path, recursive).await;
        self.open(handle).await?.ask(&self.shared.engine, "removing a file", work).await
    }

    async fn make_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<()> {
        let work = async |client| AgentFiles(&client).make_dir(path).await;
        self.open(handle).await?.ask(&self.shared.engine, "making a folder", work).await
    }

    async fn upload_dir(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        let sandbox = self.open(handle).await?;
        if sandbox.link.is_none() {
            sandbox.check_not_paused()?;
            return bare::upload_dir(&self.shared.target(&sandbox), local, remote).await;
        }
        let work = async |client| AgentFiles(&client).upload_dir(local, remote.clone()).await;
        sandbox.ask(&self.shared.engine, "an upload", work).await
    }

    async fn download_dir(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        let sandbox = self.open(handle).await?;
        if sandbox.link.is_none() {
            sandbox.check_not_paused()?;
            return bare::download_dir(&self.shared.target(&sandbox), remote, local).await;
        }
        let work = async |client| AgentFiles(&client).download_dir(remote.clone(), local).await;
        sandbox.ask(&self.shared.engine, "a download", work).await
    }
}
