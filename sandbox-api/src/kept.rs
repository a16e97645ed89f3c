//! A command that its sandbox keeps: it runs on without this process, and its output is taken up again where contact
//! with it broke off.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

use sandbox_core::{Admitted, ErrorKind, ExecEvent, ExecRequest, ExecStream, JobOffsets, Result, SandboxError};
use tokio::time::{Instant, sleep};

use crate::AsyncSandbox;

/// The pause before output is taken up again.
const PAUSE: Duration = Duration::from_millis(250);

/// For how long it is tried without a word of the command.
const AGAIN_LIMIT: Duration = Duration::from_secs(60);

/// How long it is waited for the end of a job that somebody else reads, at a time.
const LOOK: Duration = Duration::from_secs(20);

/// Failures of a call that may not be there the next time.
const OF_A_CALL: [ErrorKind; 3] = [ErrorKind::Lost, ErrorKind::Unavailable, ErrorKind::TimedOut];

/// The output of a job, over as many streams as it takes. Dropping it leaves the job alone.
pub(crate) struct KeptCommand {
    id: String,
    stream: Option<ExecStream>,
    since: JobOffsets,
    attached: Option<Instant>,
    broken: Option<Instant>,
    rival: Rival,
}

/// What is done when another client takes the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rival {
    /// It is taken back.
    Ousted,
    /// It may have it until the command is over.
    Respected { is_there: bool },
}

impl KeptCommand {
    /// Starts a job under an id.
    pub(crate) async fn start(sandbox: &AsyncSandbox, mut request: ExecRequest, id: String) -> Result<Self> {
        request.exec_id = id;
        let started = sandbox.start_job(request).await?;
        Ok(Self::new(started.job_id, Rival::Ousted))
    }

    /// A job of another process, from its first byte that is kept. That process may go on reading it: then the rest is
    /// read when the job is over.
    pub(crate) fn of_another(id: String) -> Self {
        Self::new(id, Rival::Respected { is_there: false })
    }

    fn new(id: String, rival: Rival) -> Self {
        Self { id, stream: None, since: JobOffsets::default(), attached: None, broken: None, rival }
    }

    /// Its id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The next event; the exit is the last one. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self, sandbox: &AsyncSandbox) -> Result<ExecEvent> {
        loop {
            let Some(stream) = &mut self.stream else {
                if self.broken.is_some() {
                    sleep(PAUSE).await;
                }
                if self.rival == (Rival::Respected { is_there: true }) {
                    match sandbox.wait_job(&self.id, Some(LOOK)).await {
                        Ok(None) => self.broken = None,
                        Ok(Some(_)) => self.rival = Rival::Respected { is_there: false },
                        Err(error) => self.broke(error, &OF_A_CALL)?,
                    }
                    continue;
                }
                match sandbox.attach_job(&self.id, self.since).await {
                    Ok(stream) => {
                        self.stream = Some(stream);
                        self.attached = Some(Instant::now());
                    }
                    // A sandbox that is gone or stopped does not come back.
                    Err(error) => self.broke(error, &OF_A_CALL)?,
                }
                continue;
            };
            match stream.next().await {
                Ok(Some(event)) => {
                    self.broken = None;
                    match &event {
                        ExecEvent::Stdout(bytes) => self.since.stdout += bytes.len() as u64,
                        ExecEvent::Stderr(bytes) => self.since.stderr += bytes.len() as u64,
                        _ => {}
                    }
                    return Ok(event);
                }
                Ok(None) => {
                    let error = SandboxError::lost("the command broke off without an end", Admitted::Yes);
                    self.broke(error, &[ErrorKind::Lost])?;
                }
                Err(error) if error.kind() == ErrorKind::InvalidState => {
                    // Another client has it now.
                    if let Rival::Respected { is_there } = &mut self.rival {
                        *is_there = true;
                    }
                    self.broke(error, &[ErrorKind::InvalidState])?;
                }
                Err(error) => self.broke(error, &OF_A_CALL)?,
            }
        }
    }

    /// Notes that contact is lost; the error when it is not to be tried again.
    fn broke(&mut self, error: SandboxError, again: &[ErrorKind]) -> Result<()> {
        self.stream = None;
        if self.attached.take().is_some_and(|attached| attached.elapsed() >= AGAIN_LIMIT) {
            self.broken = None;
        }
        let since = *self.broken.get_or_insert_with(Instant::now);
        match again.contains(&error.kind()) && since.elapsed() < AGAIN_LIMIT {
            true => Ok(()),
            false => Err(error),
        }
    }
}

/// A name that no other job has.
pub(crate) fn unique_job_id(prefix: &str) -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{prefix}-{:016x}", random())
}
