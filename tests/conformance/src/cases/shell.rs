//! Scripts that break when a provider wraps them into text of its own.

use sandbox_core::{ExecCommand, ExecOutcome, ExecRequest};

use super::cases;
use crate::{
    check::{Check, ensure_bytes},
    context::Context,
};

cases! { "shell":
    here_document_ends_where_it_ends, "A12";
    comment_or_backslash_at_the_end_is_harmless, "A10, A12";
    exit_and_set_e_end_only_their_own_command, "A10, A11";
    pipe_keeps_its_exit_code, "A07";
    it_is_not_a_login_shell, "A21, contract: Exec, shell form";
    chosen_shell_is_used, "contract: Exec, shell form";
    script_of_300_kb_runs, "A18, contract: Exec";
}

async fn here_document_ends_where_it_ends(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for script in ["cat <<'EOF'\na $b\nEOF", "cat <<'EOF'\na $b\nEOF\n"] {
        ensure_bytes(&sandbox.bytes(script).await?, b"a $b\n", "stdout")?;
        ensure_bytes(&sandbox.bytes("echo ok").await?, b"ok\n", "stdout of the next command")?;
    }
    Ok(())
}

async fn comment_or_backslash_at_the_end_is_harmless(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for script in
        ["echo ok; exit 4 # the end", "echo ok; exit 4 \\\n", "echo ok\nexit 4\n\n  ", "echo ok; exit 4 &&\\\n:"]
    {
        let result = sandbox.expect_exit(ExecRequest::shell(script), 4).await?;
        ensure_bytes(&result.stdout, b"ok\n", "stdout")?;
    }
    Ok(())
}

async fn exit_and_set_e_end_only_their_own_command(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let scripts =
        [("export X=1", 0), ("exit 4", 4), ("set -e; false; echo no", 1), ("exec sleep 0", 0), ("exec false", 1)];
    for (script, code) in scripts {
        sandbox.expect_exit(ExecRequest::shell(script), code).await?;
        ensure_eq!(sandbox.text("echo ${X-unset}").await?, "unset", "a variable of another command after {script:?}");
    }
    Ok(())
}

async fn pipe_keeps_its_exit_code(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.expect_exit(ExecRequest::shell("echo out; exit 9"), 9).await?;
    sandbox.expect_exit(ExecRequest::shell("true | false"), 1).await?;
    // As in every shell by default, only the last part of a pipe counts.
    sandbox.expect_exit(ExecRequest::shell("false | true"), 0).await?;
    Ok(())
}

async fn it_is_not_a_login_shell(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = "case $0 in -*) echo login;; esac; shopt -q login_shell 2>/dev/null && echo login; \
                  case $- in *i*) echo interactive;; esac; true";
    ensure_eq!(sandbox.text(script).await?, "", "kind of shell");
    Ok(())
}

async fn chosen_shell_is_used(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    // The last command of a script may replace the shell, so it is not the one that looks.
    let mut request = ExecRequest::shell("readlink /proc/$$/exe; true");
    // One program with many names may say its own, which is no path.
    let find = "s=$(command -v sh); case $s in /*) readlink -f \"$s\";; *) readlink -f /bin/sh;; esac";
    let sh = sandbox.text(find).await?;
    if let ExecCommand::Shell { shell, .. } = &mut request.command {
        *shell = Some("sh".to_owned());
    }
    let result = sandbox.run(request).await?;
    ensure_eq!(*result.outcome(), ExecOutcome::Exited(0), "outcome");
    ensure_eq!(result.stdout_text().trim_end(), sh, "the program that ran the script");
    Ok(())
}

async fn script_of_300_kb_runs(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = format!(": {}\necho \"$#\"; exit 6", "x".repeat(300_000));
    let result = sandbox.expect_exit(ExecRequest::shell(script), 6).await?;
    ensure_bytes(&result.stdout, b"0\n", "stdout")
}
