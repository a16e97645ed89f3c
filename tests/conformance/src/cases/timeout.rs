//! Time limits.

use std::time::{Duration, Instant};

use sandbox_core::{ExecOutcome, ExecRequest};

use super::cases;
use crate::{
    check::{Check, ensure_bytes},
    context::Context,
};

cases! { "timeout":
    answer_comes_near_the_deadline, "A02, A03, contract: Exec, timeout", field ExecTimeoutS;
    partial_output_of_both_streams_is_kept, "A14, contract: Exec", field ExecTimeoutS;
    command_that_is_in_time_is_not_touched, "A08, C16", field ExecTimeoutS;
    child_is_killed, "A02, contract: Exec, the whole tree", field ExecTimeoutS;
    setsid_child_is_killed, "A02, contract: Exec, setsid children", field ExecTimeoutS;
    double_forked_child_is_killed, "A02, contract: Exec, the whole tree", field ExecTimeoutS;
    command_that_ignores_sigterm_is_killed, "A02, decisions: kill at once", field ExecTimeoutS;
    other_commands_live_on, "A02, contract: Exec", field ExecTimeoutS;
    silence_ends_an_idle_command, "A14, decisions: idle_timeout_s", field ExecIdleTimeoutS;
    output_keeps_an_idle_command_alive, "A31, decisions: idle_timeout_s", field ExecIdleTimeoutS;
    grace_gives_sigterm_first, "decisions: kill_grace_s", field ExecTimeoutS, field ExecKillGraceS;
    no_grace_gives_no_sigterm, "decisions: kill at once", field ExecTimeoutS;
}

/// How late an answer may be on a loaded machine.
const LATE: Duration = Duration::from_secs(4);

/// How long a file is watched for growth.
const WATCH: Duration = Duration::from_millis(700);

const TIMED_OUT: ExecOutcome = ExecOutcome::TimedOut { idle: false };

async fn answer_comes_near_the_deadline(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for request in [ExecRequest::argv(["sleep", "30"]), ExecRequest::shell("sleep 30; true")] {
        let started = Instant::now();
        let limit = Duration::from_millis(700);
        let result = sandbox.run_within(limit + LATE, request.with_timeout_s(limit.as_secs_f64())).await?;
        ensure!(started.elapsed() >= limit, "it ended after {:?}, before the limit", started.elapsed());
        ensure_eq!(*result.outcome(), TIMED_OUT, "outcome");
        ensure_eq!(result.return_code(), 125, "return code");
        ensure_eq!(result.error_type(), Some("timeout"), "error type");
    }
    Ok(())
}

async fn partial_output_of_both_streams_is_kept(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let request = ExecRequest::shell("echo one; echo two >&2; printf last; sleep 30").with_timeout_s(0.7);
    let result = sandbox.run_within(LATE, request).await?;
    ensure_eq!(*result.outcome(), TIMED_OUT, "outcome");
    ensure_bytes(&result.stdout, b"one\nlast", "stdout")?;
    ensure_bytes(&result.stderr, b"two\n", "stderr")
}

async fn command_that_is_in_time_is_not_touched(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let result =
        sandbox.expect_exit(ExecRequest::shell("sleep 0.5; echo done; exit 2").with_timeout_s(20.5), 2).await?;
    ensure_bytes(&result.stdout, b"done\n", "stdout")
}

/// Runs a script that starts `ticks`, hits the limit, and must have stopped ticking then.
async fn ensure_killed(cx: Context, script: &str) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.put("ticks.sh", b"while :; do echo tick >> ticks; sleep 0.05; done\n").await?;
    let result = sandbox.run_within(LATE, ExecRequest::shell(script).with_timeout_s(0.8)).await?;
    ensure_eq!(*result.outcome(), TIMED_OUT, "outcome");
    sandbox.ensure_still("ticks", WATCH).await
}

async fn child_is_killed(cx: Context) -> Check {
    ensure_killed(cx, "sh ticks.sh & sleep 30").await
}

async fn setsid_child_is_killed(cx: Context) -> Check {
    cx.sandbox().await?.needs_program("setsid").await?;
    ensure_killed(cx, "setsid sh ticks.sh >/dev/null 2>&1 & sleep 30").await
}

async fn double_forked_child_is_killed(cx: Context) -> Check {
    ensure_killed(cx, "(sh ticks.sh >/dev/null 2>&1 &) ; sleep 30").await
}

async fn command_that_ignores_sigterm_is_killed(cx: Context) -> Check {
    ensure_killed(cx, "trap '' TERM INT HUP; sh ticks.sh").await
}

async fn other_commands_live_on(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let other = sandbox.start(ExecRequest::shell("echo up > other-up; sleep 2.5; echo whole")).await?;
    ensure!(sandbox.eventually(LATE, "test -e other-up").await?, "the other command did not start");
    sandbox.run_within(LATE, ExecRequest::argv(["sleep", "30"]).with_timeout_s(0.5)).await?;
    let result = crate::host::within(LATE + LATE, "the other command", other.collect(Default::default())).await??;
    ensure_bytes(&result.stdout, b"whole\n", "output of another command")
}

async fn silence_ends_an_idle_command(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let request = ExecRequest::shell("echo one; sleep 30").with_idle_timeout_s(0.7);
    let result = sandbox.run_within(LATE, request).await?;
    ensure_eq!(*result.outcome(), ExecOutcome::TimedOut { idle: true }, "outcome");
    ensure_bytes(&result.stdout, b"one\n", "stdout")
}

async fn output_keeps_an_idle_command_alive(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = "for i in 1 2 3 4; do echo $i; sleep 0.5; echo e >&2; sleep 0.5; done";
    let result = sandbox.expect_exit(ExecRequest::shell(script).with_idle_timeout_s(2.0), 0).await?;
    ensure_bytes(&result.stdout, b"1\n2\n3\n4\n", "stdout")
}

const TRAP: &str = "trap 'echo term > got-term; exit 3' TERM; echo ready; while :; do sleep 0.05; done";

async fn grace_gives_sigterm_first(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let request = ExecRequest::shell(TRAP).with_timeout_s(0.7).with_kill_grace_s(5.0);
    let result = sandbox.run_within(LATE + LATE, request).await?;
    ensure_eq!(*result.outcome(), TIMED_OUT, "outcome of a command that ended within its grace");
    ensure_eq!(sandbox.text("cat got-term").await?, "term", "what the trap wrote");
    let stubborn = ExecRequest::shell("trap '' TERM; while :; do sleep 0.05; done").with_timeout_s(0.5);
    let result = sandbox.run_within(LATE + LATE, stubborn.with_kill_grace_s(0.5)).await?;
    ensure_eq!(*result.outcome(), TIMED_OUT, "outcome of a command that ignores SIGTERM");
    Ok(())
}

async fn no_grace_gives_no_sigterm(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let result = sandbox.run_within(LATE, ExecRequest::shell(TRAP).with_timeout_s(0.7)).await?;
    ensure_eq!(*result.outcome(), TIMED_OUT, "outcome");
    ensure_bytes(&result.stdout, b"ready\n", "stdout")?;
    ensure_eq!(sandbox.text("cat got-term 2>/dev/null || true").await?, "", "what the trap wrote");
    Ok(())
}
