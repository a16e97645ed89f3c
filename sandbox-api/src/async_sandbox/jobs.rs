use std::time::Duration;

use sandbox_core::{
    Capability, ExecExit, ExecRequest, ExecStream, JobInfo, JobOffsets, Jobs, Metrics, Result, SandboxMetrics,
};

use super::{AsyncSandbox, ExecOptions};
use crate::checks;

impl AsyncSandbox {
    /// Starts a command that runs on without this process and keeps its output, and returns at once; see
    /// [`Jobs::start_job`]. Directory and user are filled in as for [`exec`](Self::exec); without a limit in the request
    /// it has none.
    ///
    /// # Errors
    /// As [`exec`](Self::exec); `Unsupported` without the capability.
    pub async fn start_job(&self, request: ExecRequest) -> Result<JobInfo> {
        let jobs = self.jobs_interface()?;
        let (live, request) = self.prepare_job(request, ExecOptions::new().without_timeout())?;
        self.call("start_job", self.timeouts.path, jobs.start_job(&live.handle, request)).await
    }

    /// The jobs of the sandbox, oldest first.
    ///
    /// # Errors
    /// `InvalidState` when it is not started; `Unsupported`; `TimedOut`; the provider's.
    pub async fn jobs(&self) -> Result<Vec<JobInfo>> {
        let (jobs, live) = (self.jobs_interface()?, self.cell.live()?);
        self.call("jobs", self.timeouts.query, jobs.list_jobs(&live.handle)).await
    }

    /// The output of a job from these offsets on, and its end; see [`Jobs::attach_job`].
    ///
    /// # Errors
    /// As [`jobs`](Self::jobs); `NotFound`.
    pub async fn attach_job(&self, job_id: &str, since: JobOffsets) -> Result<ExecStream> {
        let (jobs, live) = (self.jobs_interface()?, self.cell.live()?);
        self.call("attach_job", self.timeouts.query, jobs.attach_job(&live.handle, job_id.to_owned(), since)).await
    }

    /// Waits for the end of a job; none: it still runs after `limit`. Without a limit, until it ends.
    ///
    /// # Errors
    /// As [`jobs`](Self::jobs); `NotFound`.
    pub async fn wait_job(&self, job_id: &str, limit: Option<Duration>) -> Result<Option<ExecExit>> {
        let (jobs, live) = (self.jobs_interface()?, self.cell.live()?);
        let seconds = limit.map(|limit| limit.as_secs_f64());
        let wait = jobs.wait_job(&live.handle, job_id.to_owned(), seconds);
        match limit {
            Some(limit) => self.call("wait_job", self.timeouts.query.saturating_add(limit), wait).await,
            None => wait.await.map_err(|error| error.with_provider(self.provider.name())),
        }
    }

    /// Sends a signal to a job's process group, or with `tree` to everything below it. SIGKILL with `tree` also ends what
    /// a job that is over left in the background, and returns when that is gone.
    ///
    /// # Errors
    /// As [`jobs`](Self::jobs); `NotFound`; `InvalidInput`.
    pub async fn signal_job(&self, job_id: &str, signal: i32, tree: bool) -> Result<()> {
        let (jobs, live) = (self.jobs_interface()?, self.cell.live()?);
        let send = jobs.signal_job(&live.handle, job_id.to_owned(), signal, tree);
        self.call("signal_job", self.timeouts.query, send).await
    }

    /// What the sandbox uses right now.
    ///
    /// # Errors
    /// `InvalidState` when it is not started; `Unsupported`; `TimedOut`; the provider's.
    pub async fn metrics(&self) -> Result<SandboxMetrics> {
        let provider: &dyn Metrics =
            checks::require(self.provider.name(), self.provider.as_metrics(), Capability::Metrics)?;
        let live = self.cell.live()?;
        self.call("metrics", self.timeouts.query, provider.metrics(&live.handle)).await
    }

    fn jobs_interface(&self) -> Result<&dyn Jobs> {
        checks::require(self.provider.name(), self.provider.as_jobs(), Capability::Jobs)
    }
}
