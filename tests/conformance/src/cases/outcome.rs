//! How a command ends.

use sandbox_core::{ExecEvent, ExecOutcome, ExecRequest};

use super::cases;
use crate::{
    check::{Check, ensure_bytes},
    context::Context,
    host::within,
    sandbox::RUN_WITHIN,
};

cases! { "exec":
    shell_form_runs_a_script, "contract: Exec, shell form";
    argv_form_runs_without_a_shell, "contract: Exec, argv form";
    exit_codes_are_passed, "A06, A07, contract: Exec";
    exit_127_is_the_programs_own, "A05";
    signal_death_is_not_exit_137, "A09";
    exit_arrives_once_and_last, "contract: Exec, the stream's last event is its exit";
}

async fn shell_form_runs_a_script(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let result = sandbox.sh("for word in one two; do echo \"$word\" | tr a-z A-Z; done").await?;
    ensure_eq!(*result.outcome(), ExecOutcome::Exited(0), "outcome");
    ensure_bytes(&result.stdout, b"ONE\nTWO\n", "stdout")
}

async fn argv_form_runs_without_a_shell(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    // A shell would expand, split or drop every one of these.
    let arguments = ["%s|", "$HOME", "a  b", "", "*", "'", "`id`", "a\nb"];
    let result = sandbox.expect_exit(ExecRequest::argv([&["printf"], &arguments[..]].concat()), 0).await?;
    ensure_bytes(&result.stdout, b"$HOME|a  b||*|'|`id`|a\nb|", "arguments as the program sees them")
}

async fn exit_codes_are_passed(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for code in [0, 1, 2, 9, 64, 124, 125, 126, 127, 128, 129, 137, 143, 254, 255] {
        let result = sandbox.sh(format!("echo out; exit {code}")).await?;
        ensure_eq!(*result.outcome(), ExecOutcome::Exited(code), "outcome of exit {code}");
        ensure_eq!(result.return_code(), code, "return code");
        ensure_eq!(result.error_type(), None, "error type of exit {code}");
        ensure_bytes(&result.stdout, b"out\n", "stdout")?;
        let argv = ExecRequest::argv(["sh", "-c", &format!("exit {code}")]);
        sandbox.expect_exit(argv, code).await?;
    }
    Ok(())
}

async fn exit_127_is_the_programs_own(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.expect_exit(ExecRequest::shell("exit 127"), 127).await?;
    let result = sandbox.expect_exit(ExecRequest::shell("no_such_command_anywhere"), 127).await?;
    ensure!(!result.stderr.is_empty(), "the shell's message about a missing command did not arrive");
    Ok(())
}

async fn signal_death_is_not_exit_137(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let killed = sandbox.sh("kill -9 $$").await?;
    ensure_eq!(*killed.outcome(), ExecOutcome::Signalled(9), "outcome of kill -9 $$");
    ensure_eq!(killed.return_code(), 137, "return code of a command that was killed");
    let terminated = sandbox.sh("kill -15 $$").await?;
    ensure_eq!(*terminated.outcome(), ExecOutcome::Signalled(15), "outcome of kill -15 $$");
    sandbox.expect_exit(ExecRequest::shell("exit 137"), 137).await?;
    sandbox.expect_exit(ExecRequest::shell("sh -c 'kill -9 $$'; exit $?"), 137).await?;
    Ok(())
}

async fn exit_arrives_once_and_last(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for _ in 0..20 {
        let mut stream = sandbox.start(ExecRequest::shell("echo out; echo err >&2; seq 1 20000; exit 3")).await?;
        let (mut stdout, mut stderr, mut exits) = (0, 0, 0);
        while let Some(event) = within(RUN_WITHIN, "the next event", stream.next()).await?? {
            match event {
                ExecEvent::Stdout(bytes) => stdout += bytes.len(),
                ExecEvent::Stderr(bytes) => stderr += bytes.len(),
                ExecEvent::Exit(exit) => {
                    exits += 1;
                    ensure_eq!(exit.outcome, ExecOutcome::Exited(3), "outcome");
                }
                _ => {}
            }
        }
        ensure_eq!((exits, stdout, stderr), (1, 108_898, 4), "exits, and bytes of each stream before the exit");
    }
    Ok(())
}
