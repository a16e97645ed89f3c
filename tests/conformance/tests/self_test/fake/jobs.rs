use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sandbox_core::{
    ControlReply, ControlRequest, ExecEvent, ExecExit, ExecOutcome, ExecRequest, ExecStream, JobInfo, JobOffsets, Jobs,
    Result, SandboxError, SandboxHandle, SessionControl, bytes::Bytes,
};
use tokio::sync::watch;

use super::{exec::exec, processes, provider::Fake, world::NAME};
use crate::fault::Fault;

/// The variable that marks every process of a job.
const MARK: &str = "FAKE_JOB";

/// What a job has written, and how it ended.
#[derive(Default)]
struct Kept {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    exit: Option<ExecExit>,
}

/// A command that nobody holds.
pub(super) struct Job {
    id: String,
    started_at_ms: u64,
    mark: String,
    kept: watch::Sender<Kept>,
    control: Arc<dyn SessionControl>,
}

impl Job {
    fn info(&self) -> JobInfo {
        let kept = self.kept.borrow();
        let (stdout_bytes, stderr_bytes) = (kept.stdout.len() as u64, kept.stderr.len() as u64);
        let (job_id, started_at_ms, exit) = (self.id.clone(), self.started_at_ms, kept.exit.clone());
        JobInfo { job_id, started_at_ms, pid: None, exit, stdout_bytes, stderr_bytes }
    }
}

/// The stream of a job changes nothing of it.
struct Reader;

#[sandbox_core::async_trait]
impl SessionControl for Reader {
    async fn write(&self, _data: Bytes) -> Result<()> {
        Err(SandboxError::invalid_state("the input of a job is closed"))
    }

    async fn control(&self, _request: ControlRequest) -> Result<ControlReply> {
        Err(SandboxError::unsupported_control(NAME, None))
    }
}

/// Ends a job with its reader, for the fault that does.
struct EndOnDrop(Arc<Job>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let job = self.0.clone();
        tokio::spawn(async move { job.control.control(ControlRequest::Kill).await });
    }
}

impl Fake {
    fn job(&self, handle: &SandboxHandle, id: &str) -> Result<Option<Arc<Job>>> {
        let jobs = self.world.find(handle)?;
        let found = jobs.jobs.lock().unwrap().iter().find(|job| job.id == id).cloned();
        match found {
            None if !self.has(Fault::UnknownJobAccepted) => Err(SandboxError::not_found("there is no such job")),
            found => Ok(found),
        }
    }
}

#[sandbox_core::async_trait]
impl Jobs for Fake {
    async fn start_job(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<JobInfo> {
        let sandbox = self.world.find(handle)?;
        let id = request.exec_id.clone();
        let known = sandbox.jobs.lock().unwrap().iter().find(|job| job.id == id).cloned();
        if let Some(known) = known.filter(|_| !self.has(Fault::KnownJobStartsAgain)) {
            return Ok(known.info());
        }
        let mark = format!("{}/{id}", sandbox.id);
        let mut stream = exec(&self.world, sandbox.clone(), request.with_env(MARK, mark.as_str())).await?;
        let started_at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let job = Arc::new(Job { id, started_at_ms, mark, kept: watch::Sender::default(), control: stream.control() });
        sandbox.jobs.lock().unwrap().push(job.clone());
        let info = job.info();
        let forgets = self.has(Fault::JobOutputLost);
        tokio::spawn(async move {
            while let Ok(Some(event)) = stream.next().await {
                job.kept.send_modify(|kept| match event {
                    ExecEvent::Exit(exit) => kept.exit = Some(exit),
                    _ if forgets => {}
                    ExecEvent::Stdout(bytes) => kept.stdout.extend_from_slice(&bytes),
                    ExecEvent::Stderr(bytes) => kept.stderr.extend_from_slice(&bytes),
                    _ => {}
                });
            }
        });
        Ok(info)
    }

    async fn list_jobs(&self, handle: &SandboxHandle) -> Result<Vec<JobInfo>> {
        let sandbox = self.world.find(handle)?;
        let list = sandbox.jobs.lock().unwrap().iter().map(|job| job.info()).collect();
        Ok(list)
    }

    async fn attach_job(&self, handle: &SandboxHandle, job_id: String, since: JobOffsets) -> Result<ExecStream> {
        let Some(job) = self.job(handle, &job_id)? else {
            return Ok(ExecStream::finished("", "", ExecExit::new(ExecOutcome::Exited(0))));
        };
        let mut since = (since.stdout as usize, since.stderr as usize);
        if self.has(Fault::JobOffsetIgnored) {
            since = (0, 0);
        }
        let guard = self.has(Fault::JobEndsWithItsReader).then(|| EndOnDrop(job.clone()));
        let stream = ExecStream::spawn(Reader, |sink| async move {
            let mut kept = job.kept.subscribe();
            loop {
                let has_news =
                    |kept: &Kept| kept.exit.is_some() || kept.stdout.len() > since.0 || kept.stderr.len() > since.1;
                let lost = |_| SandboxError::not_found("the sandbox is gone");
                let (stdout, stderr, exit) = {
                    let kept = kept.wait_for(has_news).await.map_err(lost)?;
                    let from = |bytes: &[u8], at: usize| Bytes::copy_from_slice(bytes.get(at..).unwrap_or_default());
                    (from(&kept.stdout, since.0), from(&kept.stderr, since.1), kept.exit.clone())
                };
                since = (since.0 + stdout.len(), since.1 + stderr.len());
                for event in [ExecEvent::Stdout(stdout.clone()), ExecEvent::Stderr(stderr.clone())] {
                    if !matches!(&event, ExecEvent::Stdout(b) | ExecEvent::Stderr(b) if b.is_empty()) {
                        sink.send(event).await;
                    }
                }
                if let Some(exit) = exit {
                    sink.send(ExecEvent::Exit(exit)).await;
                    return Ok(());
                }
            }
        });
        Ok(match guard {
            Some(guard) => stream.with_guard(guard),
            None => stream,
        })
    }

    async fn wait_job(
        &self,
        handle: &SandboxHandle,
        job_id: String,
        timeout_s: Option<f64>,
    ) -> Result<Option<ExecExit>> {
        let Some(job) = self.job(handle, &job_id)? else { return Ok(None) };
        let mut kept = job.kept.subscribe();
        let end = async { kept.wait_for(|kept| kept.exit.is_some()).await.ok().and_then(|kept| kept.exit.clone()) };
        match timeout_s.filter(|_| !self.has(Fault::JobWaitHasNoLimit)) {
            Some(limit) => Ok(tokio::time::timeout(Duration::from_secs_f64(limit), end).await.unwrap_or_default()),
            None => Ok(end.await),
        }
    }

    async fn signal_job(&self, handle: &SandboxHandle, job_id: String, signal: i32, tree: bool) -> Result<()> {
        let Some(job) = self.job(handle, &job_id)? else { return Ok(()) };
        if !(1..=64).contains(&signal) {
            return Err(SandboxError::invalid_input("signal", "must be 1 to 64"));
        }
        let is_over = job.kept.borrow().exit.is_some();
        if is_over && tree && signal == 9 && !self.has(Fault::JobLeavesItsChildren) {
            processes::kill_all(MARK, &job.mark).await;
            return Ok(());
        }
        let order = if tree && signal == 9 { ControlRequest::Kill } else { ControlRequest::Signal(signal) };
        // One that is over is fine.
        let _ = job.control.control(order).await;
        Ok(())
    }
}
