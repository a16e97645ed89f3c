//! What a command leaves behind.

use std::time::{Duration, Instant};

use sandbox_core::{ExecEvent, ExecOutcome, ExecRequest};

use super::cases;
use crate::{
    check::{Check, ensure_bytes},
    context::Context,
    host::within,
    sandbox::TestSandbox,
};

cases! { "background":
    child_does_not_hold_the_caller, "A01, contract: Exec";
    child_lives_on_and_ends_with_the_sandbox, "A01, decisions: background children";
    child_that_keeps_writing_is_not_killed, "A01, decisions: background children";
    child_that_holds_the_output_is_told, "A01";
    orphans_leave_no_zombies, "A25, contract: Exec";
}

/// A command that is over must be answered within this, whatever its children do.
const SOON: Duration = Duration::from_secs(4);

async fn child_does_not_hold_the_caller(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let started = Instant::now();
    let result = sandbox.run_within(SOON, ExecRequest::shell("sleep 30 & echo hi")).await?;
    ensure_eq!(*result.outcome(), ExecOutcome::Exited(0), "outcome");
    ensure_bytes(&result.stdout, b"hi\n", "stdout")?;
    ensure!(started.elapsed() < SOON, "it took {:?}", started.elapsed());
    Ok(())
}

async fn child_lives_on_and_ends_with_the_sandbox(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = ": > ticks; (while :; do echo tick >> ticks; sleep 0.05; done) >/dev/null 2>&1 & echo $!";
    sandbox.run_within(SOON, ExecRequest::shell(script)).await?;
    ensure_it_grows(&sandbox, "ticks", "what the command left in the background did not live on").await?;
    // That it ends with the sandbox is looked at after every case where processes can be seen from here.
    sandbox.close().await?;
    cx.ensure_nothing_is_left().await
}

async fn child_that_keeps_writing_is_not_killed(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = ": > alive; (while :; do echo noise; echo alive >> alive; sleep 0.02; done) & echo hi";
    let result = sandbox.run_within(SOON, ExecRequest::shell(script)).await?;
    ensure!(result.stdout.starts_with(b"hi") || result.stdout.starts_with(b"noise"), "stdout");
    ensure_it_grows(&sandbox, "alive", "a background child that writes to the old output was ended").await
}

/// Fails with `otherwise` unless the file grows, and goes on to. Late is not dead: a busy machine may let a child wait.
async fn ensure_it_grows(sandbox: &TestSandbox, file: &str, otherwise: &str) -> Check {
    let grows = format!(
        "a=$(wc -c < {file}); for i in $(seq 100); do sleep 0.1; test $(wc -c < {file}) -le $a || exit 0; done; exit 1"
    );
    for _ in 0..3 {
        ensure!(sandbox.sh(grows.as_str()).await?.outcome().is_success(), "{otherwise}");
    }
    Ok(())
}

async fn child_that_holds_the_output_is_told(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for (script, is_open) in [("sleep 30 & echo hi", true), ("sleep 30 >/dev/null 2>&1 & echo hi", false)] {
        let mut stream = sandbox.start(ExecRequest::shell(script)).await?;
        while let Some(event) = within(SOON, "the next event", stream.next()).await?? {
            if let ExecEvent::Exit(exit) = event {
                ensure_eq!(exit.output_open, is_open, "output_open after {script:?}");
            }
        }
    }
    Ok(())
}

async fn orphans_leave_no_zombies(cx: Context) -> Check {
    const RUNS: usize = 300;
    const AT_ONCE: usize = 8;
    let sandbox = cx.sandbox().await?;
    // A script's own name is what /proc shows of it: no other process of the machine has this one.
    let name = format!("zb{}", &cx.token()[..10]);
    sandbox.bytes(format!("printf '#!/bin/sh\\nsleep 0.05\\n' > {name} && chmod 755 {name}")).await?;
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let (sandbox, script) = (sandbox.clone(), format!("(./{name} &) ; true"));
        workers.spawn(async move {
            for _ in 0..RUNS.div_ceil(AT_ONCE) {
                sandbox.expect_exit(ExecRequest::shell(script.as_str()), 0).await?;
            }
            Ok::<_, crate::check::Stop>(())
        });
    }
    while let Some(end) = workers.join_next().await {
        end.map_err(|error| crate::check::Stop::failed(error.to_string()))??;
    }
    let count = format!("cat /proc/[0-9]*/stat 2>/dev/null | grep -c '({name})'");
    let is_clean = format!("test \"$({count})\" = 0");
    if !sandbox.eventually(Duration::from_secs(5), &is_clean).await? {
        let left = sandbox.text(format!("{count}; true")).await?;
        return Err(crate::check::Stop::failed(format!("{left} orphans of {RUNS} were not reaped")));
    }
    Ok(())
}
