//! Running a command.

use std::os::unix::ffi::OsStrExt;

use bytes::Bytes;
use sandbox_core::{
    Admitted, ControlReply, ControlRequest, ExecCommand, ExecEvent, ExecExit, ExecOutcome, ExecRequest, ExecStream,
    ResourceUsage, Result, SandboxError, SessionControl, SessionSink, StartFailure, StdinSource, async_trait, tracing,
};
use sandbox_process::{Command, Controller, Ending, Event, Exit, Limits, Process, Stdin};
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::{
    config::LocalConfig,
    environment::{Surroundings, find_program},
    error::{Attempt, NAME, control, ended_with_sandbox},
    fate::Fate,
    provider::Shared,
    sandbox::Sandbox,
    user::Identity,
};

/// Signal number of a tree that was ended on request.
const SIGKILL: i32 = 9;

/// Starts a command. A start that fails is an outcome.
pub(crate) async fn exec(shared: &Shared, sandbox: &Sandbox, request: ExecRequest) -> Result<ExecStream> {
    request.validate()?;
    let user = match &request.user {
        None => sandbox.user.clone(),
        Some(user) => match Identity::resolve(user) {
            Ok(user) => user,
            Err(error) => {
                sandbox.admit_exec(&request.exec_id)?;
                let message = format!("{error}: {}", user.escape_debug());
                return Ok(over(ExecExit::start_failed(StartFailure::UnknownUser, message)));
            }
        },
    };
    let permit = permit(shared, sandbox).await?;
    // From here on a close waits for the start, and then finds what was started.
    let busy = sandbox.enter()?;
    sandbox.admit_exec(&request.exec_id)?;
    let limits = limits(&shared.config, &request);
    let started = match prepare(&shared.config, sandbox, &user, request)? {
        Prepared::NoShell(message) => return Ok(over(ExecExit::start_failed(StartFailure::NoShell, message))),
        Prepared::Ready(command, attempt) => {
            sandbox.processes.spawn(*command, limits).await.map_err(|error| (error, attempt))
        }
    };
    drop(busy);
    match started {
        Ok(process) => Ok(stream(process, sandbox.gate.watch(), permit)),
        Err(_) if !sandbox.is_open() => Err(sandbox.not_open()),
        Err((error, attempt)) => {
            tracing::debug!(sandbox_id = sandbox.id, kind = ?error.kind(), "a command could not be started");
            attempt.failed(&error).map(over)
        }
    }
}

/// The stream of a command that never ran.
fn over(exit: ExecExit) -> ExecStream {
    ExecStream::from_events(vec![ExecEvent::Exit(exit)])
}

/// Waits for a turn, where the settings limit how many run at once, but not longer than the sandbox lives.
pub(crate) async fn permit(shared: &Shared, sandbox: &Sandbox) -> Result<Option<OwnedSemaphorePermit>> {
    let Some(turns) = &shared.turns else { return Ok(None) };
    let mut fate = sandbox.gate.watch();
    tokio::select! {
        biased;
        _ = fate.wait_for(|fate| *fate != Fate::Open) => Err(sandbox.not_open()),
        permit = turns.clone().acquire_owned() => {
            permit.map(Some).map_err(|_| SandboxError::invalid_state("the provider is closed"))
        }
    }
}

fn limits(config: &LocalConfig, request: &ExecRequest) -> Limits {
    let mut limits = Limits::new().kill_grace(request.kill_grace()).drain_grace(config.drain_grace());
    limits.timeout = request.timeout();
    limits.idle_timeout = request.idle_timeout();
    limits
}

enum Prepared {
    Ready(Box<Command>, Attempt),
    NoShell(String),
}

fn prepare(config: &LocalConfig, sandbox: &Sandbox, user: &Identity, request: ExecRequest) -> Result<Prepared> {
    let cwd = cwd(sandbox, &request);
    let is_script = matches!(request.command, ExecCommand::Shell { .. });
    let variables = Surroundings { config, sandbox, user, cwd: &cwd, is_script }.variables(&request);
    let mut attempt = Attempt {
        program: String::new(),
        is_shell: is_script,
        cwd: String::from_utf8_lossy(&cwd).into_owned(),
        user: request.user.clone().unwrap_or_else(|| String::from_utf8_lossy(&user.name).into_owned()),
    };
    let command = match request.command {
        ExecCommand::Shell { script, shell } => {
            let found = match &shell {
                Some(shell) => find_program(&config.path, shell),
                None => sandbox.shell.clone(),
            };
            let Some(found) = found else {
                let wanted = shell.or_else(|| config.shell.clone()).unwrap_or_else(|| "bash or sh".to_owned());
                return Ok(Prepared::NoShell(format!("no shell in the sandbox: {}", wanted.escape_debug())));
            };
            attempt.program = found.display().to_string();
            match Command::shell(found.as_os_str().as_bytes(), script.as_bytes()) {
                Ok(command) => command,
                Err(error) => {
                    return Err(SandboxError::invalid_input("command", error.to_string()).with_source(error));
                }
            }
        }
        ExecCommand::Argv(argv) => {
            attempt.program = argv.first().map(ToString::to_string).unwrap_or_default();
            Command::new(argv.into_iter().map(sandbox_core::ByteString::into_bytes))
        }
        _ => return Err(SandboxError::unsupported_field(NAME, "command", "this form of command is not known")),
    };
    let mut command = command.cwd(cwd).stdin(match request.stdin {
        StdinSource::Null => Stdin::Null,
        StdinSource::Bytes(bytes) => Stdin::Bytes(bytes),
        StdinSource::Stream => Stdin::Stream,
        _ => return Err(SandboxError::unsupported_field(NAME, "stdin", "this source of input is not known")),
    });
    for (name, value) in variables {
        command = command.env(name, value);
    }
    if let Some(user) = &user.switch {
        command = command.user(user.clone());
    }
    Ok(Prepared::Ready(Box::new(command), attempt))
}

/// The working directory: the request's, from the sandbox's on, or the sandbox's.
fn cwd(sandbox: &Sandbox, request: &ExecRequest) -> Vec<u8> {
    let workdir = sandbox.paths.workdir().as_os_str().as_bytes();
    match request.cwd.as_ref().map(sandbox_core::ByteString::as_bytes) {
        None => workdir.to_vec(),
        Some(cwd) if cwd.starts_with(b"/") => cwd.to_vec(),
        Some(cwd) => [workdir, b"/", cwd].concat(),
    }
}

/// Passes the events of a command on. Dropping the stream drops the process, and so ends its tree.
fn stream(process: Process, fate: watch::Receiver<Fate>, permit: Option<OwnedSemaphorePermit>) -> ExecStream {
    let control = Control(process.controller());
    ExecStream::spawn(control, |sink| async move {
        let _permit = permit;
        pump(process, &fate, &sink).await
    })
}

async fn pump(mut process: Process, fate: &watch::Receiver<Fate>, sink: &SessionSink<ExecEvent>) -> Result<()> {
    while let Some(event) = process.next_event().await {
        let event = match event {
            Event::Stdout(bytes) => ExecEvent::Stdout(bytes),
            Event::Stderr(bytes) => ExecEvent::Stderr(bytes),
            Event::Exit(exit) => ExecEvent::Exit(outcome(&exit, *fate.borrow())?),
            _ => continue,
        };
        if !sink.send(event).await {
            return Ok(());
        }
    }
    Ok(())
}

fn outcome(exit: &Exit, fate: Fate) -> Result<ExecExit> {
    let outcome = match exit.ending {
        Ending::Exited(code) => ExecOutcome::Exited(code),
        Ending::Signalled(signal) => ExecOutcome::Signalled(signal),
        Ending::TimedOut => ExecOutcome::TimedOut { idle: false },
        Ending::IdleTimedOut => ExecOutcome::TimedOut { idle: true },
        Ending::Killed if fate != Fate::Open => return Err(ended_with_sandbox(fate)),
        Ending::Killed => ExecOutcome::Signalled(SIGKILL),
        _ => {
            let message = "the command's supervisor ended before the command";
            return Err(SandboxError::lost(message, Admitted::Yes).with_provider(NAME));
        }
    };
    let usage = ResourceUsage {
        cpu_time_s: Some(exit.cpu_time.as_secs_f64()),
        peak_memory_bytes: Some(exit.peak_memory_bytes),
        wall_time_s: Some(exit.wall_time.as_secs_f64()),
    };
    Ok(ExecExit::new(outcome).with_usage(usage).with_output_open(exit.output_open))
}

struct Control(Controller);

#[async_trait]
impl SessionControl for Control {
    async fn write(&self, data: Bytes) -> Result<()> {
        self.0.write_stdin(&data).await.map_err(control)
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        match request {
            ControlRequest::CloseInput => self.0.close_stdin().await,
            ControlRequest::Signal(signal) => self.0.signal(signal).map_err(control)?,
            ControlRequest::Kill => self.0.kill_tree(),
            _ => return Err(SandboxError::unsupported_control(NAME, None)),
        }
        Ok(ControlReply::default())
    }
}
