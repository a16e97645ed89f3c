//! Values that no kernel takes: refused before anything starts, by name.

use sandbox_core::{ErrorKind, ExecRequest, MAX_ARGUMENT_BYTES};

use super::cases;
use crate::{
    check::{Check, ensure_refused},
    context::Context,
};

cases! { "limits":
    argument_over_the_limit_is_refused_by_name, "A18, contract: Exec";
    argument_at_the_limit_runs, "A18, contract: Exec";
    nul_is_refused_by_name, "A19";
    variable_over_the_limit_is_refused_by_name, "A18";
    bad_variable_names_are_refused, "contract: Exec, env names are checked";
}

fn refused(request: &ExecRequest, field: &str) -> Check {
    let error = ensure_refused(request.validate(), &[ErrorKind::InvalidInput], field)?;
    ensure_eq!(error.field(), Some(field), "the field that the error names");
    ensure!(!error.is_retryable(), "a wrong value is called retryable");
    Ok(())
}

async fn argument_over_the_limit_is_refused_by_name(cx: Context) -> Check {
    refused(&ExecRequest::argv(["echo".to_owned(), "x".repeat(MAX_ARGUMENT_BYTES + 1)]), "command[1]")?;
    refused(&ExecRequest::argv(vec!["x".repeat(100_000); 30]), "command")?;
    ensure_eq!(cx.sandbox().await?.text("echo usable").await?, "usable", "stdout");
    Ok(())
}

async fn argument_at_the_limit_runs(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let request = ExecRequest::argv(["printf".to_owned(), "%s".to_owned(), "x".repeat(MAX_ARGUMENT_BYTES)]);
    ensure_eq!(sandbox.expect_exit(request, 0).await?.stdout_bytes, MAX_ARGUMENT_BYTES as u64, "bytes of the argument");
    let mut argv = vec!["printf".to_owned(), "%.0s.".to_owned()];
    argv.extend(std::iter::repeat_n("x".repeat(100_000), 12));
    ensure_eq!(sandbox.expect_exit(ExecRequest::argv(argv), 0).await?.stdout_bytes, 12, "number of arguments");
    Ok(())
}

async fn nul_is_refused_by_name(cx: Context) -> Check {
    refused(&ExecRequest::shell("a\0b"), "command")?;
    refused(&ExecRequest::argv(["a", "b\0"]), "command[1]")?;
    refused(&ExecRequest::shell("true").with_cwd("/a\0"), "cwd")?;
    refused(&ExecRequest::shell("true").with_env("A", "x\0y"), "env.A")?;
    ensure_eq!(cx.sandbox().await?.text("echo usable").await?, "usable", "stdout");
    Ok(())
}

async fn variable_over_the_limit_is_refused_by_name(cx: Context) -> Check {
    refused(&ExecRequest::shell("true").with_env("BIG", "x".repeat(200_000)), "env.BIG")?;
    let error = ensure_refused(
        cx.spec().with_env("BIG", "x".repeat(200_000)).validate(),
        &[ErrorKind::InvalidInput],
        "a large variable of the spec",
    )?;
    ensure_eq!(error.field(), Some("env.BIG"), "the field that the error names");
    Ok(())
}

async fn bad_variable_names_are_refused(cx: Context) -> Check {
    for (name, field) in [("", "env."), ("A=B", "env.A=B")] {
        refused(&ExecRequest::shell("true").with_env(name, "x"), field)?;
        ensure_refused(cx.spec().with_env(name, "x").validate(), &[ErrorKind::InvalidInput], "a bad name in the spec")?;
    }
    Ok(())
}
