//! Ending a command from outside.

use std::time::Duration;

use sandbox_core::{CaptureLimits, ControlRequest, ErrorKind, ExecOutcome, ExecRequest};

use super::cases;
use crate::{
    check::{Check, ensure_bytes, ensure_refused},
    context::Context,
    host::within,
    sandbox::{RUN_WITHIN, TestSandbox},
};

cases! { "cancel":
    dropping_the_stream_kills_the_tree, "A02, contract: Exec, cancel and drop";
    kill_ends_the_tree_and_the_exit_still_arrives, "A02, contract: Exec", field ExecSignal;
    signal_reaches_the_command, "contract: Exec, signals", field ExecSignal;
    control_after_the_end_is_refused, "contract: Exec", field ExecSignal;
}

/// How long a command may take to end after it was told to.
const SOON: Duration = Duration::from_secs(8);

/// Starts a tree of three: a shell, a child, and a grandchild in a session of its own, all ticking.
const TREE: &str = "for i in 1 2; do (while :; do echo tick >> ticks; sleep 0.05; done) & done; \
                    command -v setsid >/dev/null && setsid sh -c 'while :; do echo tick >> ticks; sleep 0.05; done' & \
                    echo up > up; wait";

async fn start_tree(sandbox: &TestSandbox) -> Check<sandbox_core::ExecStream> {
    let stream = sandbox.start(ExecRequest::shell(TREE)).await?;
    ensure!(
        sandbox.eventually(Duration::from_secs(10), "test -e up && test -s ticks").await?,
        "the tree did not start"
    );
    Ok(stream)
}

async fn ensure_stopped(sandbox: &TestSandbox) -> Check {
    // A kill that is under way may take a moment; one that never comes does not.
    let is_still = "a=$(wc -c < ticks); sleep 0.3; test \"$a\" = \"$(wc -c < ticks)\"";
    ensure!(sandbox.eventually(Duration::from_secs(4), is_still).await?, "processes of the command went on writing");
    sandbox.ensure_still("ticks", Duration::from_millis(500)).await
}

async fn dropping_the_stream_kills_the_tree(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    drop(start_tree(&sandbox).await?);
    ensure_stopped(&sandbox).await?;
    ensure_eq!(sandbox.text("echo usable").await?, "usable", "stdout");
    Ok(())
}

async fn kill_ends_the_tree_and_the_exit_still_arrives(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let stream = start_tree(&sandbox).await?;
    stream.control().control(ControlRequest::Kill).await?;
    let result = within(SOON, "a killed command", stream.collect(CaptureLimits::default())).await??;
    ensure_eq!(*result.outcome(), ExecOutcome::Signalled(9), "outcome");
    ensure_stopped(&sandbox).await
}

async fn signal_reaches_the_command(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = "trap 'echo caught; exit 7' USR1; echo up > up; while :; do sleep 0.05; done";
    let stream = sandbox.start(ExecRequest::shell(script)).await?;
    ensure!(sandbox.eventually(Duration::from_secs(10), "test -e up").await?, "the command did not start");
    stream.control().control(ControlRequest::Signal(10)).await?;
    let result = within(SOON, "the signalled command", stream.collect(CaptureLimits::default())).await??;
    ensure_eq!(*result.outcome(), ExecOutcome::Exited(7), "outcome");
    ensure_bytes(&result.stdout, b"caught\n", "stdout")
}

async fn control_after_the_end_is_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let stream = sandbox.start(ExecRequest::argv(["true"])).await?;
    let control = stream.control();
    within(RUN_WITHIN, "the command", stream.collect(CaptureLimits::default())).await??;
    let kinds = [ErrorKind::InvalidState, ErrorKind::NotFound];
    ensure_refused(control.control(ControlRequest::Signal(15)).await, &kinds, "a signal after the end")?;
    Ok(())
}
