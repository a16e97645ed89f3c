//! Files, through the agent.

use std::path::Path;

use bytes::Bytes;
use sandbox_agent_client::AgentFiles;
use sandbox_core::{
    ByteString, DirEntry, FileStat, Files, ReadRange, Result, SandboxHandle, WriteOptions, async_trait,
};

use crate::provider::FargateProvider;

#[async_trait]
impl Files for FargateProvider {
    async fn read_file(&self, handle: &SandboxHandle, path: ByteString, range: ReadRange) -> Result<Bytes> {
        let work = async |client| AgentFiles(&client).read(path, range).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn write_file(
        &self,
        handle: &SandboxHandle,
        path: ByteString,
        data: Bytes,
        options: WriteOptions,
    ) -> Result<()> {
        let work = async |client| AgentFiles(&client).write(path, data, options).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn list_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<Vec<DirEntry>> {
        let work = async |client| AgentFiles(&client).list(path).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn stat(&self, handle: &SandboxHandle, path: ByteString) -> Result<FileStat> {
        let work = async |client| AgentFiles(&client).stat(path).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn remove(&self, handle: &SandboxHandle, path: ByteString, recursive: bool) -> Result<()> {
        let work = async |client| AgentFiles(&client).remove(path, recursive).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn make_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<()> {
        let work = async |client| AgentFiles(&client).make_dir(path).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn upload_dir(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        let work = async |client| AgentFiles(&client).upload_dir(local, remote.clone()).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn download_dir(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        let work = async |client| AgentFiles(&client).download_dir(remote.clone(), local).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }
}
