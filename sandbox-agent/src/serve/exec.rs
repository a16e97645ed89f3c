//! The methods about commands.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use sandbox_core::{
    ByteString, ErrorKind, ExecCommand, ExecExit, ExecOutcome, ExecRequest, Result, SandboxError, StartFailure,
    StdinSource,
};
use sandbox_process::{Command, Limits, StartError, StartErrorKind, Stdin};
use sandbox_protocol::{
    StreamResponder,
    methods::{ExecAttach, ExecAttached, ExecInfo, ExecList, ExecSignal, ExecStart, ExecStarted, ExecWait, ExecWaited},
};

use super::{
    agent::Agent,
    attachment::{Attach, InputFrom, OnDrop, attach, control},
    job::{Draft, EXEC_KEEP, End, Job, JobKind, WithoutClient},
    log::{Cursor, Stream},
    metrics,
    surroundings::{UnknownUser, Wish},
};

const SIGKILL: i32 = 9;

/// How long what a command left in the background may take to be gone after it was killed.
const REMAINS_LIMIT: Duration = Duration::from_secs(20);

/// A command that can be started, and what to say if it cannot.
pub(super) struct Prepared {
    pub(super) command: Command,
    pub(super) limits: Limits,
    pub(super) attempt: Attempt,
}

/// What was being started, for the text of a failure.
pub(super) struct Attempt {
    pub(super) program: String,
    /// The program is the shell of a script.
    pub(super) is_shell: bool,
    pub(super) cwd: String,
    pub(super) user: String,
}

impl Agent {
    pub(super) fn exec(self: &Arc<Self>, start: ExecStart) -> Result<StreamResponder> {
        let ExecStart { request, detached } = start;
        request.validate()?;
        self.check_open()?;
        let (job, was_known) = self.exec_job(request, detached, false)?;
        let (cursor, [stdout_offset, stderr_offset]) = job.state().log.resume([0, 0]);
        // A repeated start brings its input from the first byte on.
        let session = attach_exec(&job, cursor, InputFrom::Offset(0))?;
        let stdin_offset = job.state().input.taken;
        let exec_id = job.id.clone();
        let started = ExecStarted { exec_id, was_known, stdout_offset, stderr_offset, stdin_offset };
        StreamResponder::session_with_reply(&started, session)
    }

    /// The job of a command, and whether it was known; else it is started.
    ///
    /// # Errors
    /// `AlreadyExists` when another command has the id.
    pub(super) fn exec_job(
        self: &Arc<Self>,
        request: ExecRequest,
        detached: bool,
        is_permanent: bool,
    ) -> Result<(Arc<Job>, bool)> {
        let fingerprint = fingerprint(&request.command);
        let (without_client, keep) = match detached {
            true => (WithoutClient::RunsOn, self.surroundings.config.kept_of_jobs()),
            false => (WithoutClient::Grace(self.surroundings.config.grace()), EXEC_KEEP),
        };
        let draft = Draft { kind: JobKind::Exec, without_client, keep, fingerprint, is_permanent };
        let has_input = request.stdin != StdinSource::Null;
        let make = |id| {
            let job = Job::new(id, &draft);
            if !has_input {
                job.state().input.refuse("the command was started without input");
            }
            job
        };
        let (job, was_known) = self.execs.get_or_add(&request.exec_id, "exec-", make);
        if !was_known {
            self.start(job.clone(), move |agent| agent.prepare_exec(request));
        } else if job.fingerprint != fingerprint {
            let error = SandboxError::new(ErrorKind::AlreadyExists, "another command has this id");
            return Err(error.with_field("exec_id"));
        }
        Ok((job, was_known))
    }

    /// Starts a job and carries it to its end, whoever waits for it.
    pub(super) fn start(
        self: &Arc<Self>,
        job: Arc<Job>,
        prepare: impl FnOnce(&Agent) -> Result<Result<Prepared, ExecExit>> + Send + 'static,
    ) {
        let agent = self.clone();
        tokio::spawn(async move {
            let before = agent.memory.kills();
            let oom = |outcome: &ExecOutcome| agent.memory.verdict(before, outcome);
            match agent.spawn(prepare).await {
                Ok(process) => job.run(process, || agent.lifetime.is_closing(), oom).await,
                Err(end) => job.finish(end),
            }
            let jobs = if job.kind == JobKind::Exec { &agent.execs } else { &agent.terminals };
            jobs.finished(&job);
        });
    }

    async fn spawn(
        &self,
        prepare: impl FnOnce(&Agent) -> Result<Result<Prepared, ExecExit>>,
    ) -> Result<sandbox_process::Process, End> {
        let Prepared { command, limits, attempt } =
            prepare(self).map_err(|error| End::error(&error))?.map_err(End::Exit)?;
        if self.lifetime.is_closing() {
            return Err(End::Error(ErrorKind::InvalidState, "the sandbox is closing".to_owned()));
        }
        self.processes.spawn(command, limits).await.map_err(|error| {
            tracing::debug!(kind = ?error.kind(), "a command could not be started");
            attempt.failed(&error)
        })
    }

    fn prepare_exec(&self, request: ExecRequest) -> Result<Result<Prepared, ExecExit>> {
        let mut limits = Limits::new().kill_grace(request.kill_grace());
        limits.timeout = request.timeout();
        limits.idle_timeout = request.idle_timeout();
        let is_script = matches!(request.command, ExecCommand::Shell { .. });
        let wish = Wish {
            cwd: request.cwd.as_ref(),
            env: &request.env,
            user: request.user.as_deref(),
            is_script,
            has_terminal: false,
        };
        let stdin = match request.stdin {
            StdinSource::Null => Stdin::Null,
            // The bytes come on the stream, and so does their end.
            StdinSource::Bytes(_) | StdinSource::Stream => Stdin::Stream,
            _ => return Err(unknown_form("stdin")),
        };
        let prepared = match request.command {
            ExecCommand::Shell { script, shell } => self.script(&script, shell.as_deref(), &wish, limits)?,
            ExecCommand::Argv(argv) => {
                let program = argv.first().map(ToString::to_string).unwrap_or_default();
                let command = Command::new(argv.into_iter().map(ByteString::into_bytes));
                self.surrounded(command, program, &wish, limits)?
            }
            _ => return Err(unknown_form("command")),
        };
        Ok(prepared.map(|prepared| Prepared { command: prepared.command.stdin(stdin), ..prepared }))
    }

    /// A script for the shell that is asked for, or the sandbox's.
    pub(super) fn script(
        &self,
        script: &ByteString,
        shell: Option<&str>,
        wish: &Wish<'_>,
        limits: Limits,
    ) -> Result<Result<Prepared, ExecExit>> {
        let shell = match self.surroundings.shell(shell, wish.env) {
            Ok(shell) => shell,
            Err(wanted) => return Ok(Err(no_shell(&wanted))),
        };
        let program = String::from_utf8_lossy(&shell).into_owned();
        let command = Command::shell(shell, script.as_bytes())
            .map_err(|error| SandboxError::invalid_input("command", error.to_string()))?;
        self.surrounded(command, program, wish, limits)
    }

    pub(super) fn surrounded(
        &self,
        command: Command,
        program: String,
        wish: &Wish<'_>,
        limits: Limits,
    ) -> Result<Result<Prepared, ExecExit>> {
        let identity = match self.surroundings.identity(wish.user)? {
            Ok(identity) => identity,
            Err(UnknownUser(text)) => return Ok(Err(ExecExit::start_failed(StartFailure::UnknownUser, text))),
        };
        let user = wish.user.map(str::to_owned).or_else(|| self.surroundings.config.user.clone()).unwrap_or_default();
        let cwd = String::from_utf8_lossy(&self.surroundings.cwd(wish.cwd)).into_owned();
        let command = self.surroundings.surround(command, wish, &identity);
        Ok(Ok(Prepared { command, limits, attempt: Attempt { program, is_shell: wish.is_script, cwd, user } }))
    }

    pub(super) fn exec_attach(&self, request: &ExecAttach) -> Result<StreamResponder> {
        let job = self.find_exec(&request.exec_id)?;
        let (cursor, [stdout_offset, stderr_offset]) =
            job.state().log.resume([request.stdout_offset, request.stderr_offset]);
        let input = request.stdin_offset.map_or(InputFrom::Here, InputFrom::Offset);
        let session = attach_exec(&job, cursor, input)?;
        let (stdin_offset, stdin_closed) = {
            let state = job.state();
            (state.input.taken, state.input.is_closed)
        };
        let attached = ExecAttached { stdout_offset, stderr_offset, stdin_offset, stdin_closed };
        StreamResponder::session_with_reply(&attached, session)
    }

    pub(super) fn exec_list(&self) -> Result<StreamResponder> {
        let info = |job: &Arc<Job>| {
            let pid = job.controller().and_then(|controller| u32::try_from(controller.pid()).ok());
            let state = job.state();
            ExecInfo {
                exec_id: job.id.clone(),
                pid,
                started_at_ms: job.started_at_ms,
                exit: state.end.as_ref().and_then(End::exit).cloned(),
                stdout_bytes: state.log.stream_end(Stream::Stdout),
                stderr_bytes: state.log.stream_end(Stream::Stderr),
                detached: job.without_client == WithoutClient::RunsOn,
            }
        };
        StreamResponder::reply(&ExecList { execs: self.execs.all().iter().map(info).collect() })
    }

    pub(super) async fn exec_wait(&self, request: &ExecWait) -> Result<StreamResponder> {
        let job = self.find_exec(&request.exec_id)?;
        match request.timeout_s {
            // The answer tells whether it was long enough.
            Some(seconds) => drop(tokio::time::timeout(wait_limit(seconds)?, job.ended()).await),
            None => job.ended().await,
        }
        let end = job.state().end.clone();
        match end {
            Some(End::Error(kind, message)) => Err(End::to_error(kind, &message)),
            end => StreamResponder::reply(&ExecWaited { exit: end.as_ref().and_then(End::exit).cloned() }),
        }
    }

    pub(super) async fn exec_signal(&self, request: &ExecSignal) -> Result<()> {
        let job = self.find_exec(&request.exec_id)?;
        if !(1..=64).contains(&request.signal) {
            return Err(SandboxError::invalid_input("signal", "must be 1 to 64"));
        }
        if request.tree && request.signal == SIGKILL {
            if !job.is_over() {
                job.kill();
            } else if let Some(remains) = job.remains() {
                remains.kill_tree_now();
                tokio::time::timeout(REMAINS_LIMIT, remains.tree_gone()).await.map_err(|_| {
                    let seconds = REMAINS_LIMIT.as_secs();
                    SandboxError::timed_out(format!("what the command left was not gone {seconds} s after its kill"))
                })?;
            }
            return Ok(());
        }
        let controller = job.controller().ok_or_else(|| SandboxError::invalid_state("the command does not run"))?;
        match request.tree {
            true => metrics::signal_tree(controller.pid(), request.signal),
            false => controller.signal(request.signal).map_err(control)?,
        }
        Ok(())
    }

    pub(super) fn find_exec(&self, id: &str) -> Result<Arc<Job>> {
        self.execs.get(id).ok_or_else(|| {
            SandboxError::not_found("no command has this id, or it ended long ago").with_field("exec_id")
        })
    }
}

fn attach_exec(job: &Arc<Job>, cursor: Cursor, input: InputFrom) -> Result<sandbox_core::ExecStream> {
    let on_drop = match job.without_client {
        WithoutClient::RunsOn => OnDrop::Leaves,
        WithoutClient::Grace(_) => OnDrop::Kills,
    };
    attach(job, Attach { cursor, first: None, on_drop, input })
}

/// Tells one command from another, without keeping it.
fn fingerprint(command: &ExecCommand) -> u64 {
    let mut hasher = DefaultHasher::new();
    match command {
        ExecCommand::Shell { script, shell } => (script.as_bytes(), shell).hash(&mut hasher),
        ExecCommand::Argv(argv) => argv.iter().for_each(|argument| argument.as_bytes().hash(&mut hasher)),
        _ => {}
    }
    hasher.finish()
}

fn wait_limit(seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| SandboxError::invalid_input("timeout_s", "must be 0 or more seconds"))
        .map(|limit| limit.min(Duration::from_secs(1 << 30)))
}

fn unknown_form(field: &str) -> SandboxError {
    SandboxError::unsupported_field("agent", field, "the agent is older than this form")
}

pub(super) fn no_shell(wanted: &str) -> ExecExit {
    let message = format!("no shell in the sandbox: {}", wanted.escape_debug());
    ExecExit::start_failed(StartFailure::NoShell, message)
}

impl Attempt {
    fn failed(&self, error: &StartError) -> End {
        let (reason, culprit) = match error.kind() {
            StartErrorKind::NotFound if self.is_shell => (StartFailure::NoShell, &self.program),
            StartErrorKind::NotFound => (StartFailure::NotFound, &self.program),
            StartErrorKind::NotExecutable => (StartFailure::NotExecutable, &self.program),
            StartErrorKind::CwdMissing => (StartFailure::CwdMissing, &self.cwd),
            StartErrorKind::CwdNotADirectory => (StartFailure::CwdNotADirectory, &self.cwd),
            StartErrorKind::CwdNotAccessible => (StartFailure::CwdNotAccessible, &self.cwd),
            StartErrorKind::UserRefused => (StartFailure::UserRefused, &self.user),
            StartErrorKind::Resource => (StartFailure::Resources, &self.program),
            StartErrorKind::TimedOut => return End::Exit(ExecExit::new(ExecOutcome::TimedOut { idle: false })),
            StartErrorKind::TooLarge | StartErrorKind::InvalidInput => {
                return End::Error(ErrorKind::InvalidInput, error.to_string());
            }
            StartErrorKind::Lost => {
                return End::Error(ErrorKind::Lost, "the command's supervisor ended early".to_owned());
            }
            _ => (StartFailure::Other, &self.program),
        };
        End::Exit(ExecExit::start_failed(reason, format!("{error}: {}", culprit.escape_debug())))
    }
}
