//! A command through the engine's exec.

use std::{sync::Arc, time::Duration};

use bollard::{
    container::LogOutput,
    exec::{CreateExecOptions, StartExecOptions, StartExecResults},
};
use bytes::Bytes;
use futures_util::StreamExt;
use sandbox_core::{
    Admitted, ByteString, ControlReply, ControlRequest, ErrorKind, ExecCommand, ExecEvent, ExecExit, ExecOutcome,
    ExecRequest, ExecStream, ResourceUsage, Result, SandboxError, SandboxStatus, Session, SessionControl, SessionSink,
    StartFailure, StdinSource, async_trait,
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::{Mutex, Notify, OnceCell},
    time::Instant,
};

use crate::{
    bare::kill,
    engine::Engine,
    error::{self, NAME},
    plan::variables,
};

/// The longest script: it travels as an argument.
const SCRIPT_MAX_BYTES: usize = 128 * 1024 - 1;

/// The engine's own words about a start that failed come in fewer pieces.
const WORDS_MAX: usize = 8;

/// The code of what SIGKILL ended.
const KILLED: i32 = 137;

/// How often the end of a command is looked for once its output has ended.
const END_PAUSE: Duration = Duration::from_millis(10);

/// How often it is looked for while its first output is held.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How long after a command that was killed the engine may take to say that its container was.
const NOTICE_LIMIT: Duration = Duration::from_millis(300);

/// How long a command that was killed may take to end.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Where a command runs.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) engine: Arc<Engine>,
    pub(crate) container: String,
    pub(crate) workdir: String,
    pub(crate) shell: Option<String>,
}

type Input = std::pin::Pin<Box<dyn AsyncWrite + Send>>;

/// Starts a command. `shell` keeps which shell there is.
pub(crate) async fn exec(target: Target, shell: &OnceCell<String>, request: ExecRequest) -> Result<ExecStream> {
    request.validate()?;
    let is_script = matches!(request.command, ExecCommand::Shell { .. });
    let cmd = command(&target, shell, &request.command).await?;
    let cwd = match &request.cwd {
        None => target.workdir.clone(),
        Some(cwd) => text("cwd", cwd)?,
    };
    let cwd = if cwd.starts_with('/') { cwd } else { format!("{}/{cwd}", target.workdir.trim_end_matches('/')) };
    let has_input = request.stdin != StdinSource::Null;
    let options = CreateExecOptions {
        attach_stdin: Some(has_input),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        env: Some(variables(&request.env)?),
        cmd: Some(cmd.clone()),
        user: request.user.clone(),
        working_dir: Some(cwd.clone()),
        ..CreateExecOptions::default()
    };
    let docker = target.engine.docker().await?;
    let failed = |error| error::engine("starting the command", error);
    let exec = docker.create_exec(&target.container, options).await.map_err(failed)?;
    let start = StartExecOptions { output_capacity: Some(64 * 1024), ..StartExecOptions::default() };
    let attempt = Attempt { program: cmd[0].clone(), cwd, user: request.user.clone().unwrap_or_default(), is_script };
    let (output, input) = match docker.start_exec(&exec.id, Some(start)).await {
        Ok(StartExecResults::Attached { output, input }) => (output, input),
        Ok(StartExecResults::Detached) => {
            return Err(SandboxError::internal("the engine attached nothing").with_provider(NAME));
        }
        Err(error) => {
            // The engine says it in its answer, before anything ran.
            let text = error.to_string();
            return match attempt.failure(&text) {
                Some(exit) => Ok(ExecStream::finished(Bytes::new(), Bytes::new(), exit)),
                None => Err(failed(error)),
            };
        }
    };
    let mut held = None;
    match request.stdin.clone() {
        StdinSource::Bytes(bytes) => {
            // Its own task: a command that reads nothing must not hold its output back.
            let mut input = input;
            tokio::spawn(async move {
                // One that has ended takes no more, which is its own affair.
                let _ = input.write_all(&bytes).await;
                let _ = input.shutdown().await;
            });
        }
        StdinSource::Stream => held = Some(input),
        _ => {}
    }
    let killed = Arc::new(Notify::new());
    let control = Control { input: Mutex::new(held), killed: killed.clone() };
    let runtime = tokio::runtime::Handle::current();
    let guard = Guard { target: target.clone(), id: exec.id.clone(), is_over: Arc::default(), runtime };
    let running = Running { target, id: exec.id, attempt, request, killed, is_over: guard.is_over.clone() };
    Ok(Session::spawn(control, move |sink| running.pump(output, sink)).with_guard(guard))
}

async fn command(target: &Target, shell: &OnceCell<String>, command: &ExecCommand) -> Result<Vec<String>> {
    match command {
        ExecCommand::Shell { script, shell: wanted } => {
            if script.len() > SCRIPT_MAX_BYTES {
                let message = format!("has {} bytes; without our agent {SCRIPT_MAX_BYTES} is the most", script.len());
                return Err(
                    SandboxError::invalid_input("command", message).with_help("upload it as a file, and run that")
                );
            }
            let shell = match wanted.as_ref().or(target.shell.as_ref()) {
                Some(shell) => shell.clone(),
                None => shell.get_or_try_init(|| find_shell(target)).await?.clone(),
            };
            Ok(vec![shell, "-c".to_owned(), text("command", script)?])
        }
        ExecCommand::Argv(argv) => argv.iter().map(|argument| text("command", argument)).collect(),
        _ => Err(SandboxError::unsupported_field(NAME, "command", "this form is not known")),
    }
}

/// bash where the image has it, else sh.
async fn find_shell(target: &Target) -> Result<String> {
    let docker = target.engine.docker().await?;
    for path in ["/bin/bash", "/usr/bin/bash"] {
        let options = bollard::query_parameters::ContainerArchiveInfoOptionsBuilder::default().path(path).build();
        match docker.get_container_archive_info(&target.container, Some(options)).await {
            Ok(_) => return Ok("bash".to_owned()),
            Err(error) if error::is_missing(&error) => {}
            Err(error) => return Err(error::engine("looking for a shell", error)),
        }
    }
    Ok("sh".to_owned())
}

fn text(field: &str, bytes: &ByteString) -> Result<String> {
    std::str::from_utf8(bytes.as_bytes())
        .map(str::to_owned)
        .map_err(|_| SandboxError::invalid_input(field, "must be UTF-8 without our agent: the engine takes text only"))
}

/// What was being started, for the text of a failure.
struct Attempt {
    program: String,
    cwd: String,
    user: String,
    is_script: bool,
}

impl Attempt {
    /// What the engine's own words say of a start that failed; none if they say nothing known.
    fn failure(&self, said: &str) -> Option<ExecExit> {
        let said = said.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
        let (reason, culprit) = if says(&["unable to find user", "unable to find group", "no matching entries"]) {
            (StartFailure::UnknownUser, &self.user)
        } else if says(&["chdir to cwd", "cwd"]) && says(&["not a directory"]) {
            (StartFailure::CwdNotADirectory, &self.cwd)
        } else if says(&["chdir to cwd", "mkdir"]) && says(&["permission denied"]) {
            (StartFailure::CwdNotAccessible, &self.cwd)
        } else if says(&["chdir to cwd"]) {
            (StartFailure::CwdMissing, &self.cwd)
        } else if says(&["executable file not found", "no such file or directory"]) {
            (if self.is_script { StartFailure::NoShell } else { StartFailure::NotFound }, &self.program)
        } else if says(&["permission denied", "exec format error", "is a directory"]) {
            (StartFailure::NotExecutable, &self.program)
        } else {
            return None;
        };
        let what = reason_text(reason);
        Some(ExecExit::start_failed(reason, format!("{what}: {}", culprit.escape_debug())))
    }
}

fn reason_text(reason: StartFailure) -> &'static str {
    match reason {
        StartFailure::UnknownUser => "no such user or group",
        StartFailure::CwdMissing => "no such directory",
        StartFailure::CwdNotADirectory => "the working directory is no directory",
        StartFailure::CwdNotAccessible => "the working directory cannot be entered",
        StartFailure::NoShell => "no shell in the sandbox",
        StartFailure::NotExecutable => "not executable",
        _ => "no such program",
    }
}

struct Control {
    input: Mutex<Option<Input>>,
    killed: Arc<Notify>,
}

#[async_trait]
impl SessionControl for Control {
    async fn write(&self, data: Bytes) -> Result<()> {
        let mut input = self.input.lock().await;
        let closed = || SandboxError::invalid_state("the input is closed");
        let open = input.as_mut().ok_or_else(closed)?;
        open.write_all(&data).await.map_err(|_| closed())
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        match request {
            ControlRequest::CloseInput => {
                if let Some(mut input) = self.input.lock().await.take() {
                    // One that has ended is closed already.
                    let _ = input.shutdown().await;
                }
            }
            ControlRequest::Kill => self.killed.notify_one(),
            _ => return Err(SandboxError::unsupported_control(NAME, None)),
        }
        Ok(ControlReply::default())
    }
}

/// Kills what still runs when nobody reads it any more.
struct Guard {
    target: Target,
    id: String,
    is_over: Arc<std::sync::atomic::AtomicBool>,
    /// It may be dropped anywhere.
    runtime: tokio::runtime::Handle,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_over.load(std::sync::atomic::Ordering::Acquire) {
            let (target, id) = (self.target.clone(), self.id.clone());
            self.runtime.spawn(async move { kill::tree(&target, &id).await });
        }
    }
}

struct Running {
    target: Target,
    id: String,
    attempt: Attempt,
    request: ExecRequest,
    killed: Arc<Notify>,
    is_over: Arc<std::sync::atomic::AtomicBool>,
}

enum Stopped {
    Output,
    Killed,
    Limit { idle: bool },
}

impl Running {
    async fn pump(
        self,
        mut output: std::pin::Pin<
            Box<dyn futures_util::Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>,
        >,
        sink: SessionSink<ExecEvent>,
    ) -> Result<()> {
        let started = Instant::now();
        let end = self.request.timeout().map(|limit| started + limit);
        let mut last_output = started;
        // Until the engine shows a process, what comes may be its own words.
        let mut is_known = false;
        let mut held = Vec::new();
        let stopped = loop {
            let idle_end = self.request.idle_timeout().map(|limit| last_output + limit);
            // The engine may show the process later than its output: who says something and waits is to be heard.
            let next_look = (!held.is_empty()).then(|| Instant::now() + LOOK_PAUSE);
            tokio::select! {
                biased;
                chunk = output.next() => match chunk {
                    None => break Stopped::Output,
                    Some(Err(error)) => {
                        let lost = SandboxError::lost("the engine broke the command's output off", Admitted::Yes);
                        return Err(lost.with_provider(NAME).with_source(error));
                    }
                    Some(Ok(chunk)) => {
                        last_output = Instant::now();
                        let event = match chunk {
                            LogOutput::StdErr { message } => ExecEvent::Stderr(message),
                            other => ExecEvent::Stdout(other.into_bytes()),
                        };
                        if !is_known {
                            held.push(event);
                            is_known = held.len() > WORDS_MAX || self.has_started().await?;
                            if is_known && !send_all(&sink, &mut held).await {
                                return Ok(());
                            }
                        } else if !sink.send(event).await {
                            return Ok(());
                        }
                    }
                },
                () = until(next_look) => {
                    is_known = self.has_started().await?;
                    if is_known && !send_all(&sink, &mut held).await {
                        return Ok(());
                    }
                }
                () = self.killed.notified() => break Stopped::Killed,
                () = until(end) => break Stopped::Limit { idle: false },
                () = until(idle_end) => break Stopped::Limit { idle: true },
            }
        };
        let usage = || ResourceUsage { wall_time_s: Some(started.elapsed().as_secs_f64()), ..Default::default() };
        let exit = match stopped {
            Stopped::Output => self.ending(&mut held).await?,
            Stopped::Killed => {
                let _ = tokio::time::timeout(KILL_LIMIT, kill::tree(&self.target, &self.id)).await;
                ExecExit::new(ExecOutcome::Signalled(9))
            }
            Stopped::Limit { idle } => {
                let _ = tokio::time::timeout(KILL_LIMIT, kill::tree(&self.target, &self.id)).await;
                ExecExit::new(ExecOutcome::TimedOut { idle })
            }
        };
        self.is_over.store(true, std::sync::atomic::Ordering::Release);
        if !send_all(&sink, &mut held).await {
            return Ok(());
        }
        sink.send(ExecEvent::Exit(exit.with_usage(usage()))).await;
        Ok(())
    }

    /// A process that was never made has no number.
    async fn has_started(&self) -> Result<bool> {
        let docker = self.target.engine.docker().await?;
        let failed = |error| error::engine("looking at the command", error);
        let found = docker.inspect_exec(&self.id).await.map_err(failed)?;
        Ok(found.pid.is_some_and(|pid| pid > 0))
    }

    /// How it ended, once its output has. A command that closes its output and goes on is waited for.
    /// Takes what the engine itself said out of `held`.
    async fn ending(&self, held: &mut Vec<ExecEvent>) -> Result<ExecExit> {
        let end = self.request.timeout().map(|limit| Instant::now() + limit);
        loop {
            let docker = self.target.engine.docker().await?;
            let found = docker.inspect_exec(&self.id).await.map_err(|error| {
                let lost = error::engine("looking at the command's end", error);
                lost.with_kind(ErrorKind::Lost)
            })?;
            let code = found.exit_code.and_then(|code| i32::try_from(code).ok());
            match (found.running, code) {
                (Some(false), Some(code)) => {
                    let never_ran = found.pid.unwrap_or(0) == 0 && (code == 126 || code == 127);
                    if never_ran && let Some(exit) = self.attempt.failure(&words(held)) {
                        held.clear();
                        return Ok(exit);
                    }
                    // The engine tells a signal as 128 and its number, and so does every shell.
                    let killed = if code == KILLED { self.killed().await } else { None };
                    let Some(oom) = killed else { return Ok(ExecExit::new(ExecOutcome::Exited(code))) };
                    let mut exit = ExecExit::new(ExecOutcome::Signalled(9));
                    exit.oom = oom;
                    return Ok(exit);
                }
                _ if end.is_some_and(|end| Instant::now() >= end) => {
                    kill::tree(&self.target, &self.id).await;
                    return Ok(ExecExit::new(ExecOutcome::TimedOut { idle: false }));
                }
                _ => tokio::time::sleep(END_PAUSE).await,
            }
        }
    }

    /// Whether the container itself was killed: then the command was, too. And whether memory was the reason, if that
    /// is known.
    async fn killed(&self) -> Option<Option<bool>> {
        // The engine notices the end of a container a moment later than that of a command.
        let end = Instant::now() + NOTICE_LIMIT;
        loop {
            let found = match crate::found::find(&self.target.engine, &self.target.container).await {
                Ok(Some(found)) => found,
                _ => return Some(None),
            };
            let is_over = Instant::now() >= end;
            match found.status == SandboxStatus::Running {
                true if is_over => return None,
                false if is_over || found.is_out_of_memory() => return Some(found.is_out_of_memory().then_some(true)),
                _ => tokio::time::sleep(END_PAUSE).await,
            }
        }
    }
}

/// Hands over what was held back. False when nobody reads any more.
async fn send_all(sink: &SessionSink<ExecEvent>, held: &mut Vec<ExecEvent>) -> bool {
    for event in held.drain(..) {
        if !sink.send(event).await {
            return false;
        }
    }
    true
}

fn words(held: &[ExecEvent]) -> String {
    let bytes = held.iter().flat_map(|event| match event {
        ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) => bytes.as_ref(),
        _ => &[],
    });
    String::from_utf8_lossy(&bytes.copied().collect::<Vec<u8>>()).into_owned()
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
