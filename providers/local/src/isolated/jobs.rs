//! Commands that run on without a client: the agent keeps them.

use sandbox_agent_client::AgentJobs;
use sandbox_core::{ExecExit, ExecRequest, ExecStream, JobInfo, JobOffsets, Jobs, Result, SandboxHandle, async_trait};

use crate::provider::LocalProvider;

#[async_trait]
impl Jobs for LocalProvider {
    async fn start_job(&self, handle: &SandboxHandle, mut request: ExecRequest) -> Result<JobInfo> {
        request.validate()?;
        self.ask(handle, async |inside| {
            request.user = inside.user(request.user);
            AgentJobs(&inside.client).start(request).await
        })
        .await
    }

    async fn list_jobs(&self, handle: &SandboxHandle) -> Result<Vec<JobInfo>> {
        self.ask(handle, async |inside| AgentJobs(&inside.client).list().await).await
    }

    async fn attach_job(&self, handle: &SandboxHandle, job_id: String, since: JobOffsets) -> Result<ExecStream> {
        self.ask(handle, async |inside| AgentJobs(&inside.client).attach(job_id, since).await).await
    }

    async fn wait_job(
        &self,
        handle: &SandboxHandle,
        job_id: String,
        timeout_s: Option<f64>,
    ) -> Result<Option<ExecExit>> {
        // Not as an operation that a close waits for: it may take as long as the sandbox lives.
        let (sandbox, inside) = self.isolated(handle).await?;
        inside.check_not_paused(&sandbox.id)?;
        let waited = AgentJobs(&inside.client).wait(job_id, timeout_s).await;
        waited.map_err(|error| sandbox.explain(error))
    }

    async fn signal_job(&self, handle: &SandboxHandle, job_id: String, signal: i32, tree: bool) -> Result<()> {
        self.ask(handle, async |inside| AgentJobs(&inside.client).signal(job_id, signal, tree).await).await
    }
}
