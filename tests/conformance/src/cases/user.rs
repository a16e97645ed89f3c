//! Whose rights a command has.

use sandbox_core::ExecRequest;

use super::cases;
use crate::{
    check::{Check, Stop},
    context::Context,
};

cases! { "user":
    numeric_user_and_group_are_switched_to, "A24, contract: Exec, user", field ExecUser, field ExecCwd;
    user_without_passwd_entry_is_nobody_else, "A24, contract: Exec, never silently someone else", field ExecUser, field ExecCwd;
    user_by_name_has_the_ids_of_that_name, "A24, contract: Exec, user", field ExecUser, field ExecCwd;
    user_of_the_spec_is_the_default, "contract: Exec, user", field User;
}

async fn numeric_user_and_group_are_switched_to(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let request = ExecRequest::shell("id -u; id -g; id -G").with_user("12345:23456").with_cwd("/");
    let result = sandbox.expect_exit(request, 0).await?;
    let ids: Vec<_> = result.stdout_text().lines().map(str::to_owned).collect();
    ensure_eq!(ids, ["12345", "23456", "23456"], "user, group and all groups");
    Ok(())
}

async fn user_without_passwd_entry_is_nobody_else(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = "id -u; test -n \"$HOME\" && echo home; test -w /etc/passwd && echo root; true";
    let result = sandbox.expect_exit(ExecRequest::shell(script).with_user("54321").with_cwd("/"), 0).await?;
    let lines: Vec<_> = result.stdout_text().lines().map(str::to_owned).collect();
    ensure_eq!(lines, ["54321", "home"], "user, whether there is a HOME, and whether it can write as root");
    Ok(())
}

async fn user_by_name_has_the_ids_of_that_name(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    if !sandbox.sh("test -s /etc/passwd").await?.outcome().is_success() {
        return Err(Stop::skipped("the image names no users"));
    }
    let line = sandbox.text("tail -n 1 /etc/passwd").await?;
    let parts: Vec<&str> = line.split(':').collect();
    ensure!(parts.len() >= 4, "the sandbox's /etc/passwd ends with {line:?}");
    let request = ExecRequest::argv(["id", "-u"]).with_user(parts[0]).with_cwd("/");
    let result = sandbox.expect_exit(request, 0).await?;
    ensure_eq!(result.stdout_text().trim(), parts[2], "user id of {}", parts[0]);
    Ok(())
}

async fn user_of_the_spec_is_the_default(cx: Context) -> Check {
    let sandbox = cx.sandbox_with(cx.spec().with_user("12345:23456")).await?;
    let result = sandbox.expect_exit(ExecRequest::shell("id -u; id -g"), 0).await?;
    ensure_eq!(result.stdout_text(), "12345\n23456\n", "user and group");
    sandbox.put("new/dir/file", b"x").await?;
    let owner = sandbox.text("cat new/dir/file; ls -nd new/dir/file | awk '{print $3}'; touch new/dir/beside").await?;
    ensure_eq!(owner, "x12345", "contents and owner of an uploaded file");
    Ok(())
}
