//! Running a command by the service's own call: cheaper by a folder, and poorer. One stream of text comes, and nothing of
//! it when the time is over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use reqwest::Method;
use sandbox_core::{
    Admitted, ExecCommand, ExecExit, ExecOutcome, ExecRequest, ExecStream, Result, SandboxError, SandboxHandle,
    StdinSource,
};
use serde_json::{Map, Value, json};

use crate::{
    client::Retry,
    config::seconds,
    error::{Failure, NAME},
    labels::state,
    options::is_plain_name,
    provider::Shared,
    script::quote,
    wire::Executed,
};

/// How long a command without a time limit may hold its request.
const UNLIMITED: Duration = Duration::from_secs(24 * 3600);

pub(crate) async fn exec(shared: &Arc<Shared>, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
    let refused = |field: &str, why: &str| {
        Err(SandboxError::unsupported_field(NAME, field, why).with_help("set operations.exec_mode to \"job\""))
    };
    if request.stdin != StdinSource::Null {
        return refused("exec.stdin_bytes", "exec_mode direct has no input");
    }
    if request.user.is_some() || request.idle_timeout_s.is_some() || request.kill_grace_s > 0.0 {
        return refused("exec.user", "exec_mode direct has no user, idle_timeout_s or kill_grace_s");
    }
    let text = |bytes: &sandbox_core::ByteString, field: &str| match bytes.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(SandboxError::invalid_input(field, "exec_mode direct takes text only")),
    };
    let mut envs = Map::new();
    for (name, value) in request.env.iter() {
        if !is_plain_name(name) {
            return refused(&format!("env.{name}"), "exec_mode direct takes names of letters, digits and _ only");
        }
        envs.insert(name.to_owned(), text(value, "env")?.into());
    }
    // The service reads the text as the input of a shell: what reads input itself must not find the rest of it.
    let command = match &request.command {
        ExecCommand::Shell { script, shell } => {
            format!(
                "exec {} -c {} </dev/null",
                quote(shell.as_deref().unwrap_or("sh")),
                quote(&text(script, "command")?)
            )
        }
        ExecCommand::Argv(argv) => {
            let words =
                argv.iter().map(|word| text(word, "command").map(|word| quote(&word))).collect::<Result<Vec<_>>>()?;
            format!("exec {} </dev/null", words.join(" "))
        }
        _ => return refused("command", "this form of command is not known"),
    };
    let limit = request.timeout();
    // The service counts whole seconds.
    let limit_s = limit.map(|limit| limit.as_secs_f64().ceil().max(1.0) as u64);
    let mut body = json!({"command": command, "envs": envs});
    if let Some(limit_s) = limit_s {
        body["timeout"] = limit_s.into();
    }
    let cwd = request.cwd.as_ref().map(|cwd| text(cwd, "cwd")).transpose()?;
    let cwd = match (cwd, state(handle).workdir) {
        (Some(cwd), Some(workdir)) if !cwd.starts_with('/') => Some(format!("{workdir}/{cwd}")),
        (cwd, workdir) => cwd.or(workdir),
    };
    if let Some(cwd) = cwd {
        body["cwd"] = Value::from(cwd);
    }
    let within = limit.unwrap_or(UNLIMITED) + seconds(shared.config.operations.command_timeout_margin_s);
    let url = format!("{}/process/execute", shared.toolbox(handle).await?);
    let mut call = shared.tool(Method::POST, url, within, Instant::now() + within);
    call.retry = Retry::Unsent;
    call.body = Some(body);
    let executed = match shared.client.call(&call).await.and_then(|answer| answer.json::<Executed>()) {
        Ok(executed) => executed,
        Err(Failure::Refused(refusal)) if refusal.status == 408 => {
            let exit = ExecExit::new(ExecOutcome::TimedOut { idle: false });
            return Ok(ExecStream::finished("", "", exit));
        }
        Err(failure) => {
            let is_ambiguous = failure.is_ambiguous();
            let error = shared.explain(handle, "the command", failure).await;
            let is_told =
                matches!(error.kind(), sandbox_core::ErrorKind::NotFound | sandbox_core::ErrorKind::InvalidState);
            return Err(if is_ambiguous && !is_told {
                SandboxError::lost(error.message(), Admitted::Unknown).with_provider(NAME)
            } else {
                error
            });
        }
    };
    let exit = match executed.exit_code {
        Some(-1) => {
            ExecExit::start_failed(sandbox_core::StartFailure::Other, "the service could not start the command")
        }
        code => ExecExit::new(ExecOutcome::Exited(code.unwrap_or(0))),
    };
    Ok(ExecStream::finished(executed.result, "", exit))
}
