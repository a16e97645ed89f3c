use serde::{Deserialize, Serialize};

use crate::{ExecExit, ExecRequest, ExecStream, Result, SandboxHandle};

/// Commands that run on without a client and keep their output.
///
/// A job is known by the `exec_id` of its request. It lives until its command ends, a limit of the request is hit, it is
/// killed, or the sandbox closes; its output and its end are kept (bounded, head and tail) until the sandbox closes.
#[crate::async_trait]
pub trait Jobs: Send + Sync {
    /// Starts a command and returns at once. Its input is at end-of-file. An id that is known already starts nothing:
    /// the job of that id is returned.
    ///
    /// # Errors
    /// As [`exec`](crate::SandboxProvider::exec); a command that cannot be started is a job whose exit says so.
    async fn start_job(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<JobInfo>;

    /// The jobs of a sandbox, oldest first, those that are over among them.
    ///
    /// # Errors
    /// `NotFound` when the sandbox is gone.
    async fn list_jobs(&self, handle: &SandboxHandle) -> Result<Vec<JobInfo>>;

    /// The output of a job from these offsets on, then what it still writes, then its end. Dropping the stream leaves
    /// the job alone. Bytes that are no longer kept are a [`Gap`](crate::ExecEvent::Gap).
    ///
    /// # Errors
    /// `NotFound` for an id that is not known.
    async fn attach_job(&self, handle: &SandboxHandle, job_id: String, since: JobOffsets) -> Result<ExecStream>;

    /// Waits for the end of a job, for at most `timeout_s` seconds; none: until it ends. No exit: it still runs.
    ///
    /// # Errors
    /// `NotFound` for an id that is not known.
    async fn wait_job(
        &self,
        handle: &SandboxHandle,
        job_id: String,
        timeout_s: Option<f64>,
    ) -> Result<Option<ExecExit>>;

    /// Sends a signal to the process group of a job, or with `tree` to every process below it. One that is over is
    /// fine; with SIGKILL and `tree` what it left in the background is killed then, and the call returns when that is
    /// gone.
    ///
    /// # Errors
    /// `NotFound` for an id that is not known; `InvalidInput` for a number that is no signal; `TimedOut` when what a job
    /// left is still there after its kill.
    async fn signal_job(&self, handle: &SandboxHandle, job_id: String, signal: i32, tree: bool) -> Result<()>;
}

/// Bytes of a job's output that are known already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOffsets {
    /// Of standard output.
    pub stdout: u64,
    /// Of standard error.
    pub stderr: u64,
}

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobInfo {
    /// Its id.
    pub job_id: String,
    /// When it started, in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// Process id inside the sandbox, while it runs, where that is known.
    pub pid: Option<u32>,
    /// How it ended; none while it runs.
    pub exit: Option<ExecExit>,
    /// Bytes of standard output so far.
    pub stdout_bytes: u64,
    /// Bytes of standard error so far.
    pub stderr_bytes: u64,
}
