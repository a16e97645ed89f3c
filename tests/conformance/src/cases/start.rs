//! Commands that cannot be started.

use sandbox_core::{ExecOutcome, ExecRequest, StartFailure};

use super::cases;
use crate::{
    check::{Check, Stop},
    context::Context,
    sandbox::TestSandbox,
};

cases! { "start":
    missing_program_is_not_found, "A05, contract: Exec";
    file_that_is_no_program_is_not_executable, "A05, contract: Exec";
    missing_cwd_is_named, "A23, contract: Exec", field ExecCwd;
    cwd_that_is_a_file_is_named, "A23, contract: Exec", field ExecCwd;
    unknown_user_is_named, "A24, contract: Exec", field ExecUser;
    failed_start_leaves_the_sandbox_usable, "A05";
}

/// Runs a command that must not start, and gives the message.
async fn fails(sandbox: &TestSandbox, request: ExecRequest, expected: StartFailure) -> Check<String> {
    let result = sandbox.run(request).await?;
    match result.outcome() {
        ExecOutcome::StartFailed { reason, message } if *reason == expected => {
            ensure_eq!(result.error_type(), Some("sandbox"), "error type");
            ensure_eq!(result.return_code(), expected.code(), "return code");
            ensure!(!message.is_empty() && !message.contains('\n'), "the message is not one line: {message:?}");
            ensure!(result.stdout.is_empty(), "a command that did not start wrote output");
            Ok(message.clone())
        }
        other => Err(Stop::failed(format!("expected a failed start ({expected:?}), got {other:?}"))),
    }
}

async fn missing_program_is_not_found(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    fails(&sandbox, ExecRequest::argv(["/no/such/program"]), StartFailure::NotFound).await?;
    fails(&sandbox, ExecRequest::argv(["no-such-program-anywhere", "x"]), StartFailure::NotFound).await?;
    Ok(())
}

async fn file_that_is_no_program_is_not_executable(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("echo text > plain && chmod 644 plain").await?;
    fails(&sandbox, ExecRequest::argv(["./plain"]), StartFailure::NotExecutable).await?;
    fails(&sandbox, ExecRequest::argv(["/etc"]), StartFailure::NotExecutable).await?;
    Ok(())
}

async fn missing_cwd_is_named(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for request in [ExecRequest::argv(["pwd"]), ExecRequest::shell("pwd; touch ran")] {
        let message = fails(&sandbox, request.with_cwd("/no/such/folder"), StartFailure::CwdMissing).await?;
        ensure!(message.contains("/no/such/folder"), "the message does not name the folder: {message:?}");
    }
    ensure_eq!(sandbox.text("ls ran 2>/dev/null || true").await?, "", "files of a command that ran elsewhere");
    Ok(())
}

async fn cwd_that_is_a_file_is_named(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("echo text > plain").await?;
    fails(&sandbox, ExecRequest::shell("pwd").with_cwd("plain"), StartFailure::CwdNotADirectory).await?;
    Ok(())
}

async fn unknown_user_is_named(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let request = ExecRequest::shell("id -u").with_user("no-such-user-here");
    let message = fails(&sandbox, request, StartFailure::UnknownUser).await?;
    ensure!(message.contains("no-such-user-here"), "the message does not name the user: {message:?}");
    Ok(())
}

async fn failed_start_leaves_the_sandbox_usable(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for _ in 0..20 {
        fails(&sandbox, ExecRequest::argv(["/no/such/program"]), StartFailure::NotFound).await?;
    }
    ensure_eq!(sandbox.text("echo usable").await?, "usable", "stdout");
    Ok(())
}
