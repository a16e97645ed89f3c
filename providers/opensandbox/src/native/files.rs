//! Files, through the agent.

use std::path::Path;

use bytes::Bytes;
use sandbox_agent_client::AgentFiles;
use sandbox_core::{
    ByteString, DirEntry, FileStat, Files, ReadRange, Result, SandboxHandle, WriteOptions, async_trait,
};

use super::{Native, absolute};
use crate::{provider::OpenSandboxProvider, state::State};

impl OpenSandboxProvider {
    /// The agent of a sandbox, and what the sandbox is like.
    async fn files_of(&self, handle: &SandboxHandle) -> Result<(Native, State)> {
        let state = self.shared.open(handle)?;
        Ok((self.shared.agent(&handle.sandbox_id).await?, state))
    }
}

#[async_trait]
impl Files for OpenSandboxProvider {
    async fn read_file(&self, handle: &SandboxHandle, path: ByteString, range: ReadRange) -> Result<Bytes> {
        let (agent, state) = self.files_of(handle).await?;
        agent.ask(async |client| AgentFiles(&client).read(absolute(&state, &path), range).await).await
    }

    async fn write_file(
        &self,
        handle: &SandboxHandle,
        path: ByteString,
        data: Bytes,
        mut options: WriteOptions,
    ) -> Result<()> {
        let (agent, state) = self.files_of(handle).await?;
        options.owner = options.owner.or_else(|| state.user.clone());
        agent.ask(async |client| AgentFiles(&client).write(absolute(&state, &path), data, options).await).await
    }

    async fn list_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<Vec<DirEntry>> {
        let (agent, state) = self.files_of(handle).await?;
        agent.ask(async |client| AgentFiles(&client).list(absolute(&state, &path)).await).await
    }

    async fn stat(&self, handle: &SandboxHandle, path: ByteString) -> Result<FileStat> {
        let (agent, state) = self.files_of(handle).await?;
        agent.ask(async |client| AgentFiles(&client).stat(absolute(&state, &path)).await).await
    }

    async fn remove(&self, handle: &SandboxHandle, path: ByteString, recursive: bool) -> Result<()> {
        let (agent, state) = self.files_of(handle).await?;
        agent.ask(async |client| AgentFiles(&client).remove(absolute(&state, &path), recursive).await).await
    }

    async fn make_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<()> {
        let (agent, state) = self.files_of(handle).await?;
        let owner = state.user.clone();
        agent.ask(async |client| AgentFiles(&client).make_dir_for(absolute(&state, &path), owner).await).await
    }

    async fn upload_dir(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        let (agent, state) = self.files_of(handle).await?;
        let owner = state.user.clone();
        agent.ask(async |client| AgentFiles(&client).upload_dir_for(local, absolute(&state, remote), owner).await).await
    }

    async fn download_dir(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        let (agent, state) = self.files_of(handle).await?;
        agent.ask(async |client| AgentFiles(&client).download_dir(absolute(&state, remote), local).await).await
    }
}

impl Native {
    /// Copies a file of this host into the sandbox.
    pub(crate) async fn upload(&self, state: &State, local: &Path, remote: &ByteString) -> Result<()> {
        let (path, owner) = (absolute(state, remote), state.user.clone());
        self.ask(async |client| AgentFiles(&client).upload_file_for(local, path, owner).await).await
    }

    /// Copies a regular file out of the sandbox.
    pub(crate) async fn download(&self, state: &State, remote: &ByteString, local: &Path) -> Result<()> {
        self.ask(async |client| AgentFiles(&client).download_file(absolute(state, remote), local).await).await
    }
}
