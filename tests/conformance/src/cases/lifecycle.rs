//! From create to close.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use sandbox_core::{CaptureLimits, ErrorKind, ExecOutcome, ExecRequest, SandboxHandle, SandboxSpec, SandboxStatus};
use tokio::task::JoinSet;

use super::cases;
use crate::{
    check::{Check, Stop, ensure_refused},
    context::Context,
    host::{eventually, within},
    sandbox::RUN_WITHIN,
};

cases! { "lifecycle":
    created_sandbox_runs_commands_at_once, "contract: Lifecycle, create";
    status_is_running_and_then_stopped, "contract: Lifecycle, status";
    close_again_succeeds, "C04, contract: Lifecycle, close is idempotent";
    ten_closes_at_once_succeed, "C04, contract: Lifecycle, close is idempotent";
    close_ends_a_running_command, "C04, contract: Lifecycle, close";
    calls_after_the_close_are_refused, "contract: Lifecycle, status of a gone sandbox";
    foreign_handle_is_refused, "contract: Lifecycle, a handle is bound to its sandbox";
    older_generation_is_refused, "contract: Lifecycle, one incarnation";
    files_are_gone_after_the_close, "contract: Lifecycle, everything that belongs to it";
    dropped_create_leaves_nothing, "contract: Lifecycle, create";
    refused_create_leaves_nothing, "I04, contract: Lifecycle, create", field ProviderOptions;
    ttl_ends_the_sandbox, "C01, contract: Lifecycle, TTL", field TtlS;
    aclose_leaves_sandboxes_alone, "contract: Required operations, aclose";
}

async fn created_sandbox_runs_commands_at_once(cx: Context) -> Check {
    for number in 0..5 {
        let sandbox = cx.sandbox().await?;
        sandbox.put("f", b"x").await?;
        ensure_eq!(sandbox.text(format!("cat f; echo {number}")).await?, format!("x{number}"), "first command");
        sandbox.close().await?;
    }
    Ok(())
}

async fn status_is_running_and_then_stopped(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    ensure_eq!(sandbox.provider().status(sandbox.handle()).await?, SandboxStatus::Running, "status after create");
    ensure_eq!(sandbox.handle().provider_name, cx.info().name, "the provider that the handle names");
    sandbox.close().await?;
    ensure_eq!(sandbox.provider().status(sandbox.handle()).await?, SandboxStatus::Stopped, "status after close");
    Ok(())
}

async fn close_again_succeeds(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for _ in 0..3 {
        sandbox.close().await?;
    }
    let gone = SandboxHandle::new(format!("gone-{}", cx.token()), cx.info().name.clone());
    within(RUN_WITHIN, "close", sandbox.provider().close(&gone)).await??;
    Ok(())
}

async fn ten_closes_at_once_succeed(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut closes = JoinSet::new();
    for _ in 0..10 {
        let sandbox = sandbox.clone();
        closes.spawn(async move { sandbox.close().await });
    }
    while let Some(end) = closes.join_next().await {
        end.map_err(|error| Stop::failed(format!("a close panicked: {error}")))??;
    }
    Ok(())
}

async fn close_ends_a_running_command(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let stream = sandbox.start(ExecRequest::shell("echo up > up; sleep 30; echo survived")).await?;
    ensure!(sandbox.eventually(RUN_WITHIN, "test -e up").await?, "the command did not start");
    let running = tokio::spawn(stream.collect(CaptureLimits::default()));
    sandbox.close().await?;
    let end = within(Duration::from_secs(5), "a command whose sandbox was closed", running).await?;
    match end.map_err(|error| Stop::failed(error.to_string()))? {
        Ok(result) => {
            let is_end = matches!(result.outcome(), ExecOutcome::Signalled(_)) || result.return_code() == 137;
            ensure!(is_end, "the command ended as {:?}", result.outcome());
        }
        Err(error) => ensure!(
            matches!(error.kind(), ErrorKind::Lost | ErrorKind::NotFound | ErrorKind::InvalidState),
            "the command ended with {error:?}"
        ),
    }
    Ok(())
}

async fn calls_after_the_close_are_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.put("f", b"x").await?;
    sandbox.close().await?;
    let gone = [ErrorKind::NotFound, ErrorKind::InvalidState];
    let exec = sandbox.provider().exec(sandbox.handle(), ExecRequest::shell("true"));
    ensure_refused(within(RUN_WITHIN, "exec", exec).await?, &gone, "a command after the close")?;
    ensure_refused(sandbox.try_put("g", b"x").await?, &gone, "an upload after the close")?;
    ensure_refused(sandbox.try_get("f", "f").await?, &gone, "a download after the close")?;
    Ok(())
}

async fn foreign_handle_is_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut other_name = sandbox.handle().clone();
    other_name.provider_name = "another-provider".to_owned();
    let mut other_id = sandbox.handle().clone();
    other_id.sandbox_id = format!("other-{}", cx.token());
    other_id.state = serde_json::Value::Null;
    let kinds = [ErrorKind::InvalidInput, ErrorKind::NotFound, ErrorKind::InvalidState];
    for (handle, what) in
        [(&other_name, "a command for another provider's sandbox"), (&other_id, "a command for an unknown id")]
    {
        let exec = within(RUN_WITHIN, "exec", sandbox.provider().exec(handle, ExecRequest::shell("true"))).await?;
        ensure_refused(exec, &kinds, what)?;
    }
    let status = sandbox.provider().status(&other_name).await;
    ensure_refused(status, &kinds, "the status of another provider's sandbox")?;
    ensure_eq!(sandbox.provider().status(&other_id).await?, SandboxStatus::Stopped, "status of an unknown id");
    ensure_refused(sandbox.provider().close(&other_name).await, &kinds, "the close of another provider's sandbox")?;
    ensure_eq!(sandbox.text("echo usable").await?, "usable", "stdout");
    Ok(())
}

async fn older_generation_is_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut stale = sandbox.handle().clone();
    stale.generation = stale.generation.wrapping_add(7);
    let exec = within(RUN_WITHIN, "exec", sandbox.provider().exec(&stale, ExecRequest::shell("true"))).await?;
    let kinds = [ErrorKind::NotFound, ErrorKind::InvalidState, ErrorKind::InvalidInput];
    ensure_refused(exec, &kinds, "a command with a handle of another generation")?;
    Ok(())
}

async fn files_are_gone_after_the_close(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.put("belongs/to/it", b"x").await?;
    let path = format!("{}/belongs/to/it", sandbox.pwd().await?);
    sandbox.close().await?;
    if !cx.shares_the_host() {
        return Err(Stop::skipped("the sandbox's files cannot be seen from here"));
    }
    ensure!(!Path::new(&path).exists(), "a file of a closed sandbox is still there");
    Ok(())
}

async fn dropped_create_leaves_nothing(cx: Context) -> Check {
    // Points in time from before the first step to near the end of a create.
    let started = Instant::now();
    cx.sandbox().await?.close().await?;
    let whole = started.elapsed();
    for part in [0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9] {
        let create = cx.provider().create(cx.spec());
        if let Ok(end) = tokio::time::timeout(whole.mul_f64(part), create).await {
            cx.adopt(end?).close().await?;
        }
    }
    let is_clean = async || !cx.is_listed().await.unwrap_or(true);
    ensure!(eventually(Duration::from_secs(10), is_clean).await, "a sandbox whose create was dropped is still listed");
    cx.ensure_nothing_is_left().await
}

async fn refused_create_leaves_nothing(cx: Context) -> Check {
    let mut spec: SandboxSpec = cx.spec();
    spec.provider_options.insert("no_such_option_at_all".to_owned(), true.into());
    match within(RUN_WITHIN, "create", cx.provider().create(spec)).await? {
        Ok(handle) => {
            cx.adopt(handle);
            Err(Stop::failed("an unknown provider option was ignored"))
        }
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::InvalidInput, "kind");
            ensure!(error.to_string().contains("no_such_option_at_all"), "the error does not name the option: {error}");
            cx.ensure_nothing_is_left().await
        }
    }
}

async fn ttl_ends_the_sandbox(cx: Context) -> Check {
    let started = Instant::now();
    let sandbox = cx.sandbox_with(cx.spec().with_ttl_s(2.0)).await?;
    let stream = sandbox.start(ExecRequest::argv(["sleep", "60"])).await?;
    let status = async || sandbox.provider().status(sandbox.handle()).await;
    let is_stopped = async || status().await.is_ok_and(|status| status == SandboxStatus::Stopped);
    ensure!(
        eventually(Duration::from_secs(15), is_stopped).await,
        "it still runs {:?} after create",
        started.elapsed()
    );
    ensure!(started.elapsed() > Duration::from_millis(1900), "it ended after {:?}, before its time", started.elapsed());
    let end =
        within(Duration::from_secs(12), "a command of an expired sandbox", stream.collect(CaptureLimits::default()));
    if let Ok(result) = end.await? {
        let is_time = matches!(result.outcome(), ExecOutcome::TimedOut { .. });
        ensure!(!is_time, "the end of the sandbox was reported as a time limit of the command");
    }
    let exec = sandbox.provider().exec(sandbox.handle(), ExecRequest::shell("true")).await;
    ensure_refused(exec, &[ErrorKind::NotFound, ErrorKind::InvalidState], "a command after the expiry")?;
    cx.ensure_nothing_is_left().await
}

async fn aclose_leaves_sandboxes_alone(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let other = cx.another_provider().await?;
    for _ in 0..2 {
        within(RUN_WITHIN, "aclose", other.aclose()).await??;
    }
    ensure_eq!(sandbox.text("echo usable").await?, "usable", "stdout");
    Ok(())
}
