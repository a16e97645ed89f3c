//! Files, through the agent.

use std::path::Path;

use bytes::Bytes;
use sandbox_agent_client::AgentFiles;
use sandbox_core::{
    ByteString, DirEntry, FileStat, Files, ReadRange, Result, SandboxHandle, WriteOptions, async_trait,
};
use sandbox_protocol::Client;

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
        let path = absolute(&state, &path);
        let work = async |client| {
            make_parents(&client, &path, &state).await?;
            AgentFiles(&client).write(path, data, options).await
        };
        agent.ask(work).await
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

/// Makes what is missing above a file. The agent does so for its own user; here it is the sandbox's.
async fn make_parents(client: &Client, path: &ByteString, state: &State) -> Result<()> {
    let slash = path.as_bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    if state.user.is_none() || slash == 0 || slash + 1 == path.len() {
        return Ok(());
    }
    AgentFiles(client).make_dir_for(ByteString::new(&path.as_bytes()[..slash]), state.user.clone()).await
}

impl Native {
    /// Copies a file of this host into the sandbox.
    pub(crate) async fn upload(&self, state: &State, local: &Path, remote: &ByteString) -> Result<()> {
        let (path, owner) = (absolute(state, remote), state.user.clone());
        let work = async |client| {
            make_parents(&client, &path, state).await?;
            AgentFiles(&client).upload_file_for(local, path, owner).await
        };
        self.ask(work).await
    }

    /// Copies a regular file out of the sandbox.
    pub(crate) async fn download(&self, state: &State, remote: &ByteString, local: &Path) -> Result<()> {
        self.ask(async |client| AgentFiles(&client).download_file(absolute(state, remote), local).await).await
    }
}
