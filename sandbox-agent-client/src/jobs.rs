//! Commands that run on without a client: the agent keeps them.

use bytes::Bytes;
use sandbox_core::{
    Admitted, ControlReply, ControlRequest, ErrorKind, ExecEvent, ExecExit, ExecRequest, ExecStream, JobInfo,
    JobOffsets, Result, SandboxError, Session, SessionControl, SessionSink, async_trait,
};
use sandbox_protocol::{
    Client, LogEvent,
    methods::{self, ExecInfo, ExecList, ExecLogs, ExecLogsAt, ExecSignal, ExecStart, ExecWait, ExecWaited, Nothing},
};

const SIGKILL: i32 = 9;

/// The jobs of one agent.
pub struct AgentJobs<'a>(pub &'a Client);

impl AgentJobs<'_> {
    /// Starts a command, which goes on whoever waits for it.
    ///
    /// # Errors
    /// Those of the contract.
    pub async fn start(&self, request: ExecRequest) -> Result<JobInfo> {
        request.validate()?;
        // Detached: it goes on when its stream is dropped.
        let (started, _) = self.0.exec_start(ExecStart { request, detached: true }).await?;
        let known = self.known().await?.into_iter().find(|job| job.exec_id == started.exec_id);
        known.map(info).ok_or_else(|| SandboxError::internal("the agent does not know the job that it started"))
    }

    /// Every job that is known, oldest first.
    ///
    /// # Errors
    /// What the connection failed with.
    pub async fn list(&self) -> Result<Vec<JobInfo>> {
        Ok(self.known().await?.into_iter().map(info).collect())
    }

    /// The output of a job from these offsets on, then its end. Any number may read one, and none of them slows it.
    ///
    /// # Errors
    /// `NotFound` for an id that is not known.
    pub async fn attach(&self, job_id: String, since: JobOffsets) -> Result<ExecStream> {
        self.check_known(&job_id).await?;
        let (stdout_offset, stderr_offset) = (since.stdout, since.stderr);
        let request = ExecLogs { exec_id: job_id.clone(), stdout_offset, stderr_offset, follow: true };
        let (at, log) = self.0.open_with_reply::<LogEvent, ExecLogsAt>(methods::EXEC_LOGS, &request).await?;
        // What was asked for may be gone already.
        let missing = [at.stdout_offset.saturating_sub(stdout_offset), at.stderr_offset.saturating_sub(stderr_offset)];
        let control = JobControl { client: self.0.clone(), job_id };
        Ok(ExecStream::spawn(control, move |sink| async move { follow(log, missing, &sink).await }))
    }

    /// Waits for the end of a job, for at most so many seconds; none: until it ends. No exit: it still runs.
    ///
    /// # Errors
    /// `NotFound` for an id that is not known; `InvalidInput` for a time that is none.
    pub async fn wait(&self, job_id: String, timeout_s: Option<f64>) -> Result<Option<ExecExit>> {
        self.check_known(&job_id).await?;
        let waited: ExecWaited = self.0.call(methods::EXEC_WAIT, &ExecWait { exec_id: job_id, timeout_s }).await?;
        Ok(waited.exit)
    }

    /// Sends a signal to a job's process group, or with `tree` to every process below it. One that is over is fine;
    /// with SIGKILL and `tree` it returns when what that left is gone.
    ///
    /// # Errors
    /// `NotFound` for an id that is not known; `InvalidInput` for a number that is no signal; `TimedOut` when something is
    /// left.
    pub async fn signal(&self, job_id: String, signal: i32, tree: bool) -> Result<()> {
        if !(1..=64).contains(&signal) {
            return Err(SandboxError::invalid_input("signal", format!("{signal} is no signal; 1 to 64 are")));
        }
        self.check_known(&job_id).await?;
        match send(self.0, job_id, signal, tree).await {
            // It is over.
            Err(error) if error.kind() == ErrorKind::InvalidState => Ok(()),
            sent => sent,
        }
    }

    /// What the agent keeps of detached commands.
    async fn known(&self) -> Result<Vec<ExecInfo>> {
        let list: ExecList = self.0.call(methods::EXEC_LIST, &Nothing {}).await?;
        Ok(list.execs.into_iter().filter(|exec| exec.detached).collect())
    }

    async fn check_known(&self, id: &str) -> Result<()> {
        match self.known().await?.iter().any(|job| job.exec_id == id) {
            true => Ok(()),
            false => Err(SandboxError::not_found(format!("job {id:?}"))),
        }
    }
}

async fn send(client: &Client, exec_id: String, signal: i32, tree: bool) -> Result<()> {
    let request = ExecSignal { exec_id, signal, tree };
    client.call::<Nothing>(methods::EXEC_SIGNAL, &request).await.map(drop)
}

/// Hands a log on as what happened. `missing`: before its first event, of each stream.
async fn follow(mut log: Session<LogEvent>, missing: [u64; 2], sink: &SessionSink<ExecEvent>) -> Result<()> {
    if missing != [0, 0] {
        let [stdout_bytes, stderr_bytes] = missing;
        if !sink.send(ExecEvent::Gap { stdout_bytes, stderr_bytes }).await {
            return Ok(());
        }
    }
    while let Some(event) = log.next().await? {
        let event = match event {
            LogEvent::Stdout(bytes) => ExecEvent::Stdout(bytes),
            LogEvent::Stderr(bytes) => ExecEvent::Stderr(bytes),
            LogEvent::Gap { stdout_bytes, stderr_bytes } => ExecEvent::Gap { stdout_bytes, stderr_bytes },
            LogEvent::End(Some(exit)) => ExecEvent::Exit(exit),
            _ => continue,
        };
        let is_last = matches!(event, ExecEvent::Exit(_));
        if !sink.send(event).await || is_last {
            return Ok(());
        }
    }
    Err(SandboxError::lost("the log of the job broke off without its end", Admitted::Yes))
}

/// Reaches a job beside whoever reads it. Its input is at its end.
struct JobControl {
    client: Client,
    job_id: String,
}

#[async_trait]
impl SessionControl for JobControl {
    async fn write(&self, _: Bytes) -> Result<()> {
        Err(SandboxError::invalid_state("a job takes no input"))
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        match request {
            ControlRequest::Kill => send(&self.client, self.job_id.clone(), SIGKILL, true).await?,
            ControlRequest::Signal(signal) => send(&self.client, self.job_id.clone(), signal, false).await?,
            ControlRequest::Detach | ControlRequest::CloseInput => {}
            _ => return Err(SandboxError::unsupported_control("agent", None)),
        }
        Ok(ControlReply::default())
    }
}

fn info(exec: ExecInfo) -> JobInfo {
    JobInfo {
        job_id: exec.exec_id,
        started_at_ms: exec.started_at_ms,
        pid: exec.pid,
        exit: exec.exit,
        stdout_bytes: exec.stdout_bytes,
        stderr_bytes: exec.stderr_bytes,
    }
}
