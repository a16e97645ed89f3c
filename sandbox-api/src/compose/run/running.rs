//! A program that runs: kept by its sandbox where that can, so that it outlives this process, else held by it.

use sandbox_core::{ExecEvent, ExecRequest, ExecStream, JobInfo, Result, StdinSource};

use crate::{AsyncSandbox, ExecOptions, kept::KeptCommand};

const SIGKILL: i32 = 9;

/// The ids of the jobs of a stack: this, and which run of the program it is, from 1.
const JOB: &str = "compose-";

pub(super) enum Running {
    Held(Box<ExecStream>),
    Kept(Box<KeptCommand>),
}

impl Running {
    /// Starts a program for the nth time.
    pub(super) async fn start(sandbox: &AsyncSandbox, request: ExecRequest, number: u32) -> Result<Self> {
        if Self::can_keep(sandbox, request.stdin != StdinSource::Null) {
            let kept = KeptCommand::start(sandbox, request, format!("{JOB}{number}")).await?;
            return Ok(Self::Kept(Box::new(kept)));
        }
        let stream = sandbox.exec_stream_with(request, ExecOptions::new().without_timeout()).await?;
        Ok(Self::Held(Box::new(stream)))
    }

    /// The program that another process started.
    pub(super) fn of(job: &JobInfo) -> Self {
        Self::Kept(Box::new(KeptCommand::of_another(job.job_id.clone())))
    }

    /// Whether a sandbox keeps a program; one whose input stays open needs somebody who holds it.
    pub(super) fn can_keep(sandbox: &AsyncSandbox, has_input: bool) -> bool {
        sandbox.provider().as_jobs().is_some() && !has_input
    }

    /// The next event; the exit is the last one. Dropping the future loses nothing.
    pub(super) async fn next(&mut self, sandbox: &AsyncSandbox) -> Result<Option<ExecEvent>> {
        match self {
            Self::Held(stream) => stream.next().await,
            Self::Kept(kept) => kept.next(sandbox).await.map(Some),
        }
    }

    /// Sends a signal to the program.
    pub(super) async fn signal(&mut self, sandbox: &AsyncSandbox, signal: i32) -> Result<()> {
        match self {
            Self::Held(stream) => stream.signal(signal).await,
            Self::Kept(kept) => sandbox.signal_job(kept.id(), signal, false).await,
        }
    }

    /// Ends the program and everything below it.
    pub(super) async fn kill(&mut self, sandbox: &AsyncSandbox) -> Result<()> {
        match self {
            Self::Held(stream) => stream.kill().await,
            Self::Kept(kept) => sandbox.signal_job(kept.id(), SIGKILL, true).await,
        }
    }
}

/// The program of a stack among the jobs of its sandbox: the last one that was started.
pub(super) fn last_run(jobs: Vec<JobInfo>) -> Option<JobInfo> {
    let number = |job: &JobInfo| job.job_id.strip_prefix(JOB).and_then(|number| number.parse::<u32>().ok());
    jobs.into_iter().filter(|job| number(job).is_some()).max_by_key(|job| number(job))
}

#[cfg(test)]
mod tests {
    use sandbox_core::JobInfo;

    use super::last_run;

    #[test]
    fn the_last_run_is_found_by_its_number_among_other_jobs() {
        let jobs =
            |ids: &[&str]| ids.iter().map(|id| JobInfo { job_id: (*id).to_owned(), ..JobInfo::default() }).collect();
        let of = |ids| last_run(jobs(ids)).map(|job| job.job_id);
        assert_eq!(of(&["compose-9", "mine", "compose-10", "compose-x"]), Some("compose-10".to_owned()));
        assert_eq!(of(&["mine", "compose-"]), None);
    }
}
