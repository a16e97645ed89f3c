//! Commands that run on without a client: the agent keeps them.

use sandbox_agent_client::AgentJobs;
use sandbox_core::{ExecExit, ExecRequest, ExecStream, JobInfo, JobOffsets, Jobs, Result, SandboxHandle, async_trait};

use crate::provider::FargateProvider;

#[async_trait]
impl Jobs for FargateProvider {
    async fn start_job(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<JobInfo> {
        request.validate()?;
        let work = async |client| AgentJobs(&client).start(request).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn list_jobs(&self, handle: &SandboxHandle) -> Result<Vec<JobInfo>> {
        let work = async |client| AgentJobs(&client).list().await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn attach_job(&self, handle: &SandboxHandle, job_id: String, since: JobOffsets) -> Result<ExecStream> {
        let work = async |client| AgentJobs(&client).attach(job_id, since).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn wait_job(
        &self,
        handle: &SandboxHandle,
        job_id: String,
        timeout_s: Option<f64>,
    ) -> Result<Option<ExecExit>> {
        let work = async |client| AgentJobs(&client).wait(job_id, timeout_s).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }

    async fn signal_job(&self, handle: &SandboxHandle, job_id: String, signal: i32, tree: bool) -> Result<()> {
        let work = async |client| AgentJobs(&client).signal(job_id, signal, tree).await;
        self.shared.open(handle).await?.ask(&self.shared, work).await
    }
}
