//! Commands.

mod background;
mod control;
mod foreground;
mod frames;
mod order;
mod outcome;
mod user;

use std::{sync::Arc, time::Duration};

use reqwest::{Method, Response};
use sandbox_core::{
    ByteString, ErrorKind, ExecExit, ExecRequest, ExecStream, Result, SandboxError, SandboxHandle, StartFailure,
};
use tokio::time::Instant;

use crate::{
    config::OutputDialectSetting,
    daemon::{Daemon, Dialect, Kind, Pong, query},
    error::{Failure, NAME},
    shared::Shared,
    state::State,
};
use frames::Frames;
use order::{Order, Surroundings};

pub(crate) use order::{ENCODED_PREFIX, printf_format, quote};
pub(crate) use user::Found;

/// What shows how a daemon sends output.
const DIALECT_SCRIPT: &str = "printf 'a\\nb\\n'";

/// A command that is about to run.
pub(crate) struct Job {
    shared: Arc<Shared>,
    id: String,
    kind: Kind,
    request: ExecRequest,
    marker: Option<String>,
    program: String,
    stderr_path: Option<String>,
    /// Files to remove afterwards.
    files: Vec<String>,
    started: Instant,
}

/// Hexadecimal digits that nobody else has.
pub(crate) fn token() -> String {
    use std::hash::{BuildHasher, RandomState};
    let part = |salt: u64| RandomState::new().hash_one((salt, std::process::id()));
    format!("{:016x}{:08x}", part(1), part(2) as u32)
}

/// Runs a command.
pub(crate) async fn exec(shared: &Arc<Shared>, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
    request.validate()?;
    let state = shared.open(handle)?;
    exec_as(shared, &handle.sandbox_id, &state, request).await
}

/// The same for a sandbox whose state is known.
pub(crate) async fn exec_as(shared: &Arc<Shared>, id: &str, state: &State, request: ExecRequest) -> Result<ExecStream> {
    if let Some(agent) = shared.native_exec(id).await? {
        return agent.exec(state, request).await;
    }
    let daemon = shared.daemon(id).await?;
    let mut kind = daemon.kind().await?;
    let user = match request.user.as_ref().or(state.user.as_ref()) {
        None => None,
        Some(spec) => match daemon.user(spec).await? {
            Found::User(user) => Some(user),
            Found::Unknown(message) => return Ok(not_started(StartFailure::UnknownUser, message)),
        },
    };
    let cwd = working_directory(state, request.cwd.as_ref())?;
    if let Some(cwd) = cwd.as_deref().filter(|cwd| cwd.contains('$'))
        && let Some(stream) = daemon.refused_cwd(cwd).await?
    {
        return Ok(stream);
    }
    loop {
        let token = token();
        let given = Surroundings {
            state,
            kind,
            user: user.as_ref(),
            token: &token,
            is_background: shared.config.operations.background_exec,
            is_through_server: shared.config.connection.use_server_proxy,
            cwd: cwd.as_deref(),
        };
        let order = Order::new(&request, &given)?;
        let mode = if user.is_some() { 0o644 } else { 0o600 };
        for (path, contents) in &order.files {
            daemon.put(path, contents.clone().into(), mode).await?;
        }
        let job = Job {
            shared: shared.clone(),
            id: id.to_owned(),
            kind,
            request: request.clone(),
            marker: order.marker,
            program: order.program,
            files: order.files.iter().map(|(path, _)| path.clone()).chain(order.stderr_path.clone()).collect(),
            stderr_path: order.stderr_path,
            started: Instant::now(),
        };
        let failure = match daemon.start_command(&order.body, shared.config.connection.request_timeout()).await {
            Ok(response) => return job.run(response).await,
            Err(failure) => failure,
        };
        job.remove_files();
        let refusal = failure.refusal().filter(|refusal| refusal.status == 400).cloned();
        if let Some(refusal) = refusal {
            if kind.argv && order.body.get("argv").is_some() && refusal.message.contains("Command") {
                // A daemon of June 2026: it knows scripts only.
                kind.argv = false;
                shared.set_kind(id, kind);
                continue;
            }
            if let Some(cwd) = cwd.as_deref()
                && let Some(stream) = daemon.refused_cwd(cwd).await?
            {
                return Ok(stream);
            }
        }
        return Err(daemon.explain(without_words(failure), "starting a command").await);
    }
}

/// What a daemon says of a command may hold the command.
fn without_words(failure: Failure) -> Failure {
    match failure {
        Failure::Refused(mut refusal) if !refusal.code.is_empty() => {
            refusal.message.clear();
            Failure::Refused(refusal)
        }
        other => other,
    }
}

fn not_started(reason: StartFailure, message: impl Into<String>) -> ExecStream {
    let message: String = message.into().replace(['\n', '\r'], " ");
    ExecStream::finished("", "", ExecExit::start_failed(reason, message))
}

/// Where a command runs; none is where the daemon itself does.
pub(crate) fn working_directory(state: &State, cwd: Option<&ByteString>) -> Result<Option<String>> {
    let Some(cwd) = cwd else { return Ok(state.workdir.clone()) };
    let text = cwd.as_str().ok_or_else(|| {
        SandboxError::invalid_input("cwd", "must be UTF-8: the daemon inside takes nothing else").with_provider(NAME)
    })?;
    Ok(Some(absolute(state, text)))
}

/// A path as the daemon takes it.
pub(crate) fn absolute(state: &State, path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let folder = state.workdir.as_deref().unwrap_or("/").trim_end_matches('/');
    format!("{folder}/{path}")
}

impl Daemon<'_> {
    /// What this daemon is like; found out once for each sandbox.
    pub(crate) async fn kind(&self) -> Result<Kind> {
        if let Some(kind) = self.shared.kind(&self.id) {
            return Ok(kind);
        }
        let timeout = self.shared.config.connection.request_timeout();
        let Pong { extensions, native } = match self.ping_with(timeout, self.shared.operation_backoff()).await {
            Ok(pong) => pong,
            Err(failure) => return Err(self.explain(failure, "reaching the daemon of the sandbox").await),
        };
        let dialect = match self.shared.config.operations.output_dialect {
            OutputDialectSetting::Exact => Dialect::Exact,
            OutputDialectSetting::Lines => Dialect::Lines,
            OutputDialectSetting::Auto if extensions => Dialect::Exact,
            OutputDialectSetting::Auto => self.dialect().await?,
        };
        let kind = Kind { extensions, native, argv: true, dialect };
        self.shared.set_kind(&self.id, kind);
        Ok(kind)
    }

    async fn dialect(&self) -> Result<Dialect> {
        const WHAT: &str = "asking the daemon how it sends output";
        let timeout = self.shared.config.connection.request_timeout();
        let order = sandbox_core::serde_json::json!({ "command": DIALECT_SCRIPT });
        let mut response = match self.start_command(&order, timeout).await {
            Ok(response) => response,
            Err(failure) => return Err(self.explain(failure, WHAT).await),
        };
        let read = async {
            let (mut frames, mut texts) = (Frames::default(), Vec::new());
            loop {
                while let Ok(Some(frame)) = frames.next() {
                    match frame.kind.as_str() {
                        "stdout" => texts.push(frame.text),
                        "execution_complete" | "error" => return Some(texts),
                        _ => {}
                    }
                }
                match response.chunk().await {
                    Ok(Some(chunk)) => frames.push(&chunk),
                    _ => return None,
                }
            }
        };
        match tokio::time::timeout(timeout, read).await {
            Ok(Some(texts)) => Ok(frames::dialect_of(&texts)),
            _ => Err(self.explain(Failure::Broke("the answer ended early".to_owned()), WHAT).await),
        }
    }

    /// The end of a command whose working directory is none, if that is so.
    async fn refused_cwd(&self, cwd: &str) -> Result<Option<ExecStream>> {
        // With a dot a link counts as what it points to, and a file is no folder.
        let shown = cwd.escape_debug();
        let staged = cwd.contains('$');
        let path = if staged { return Ok(None) } else { cwd };
        match self.info(path).await {
            Ok(None) => Ok(Some(not_started(StartFailure::CwdMissing, format!("{shown}: no such folder")))),
            Ok(Some(info)) if info["type"] == "file" || info["type"] == "other" => {
                Ok(Some(not_started(StartFailure::CwdNotADirectory, format!("{shown}: not a folder"))))
            }
            // A file on the way is an error of another kind for some daemons.
            Err(failure) if failure.status() == 500 && !failure.refusal().is_some_and(|one| one.is_gone()) => {
                Ok(Some(not_started(StartFailure::CwdMissing, format!("{shown}: no such folder"))))
            }
            Ok(Some(_)) => Ok(None),
            Err(failure) => Err(self.explain(failure, "looking at the working directory").await),
        }
    }
}

impl Job {
    async fn run(self, response: Response) -> Result<ExecStream> {
        match self.stderr_path {
            Some(_) => background::run(self, response).await,
            None => Ok(foreground::run(self, response)),
        }
    }

    /// How the command ended, by the words of a daemon without an exact ending.
    fn has_timed_out(&self) -> bool {
        self.request.timeout().is_some_and(|timeout| self.started.elapsed() + Duration::from_millis(20) >= timeout)
    }

    /// Removes what was made for it, in the background.
    fn remove_files(&self) {
        if self.files.is_empty() {
            return;
        }
        let (shared, id) = (self.shared.clone(), self.id.clone());
        let paths: Vec<String> = self.files.iter().map(|path| format!("path={}", query(path))).collect();
        tokio::spawn(async move {
            // What cannot be removed goes with the sandbox.
            let Ok(daemon) = shared.daemon(&id).await else { return };
            let call = daemon.call(Method::DELETE, &format!("/files?{}", paths.join("&")));
            let _ = daemon.ask(&call, crate::retry::Operation::Idempotent).await;
        });
    }

    /// What became of a command whose stream broke: the sandbox itself may have ended.
    async fn lost(&self, why: &str) -> SandboxError {
        let text = format!("a command in sandbox {}: {why}", self.id);
        let error = match self.shared.daemon(&self.id).await {
            Ok(daemon) => daemon.explain(Failure::Broke(why.to_owned()), "a command").await,
            Err(error) => error,
        };
        let admitted = sandbox_core::Admitted::Yes;
        match error.kind() {
            ErrorKind::Lost => SandboxError::lost(error.message(), admitted),
            _ => SandboxError::lost(text, admitted).with_source(error),
        }
        .with_provider(NAME)
    }
}
