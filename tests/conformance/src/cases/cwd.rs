//! The working directory.

use sandbox_core::ExecRequest;

use super::cases;
use crate::{
    check::{Check, ensure_bytes},
    context::Context,
};

cases! { "cwd":
    it_is_used_by_both_forms, "A23, contract: Exec, cwd", field ExecCwd;
    relative_one_is_below_the_workdir, "contract: Exec, cwd", field ExecCwd;
    workdir_is_made_and_is_the_default, "A23, contract: Lifecycle", field Workdir;
    relative_one_is_below_the_workdir_of_the_spec, "contract: Exec, cwd", field Workdir, field ExecCwd;
    change_of_one_exec_is_not_seen_by_the_next, "A11";
}

async fn it_is_used_by_both_forms(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for request in [ExecRequest::shell("pwd -P"), ExecRequest::argv(["pwd", "-P"])] {
        let result = sandbox.expect_exit(request.with_cwd("/proc"), 0).await?;
        ensure_bytes(&result.stdout, b"/proc\n", "the directory of a command")?;
    }
    Ok(())
}

async fn relative_one_is_below_the_workdir(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("mkdir -p 'a b/c'").await?;
    let base = sandbox.text("pwd -P").await?;
    let result = sandbox.expect_exit(ExecRequest::shell("pwd -P").with_cwd("a b/c"), 0).await?;
    ensure_eq!(result.stdout_text().trim_end(), format!("{}/a b/c", base.trim_end_matches('/')), "the directory");
    Ok(())
}

async fn workdir_is_made_and_is_the_default(cx: Context) -> Check {
    let workdir = cx.absent_workdir();
    let sandbox = cx.sandbox_with(cx.spec().with_workdir(workdir.as_str())).await?;
    let marker = sandbox.text("echo here > marker && pwd -P").await?;
    ensure!(
        marker == workdir || cx.shares_the_host() && !marker.is_empty(),
        "the directory is {marker:?}, not {workdir:?}"
    );
    ensure_eq!(sandbox.text(format!("cat '{workdir}/marker'")).await?, "here", "a file written in the workdir");
    let by_argv = sandbox.expect_exit(ExecRequest::argv(["cat", "marker"]), 0).await?;
    ensure_bytes(&by_argv.stdout, b"here\n", "the file read by a command without a shell")
}

async fn relative_one_is_below_the_workdir_of_the_spec(cx: Context) -> Check {
    let workdir = cx.absent_workdir();
    let sandbox = cx.sandbox_with(cx.spec().with_workdir(workdir.as_str())).await?;
    sandbox.bytes("mkdir sub").await?;
    sandbox.expect_exit(ExecRequest::shell("echo here > marker").with_cwd("sub"), 0).await?;
    ensure_eq!(sandbox.text(format!("cat '{workdir}/sub/marker'")).await?, "here", "the file");
    Ok(())
}

async fn change_of_one_exec_is_not_seen_by_the_next(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let before = sandbox.pwd().await?;
    sandbox.bytes("cd /; umask 000").await?;
    ensure_eq!(sandbox.pwd().await?, before, "the directory of the next exec");
    Ok(())
}
