//! Many commands at once.

use std::time::Duration;

use sandbox_core::{ExecOutcome, ExecRequest};
use tokio::task::JoinSet;

use super::cases;
use crate::{
    check::{Check, Stop, ensure_bytes},
    context::Context,
};

cases! { "concurrency":
    outputs_of_32_commands_do_not_mix, "contract: Exec, decisions: measures";
    long_command_does_not_block_others, "A33";
    two_sandboxes_work_side_by_side, "contract: Lifecycle";
}

async fn outputs_of_32_commands_do_not_mix(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut running = JoinSet::new();
    for number in 0..32 {
        let sandbox = sandbox.clone();
        running.spawn(async move {
            let script = format!(
                "for i in 1 2 3 4 5; do echo out{number}; echo err{number} >&2; sleep 0.02; done; exit {number}"
            );
            let result = sandbox.sh(script).await?;
            ensure_eq!(*result.outcome(), ExecOutcome::Exited(number), "outcome");
            ensure_bytes(&result.stdout, format!("out{number}\n").repeat(5).as_bytes(), "stdout")?;
            ensure_bytes(&result.stderr, format!("err{number}\n").repeat(5).as_bytes(), "stderr")
        });
    }
    while let Some(end) = running.join_next().await {
        end.map_err(|error| Stop::failed(format!("a task of the suite ended: {error}")))??;
    }
    Ok(())
}

async fn long_command_does_not_block_others(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let _long = sandbox.start(ExecRequest::argv(["sleep", "30"])).await?;
    let result = sandbox.run_within(Duration::from_secs(5), ExecRequest::shell("echo at once")).await?;
    ensure_bytes(&result.stdout, b"at once\n", "stdout")?;
    crate::host::within(Duration::from_secs(5), "an upload beside a long command", sandbox.put("f", b"x")).await?
}

async fn two_sandboxes_work_side_by_side(cx: Context) -> Check {
    let (one, two) = (cx.sandbox().await?, cx.sandbox().await?);
    ensure!(one.handle().sandbox_id != two.handle().sandbox_id, "two sandboxes have one id");
    one.put("which", b"one").await?;
    two.put("which", b"two").await?;
    ensure_eq!(one.text("cat which").await?, "one", "the file of the first sandbox");
    ensure_eq!(two.text("cat which").await?, "two", "the file of the second sandbox");
    one.close().await?;
    ensure_eq!(two.text("cat which").await?, "two", "the file of the second after the first was closed");
    Ok(())
}
