//! Commands that run on without a client: the agent keeps them.

use sandbox_agent_client::AgentJobs;
use sandbox_core::{ExecExit, ExecRequest, ExecStream, JobInfo, JobOffsets, Jobs, Result, SandboxHandle, async_trait};

use super::{Native, surrounded};
use crate::provider::OpenSandboxProvider;

impl OpenSandboxProvider {
    async fn jobs_of(&self, handle: &SandboxHandle) -> Result<Native> {
        self.shared.open(handle)?;
        self.shared.agent(&handle.sandbox_id).await
    }
}

#[async_trait]
impl Jobs for OpenSandboxProvider {
    async fn start_job(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<JobInfo> {
        request.validate()?;
        let state = self.shared.open(handle)?;
        let agent = self.shared.agent(&handle.sandbox_id).await?;
        agent.ask(async |client| AgentJobs(&client).start(surrounded(&state, request)).await).await
    }

    async fn list_jobs(&self, handle: &SandboxHandle) -> Result<Vec<JobInfo>> {
        self.jobs_of(handle).await?.ask(async |client| AgentJobs(&client).list().await).await
    }

    async fn attach_job(&self, handle: &SandboxHandle, job_id: String, since: JobOffsets) -> Result<ExecStream> {
        self.jobs_of(handle).await?.ask(async |client| AgentJobs(&client).attach(job_id, since).await).await
    }

    async fn wait_job(
        &self,
        handle: &SandboxHandle,
        job_id: String,
        timeout_s: Option<f64>,
    ) -> Result<Option<ExecExit>> {
        self.jobs_of(handle).await?.ask(async |client| AgentJobs(&client).wait(job_id, timeout_s).await).await
    }

    async fn signal_job(&self, handle: &SandboxHandle, job_id: String, signal: i32, tree: bool) -> Result<()> {
        self.jobs_of(handle).await?.ask(async |client| AgentJobs(&client).signal(job_id, signal, tree).await).await
    }
}
