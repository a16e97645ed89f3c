//! Secrets stay where they are: not in errors, not in `Debug`, not in log events.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
};

use sandbox_core::{
    ExecOutcome, ExecRequest, SandboxError, SandboxHandle,
    tracing::{
        self, Event, Metadata, Subscriber,
        field::{Field, Visit},
        instrument::WithSubscriber,
        span,
    },
};

use super::cases;
use crate::{
    check::{Check, Stop},
    context::Context,
};

cases! { "hygiene":
    secrets_are_not_in_debug_of_the_types, "I01, style: Errors, Logs";
    secrets_are_not_in_errors, "I01, style: Errors";
    secrets_are_not_in_log_events, "I01, style: Logs";
}

/// Everything that a subscriber is told, as text.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<String>>);

impl Captured {
    fn add(&self, text: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    }

    fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Fields<'a>(&'a Captured);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.add(&format!("{field}={value:?}\n"));
    }
}

impl Subscriber for Captured {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        attributes.record(&mut Fields(self));
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, values: &span::Record<'_>) {
        values.record(&mut Fields(self));
    }

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Fields(self));
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

fn describe(text: &mut String, error: &SandboxError) {
    let _ = writeln!(text, "{error} {error:?} {:?} {:?} {:?}", error.help(), error.field(), error.chain());
}

fn loaded(request: ExecRequest, canary: &str) -> ExecRequest {
    request.with_env("SECRET", canary).with_stdin_bytes(canary.to_owned())
}

/// Does what can go wrong, with secrets everywhere, and gives all texts that came of it.
async fn provoke(cx: &Context, canary: &str) -> Check<String> {
    let mut text = String::new();
    let spec = cx.spec().with_env("SECRET", canary).with_file("/f", canary);
    let _ = writeln!(text, "{spec:?}");
    let mut wrong = cx.spec().with_env("SECRET", canary);
    wrong.provider_options.insert("no_such_option".to_owned(), canary.into());
    match cx.provider().create(wrong).await {
        Ok(handle) => drop(cx.adopt(handle)),
        Err(error) => describe(&mut text, &error),
    }
    let sandbox = cx.sandbox_with(cx.spec().with_env("SECRET", canary)).await?;
    let _ = writeln!(text, "{:?}", sandbox.handle());
    sandbox.bytes("mkdir folder").await?;
    let requests = [
        loaded(ExecRequest::shell(format!("echo {canary}; echo {canary} >&2; exit 3")), canary),
        loaded(ExecRequest::argv(["/no/such/program", canary]), canary),
        loaded(ExecRequest::argv(["cat", canary]), canary).with_timeout_s(5.0),
        loaded(ExecRequest::shell(format!(": {canary}")), canary).with_cwd("/no/such/folder"),
    ];
    for request in requests {
        let _ = writeln!(text, "{request:?}");
        let result = sandbox.run(request).await?;
        if let ExecOutcome::StartFailed { message, .. } = result.outcome() {
            text += message;
        }
        let _ = writeln!(text, "{result:?}");
    }
    for remote in ["folder", "/proc/no/such", "ok"] {
        if let Err(error) = sandbox.try_put(remote, canary.as_bytes()).await? {
            describe(&mut text, &error);
        }
    }
    let gone = SandboxHandle::new("gone", cx.info().name.clone());
    let request = loaded(ExecRequest::shell(format!("echo {canary}")), canary);
    match cx.provider().exec(&gone, request).await {
        Ok(_) => return Err(Stop::failed("a command for an unknown id was accepted")),
        Err(error) => describe(&mut text, &error),
    }
    sandbox.close().await?;
    let _ = writeln!(text, "{:?}", cx.provider().full_info());
    Ok(text)
}

fn canary(cx: &Context) -> String {
    format!("canary{}", cx.token())
}

fn ensure_clean(text: &str, canary: &str, what: &str) -> Check {
    if let Some(line) = text.lines().find(|line| line.contains(canary)) {
        return Err(Stop::failed(format!("a secret is in {what}: {}", line.replace(canary, "CANARY"))));
    }
    Ok(())
}

async fn secrets_are_not_in_debug_of_the_types(cx: Context) -> Check {
    let canary = canary(&cx);
    let spec = cx.spec().with_env("A", canary.as_str()).with_file("/f", canary.as_str());
    let request = loaded(ExecRequest::shell(canary.as_str()), &canary);
    let handle = SandboxHandle::new("id", "p").with_state(serde_json::json!({"token": canary}));
    let pty = sandbox_core::SandboxPtySpec { command: Some(canary.as_str().into()), ..Default::default() };
    ensure_clean(&format!("{spec:?}\n{request:?}\n{handle:?}\n{pty:?}\n{:?}", spec.env), &canary, "Debug of a type")
}

async fn secrets_are_not_in_errors(cx: Context) -> Check {
    let canary = canary(&cx);
    ensure_clean(&provoke(&cx, &canary).await?, &canary, "an error or a Debug")
}

async fn secrets_are_not_in_log_events(cx: Context) -> Check {
    let (canary, captured) = (canary(&cx), Captured::default());
    // Sees what is logged while a call of the provider is polled; what its own tasks log, the command line tool sees.
    let calls = async {
        tracing::info!(probe = "seen");
        provoke(&cx, &canary).await
    };
    calls.with_subscriber(captured.clone()).await?;
    let text = captured.text();
    ensure!(text.contains("probe=\"seen\""), "the suite's subscriber saw nothing");
    ensure_clean(&text, &canary, "a log event")
}
