//! The daemon inside a sandbox, as far as every operation needs it.

use std::time::{Duration, Instant};

use reqwest::Method;
use sandbox_core::{Admitted, ErrorKind, Result, SandboxError, SandboxHandle};
use serde_json::json;

use crate::{
    client::{Call, Retry, check_proxy},
    config::seconds,
    error::{Failure, NAME, foreign, gone},
    gate::Throttle,
    labels::state,
    provider::Shared,
    random::random_hex,
    script::command,
    wire::{Executed, Link, Phase, SandboxDto},
};

/// How long the control plane may take for a question.
pub(crate) const ASK_WITHIN: Duration = Duration::from_secs(30);

/// How long a short script may take inside, and all attempts to run it together.
const SHORT: Duration = Duration::from_secs(20);
const SHORT_TRIED: Duration = Duration::from_secs(60);

/// A script to run inside, in one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script<'a> {
    pub(crate) text: &'a str,
    /// How long it may take inside.
    pub(crate) within: Duration,
    /// How long all attempts may take together.
    pub(crate) deadline: Instant,
}

/// What a script said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) output: String,
}

/// Refuses a handle that is not this provider's, or of another incarnation.
pub(crate) fn check(handle: &SandboxHandle) -> Result<()> {
    if handle.provider_name != NAME {
        return Err(foreign(&handle.sandbox_id, &handle.provider_name));
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let id = &handle.sandbox_id;
    if handle.generation != 0 || id.is_empty() || id.starts_with('.') || !id.chars().all(is_part) {
        return Err(gone(id));
    }
    Ok(())
}

impl Shared {
    /// The sandbox as the control plane has it now.
    pub(crate) async fn look(&self, id: &str, within: Duration) -> Result<SandboxDto, Failure> {
        let call = self.client.api(Method::GET, &format!("/sandbox/{id}"), within);
        self.client.call(&call).await?.json()
    }

    /// The toolbox of a sandbox, without a slash at the end.
    pub(crate) async fn toolbox(&self, handle: &SandboxHandle) -> Result<String> {
        check(handle)?;
        let id = &handle.sandbox_id;
        if let Some(url) = &self.config.connection.toolbox_url {
            return Ok(format!("{}/{id}", url.trim_end_matches('/')));
        }
        let proxy = match state(handle).proxy {
            Some(proxy) => proxy,
            None => {
                let call = self.client.api(Method::GET, &format!("/sandbox/{id}/toolbox-proxy-url"), ASK_WITHIN);
                let answer = self.client.call(&call).await.and_then(|answer| answer.json::<Link>());
                answer.map_err(|failure| failure.into_error("the address of the toolbox"))?.url
            }
        };
        Ok(format!("{}/{id}", check_proxy(&self.client.api, &proxy)?))
    }

    /// A call to the toolbox that may be repeated.
    pub(crate) fn tool(&self, method: Method, url: String, attempt: Duration, deadline: Instant) -> Call {
        Call {
            method,
            url,
            query: Vec::new(),
            body: None,
            retry: Retry::Repeatable,
            throttle: Throttle::Other,
            attempt,
            deadline,
        }
    }

    /// Runs a script inside that may run twice. Its own failures are in the answer.
    pub(crate) async fn script(&self, handle: &SandboxHandle, script: Script<'_>) -> Result<Said, Failure> {
        let toolbox = self.toolbox(handle).await.map_err(|error| Failure::NotSent(error.message().to_owned()))?;
        self.script_at(&toolbox, script).await
    }

    /// Runs a short script inside that may run twice. `what`: for the error where it could not run.
    pub(crate) async fn short_script(&self, handle: &SandboxHandle, what: &str, text: &str) -> Result<Said> {
        check(handle)?;
        let script = Script { text, within: SHORT, deadline: Instant::now() + SHORT_TRIED };
        match self.script(handle, script).await {
            Ok(said) => Ok(said),
            Err(failure) => Err(self.explain(handle, what, failure).await),
        }
    }

    pub(crate) async fn script_at(&self, toolbox: &str, script: Script<'_>) -> Result<Said, Failure> {
        let unguessable = random_hex(8).map_err(|error| Failure::NotSent(error.message().to_owned()))?;
        let inside_s = script.within.as_secs_f64().ceil().max(1.0) as u64;
        let margin = seconds(self.config.operations.command_timeout_margin_s);
        let attempt = Duration::from_secs(inside_s) + margin;
        let mut call = self.tool(Method::POST, format!("{toolbox}/process/execute"), attempt, script.deadline);
        let text = command(&format!("SBX{unguessable}"), script.text);
        call.body = Some(json!({"command": text, "timeout": inside_s}));
        let executed: Executed = self.client.call(&call).await?.json()?;
        Ok(Said { code: executed.exit_code.unwrap_or(0), output: executed.result })
    }

    /// Why a request to a toolbox failed, as far as the control plane knows.
    pub(crate) async fn explain(&self, handle: &SandboxHandle, what: &str, failure: Failure) -> SandboxError {
        let id = &handle.sandbox_id;
        // Of these the sandbox itself may be the reason; the others speak for themselves.
        let is_unclear = matches!(failure.status(), Some(400 | 404 | 408 | 410 | 500..)) || failure.is_ambiguous();
        if !is_unclear {
            return failure.into_error(what);
        }
        match self.look(id, ASK_WITHIN).await {
            Err(Failure::Refused(refusal)) if refusal.status == 404 => gone(id),
            Err(_) => failure.into_error(what),
            Ok(dto) => not_running(id, &dto).unwrap_or_else(|| failure.into_error(what)),
        }
    }

    /// What ended a command that was under way.
    pub(crate) async fn explain_loss(&self, handle: &SandboxHandle, failure: Failure) -> SandboxError {
        let error = self.explain(handle, "the command", failure).await;
        match error.kind() {
            ErrorKind::Unauthorized => error,
            _ => SandboxError::lost(format!("the command was lost: {}", error.message()), Admitted::Yes)
                .with_provider(NAME),
        }
    }
}

/// The refusal of a sandbox in which nothing runs; none if commands run.
pub(crate) fn not_running(id: &str, dto: &SandboxDto) -> Option<SandboxError> {
    let text = format!("sandbox {id} is {}", dto.state().chars().take(40).collect::<String>());
    match dto.phase() {
        Phase::Ready => None,
        Phase::Gone => Some(gone(id)),
        _ => Some(SandboxError::invalid_state(text).with_provider(NAME)),
    }
}
