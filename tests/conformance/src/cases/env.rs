//! The environment of commands.

use std::collections::BTreeMap;

use sandbox_core::ExecRequest;

use super::cases;
use crate::{
    check::{Check, Stop, ensure_bytes},
    context::Context,
    host::own_variables,
    sandbox::TestSandbox,
};

cases! { "env":
    values_are_exact, "A20", field ExecEnv;
    values_of_the_spec_are_exact, "A20", field Env;
    exec_goes_before_spec, "A21, contract: Exec, env order", field Env, field ExecEnv;
    variables_of_one_exec_are_not_seen_by_the_next, "A11, contract: Exec", field ExecEnv;
    host_variables_do_not_leak, "I02";
    there_is_a_path, "A21";
    bash_env_is_sourced_only_if_given_on_the_exec, "A21, contract: Exec, BASH_ENV cleared", field Env, field ExecEnv;
    no_descriptor_is_inherited, "I02";
}

/// Variables that a provider or a shell may set by itself, and that the host has too.
const USUAL: [&str; 12] =
    ["PATH", "HOME", "LANG", "TERM", "USER", "LOGNAME", "SHELL", "TMPDIR", "PWD", "SHLVL", "OLDPWD", "_"];

/// The environment as the kernel has it.
async fn environ(sandbox: &TestSandbox, request: ExecRequest) -> Check<BTreeMap<String, Vec<u8>>> {
    let result = sandbox.expect_exit(request, 0).await?;
    let variables = result.stdout.split(|byte| *byte == 0).filter(|variable| !variable.is_empty()).map(|variable| {
        let (name, value) = variable.split_at(variable.iter().position(|byte| *byte == b'=').unwrap_or(variable.len()));
        (String::from_utf8_lossy(name).into_owned(), value.get(1..).unwrap_or_default().to_vec())
    });
    Ok(variables.collect())
}

fn read_environ() -> ExecRequest {
    ExecRequest::argv(["cat", "/proc/self/environ"])
}

const VALUES: [(&str, &[u8]); 6] = [
    ("A_LINES", b"l1\nB_EVIL=evil\n"),
    ("C_EMPTY", b""),
    ("D_TEXT", b"a=b c\"$x' \\n"),
    ("E_BYTE", b"x\xffy"),
    ("F_UTF8", "日本 é".as_bytes()),
    ("g_lower", b" blank "),
];

fn ensure_exact(variables: &BTreeMap<String, Vec<u8>>) -> Check {
    for (name, value) in VALUES {
        let got = variables.get(name).ok_or_else(|| Stop::failed(format!("{name} is not there")))?;
        ensure_bytes(got, value, name)?;
    }
    ensure!(!variables.contains_key("B_EVIL"), "a line of a value became a variable");
    Ok(())
}

async fn values_are_exact(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let request = VALUES.iter().fold(read_environ(), |request, (name, value)| request.with_env(*name, *value));
    ensure_exact(&environ(&sandbox, request).await?)
}

async fn values_of_the_spec_are_exact(cx: Context) -> Check {
    let spec = VALUES.iter().fold(cx.spec(), |spec, (name, value)| spec.with_env(*name, *value));
    let sandbox = cx.sandbox_with(spec).await?;
    ensure_exact(&environ(&sandbox, read_environ()).await?)?;
    ensure_bytes(&sandbox.bytes("printf %s \"$D_TEXT\"").await?, VALUES[2].1, "the variable in a shell")
}

async fn exec_goes_before_spec(cx: Context) -> Check {
    let sandbox = cx.sandbox_with(cx.spec().with_env("BOTH", "spec").with_env("SPEC", "spec")).await?;
    let script = "echo $BOTH $SPEC $EXEC";
    let request = ExecRequest::shell(script).with_env("BOTH", "exec").with_env("EXEC", "exec");
    ensure_bytes(&sandbox.expect_exit(request, 0).await?.stdout, b"exec spec exec\n", "values")?;
    ensure_bytes(&sandbox.bytes(script).await?, b"spec spec\n", "values of the next exec")?;
    let with_path = ExecRequest::argv(["/bin/sh", "-c", "echo $PATH"]).with_env("PATH", "/only/this");
    ensure_bytes(&sandbox.expect_exit(with_path, 0).await?.stdout, b"/only/this\n", "PATH")
}

async fn variables_of_one_exec_are_not_seen_by_the_next(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.expect_exit(ExecRequest::shell("test \"$ONCE\" = x").with_env("ONCE", "x"), 0).await?;
    ensure_eq!(sandbox.text("echo ${ONCE-unset}").await?, "unset", "the variable in the next exec");
    Ok(())
}

async fn host_variables_do_not_leak(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let given: Vec<String> = cx.spec().env.iter().map(|(name, _)| name.to_owned()).collect();
    let secret: Vec<String> = own_variables()
        .into_iter()
        .filter(|name| !USUAL.contains(&name.as_str()) && !name.starts_with("LC_") && !given.contains(name))
        .collect();
    if secret.is_empty() {
        return Err(Stop::skipped("the suite's own process has no variable that could leak"));
    }
    for request in [read_environ(), ExecRequest::shell("cat /proc/self/environ")] {
        let leaked: Vec<String> =
            environ(&sandbox, request).await?.into_keys().filter(|name| secret.contains(name)).collect();
        ensure!(leaked.is_empty(), "variables of the host are in the sandbox: {leaked:?}");
    }
    Ok(())
}

async fn there_is_a_path(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let path = sandbox.text("echo \"$PATH\"").await?;
    ensure!(path.contains("/bin"), "PATH is {path:?}");
    ensure_eq!(sandbox.text("command -v cat >/dev/null && echo found").await?, "found", "cat by its name");
    Ok(())
}

async fn bash_env_is_sourced_only_if_given_on_the_exec(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.needs_program("bash").await?;
    sandbox.put("noise", b"echo noise\n").await?;
    let noise = format!("{}/noise", sandbox.pwd().await?);
    let marked = cx.sandbox_with(cx.spec().with_env("BASH_ENV", noise.as_str())).await?;
    // On a provider whose sandboxes share no files the second one needs its own copy.
    marked.put(noise.as_str(), b"echo noise\n").await?;
    ensure_bytes(&marked.bytes("true").await?, b"", "output with BASH_ENV in the spec")?;
    let given = ExecRequest::shell("true").with_env("BASH_ENV", noise.as_str());
    let shell = sandbox.text("readlink -f /proc/$$/exe; true").await?;
    if shell.ends_with("/bash") {
        ensure_bytes(&sandbox.expect_exit(given, 0).await?.stdout, b"noise\n", "output with BASH_ENV on the exec")?;
    }
    Ok(())
}

async fn no_descriptor_is_inherited(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let result = sandbox.expect_exit(ExecRequest::argv(["ls", "/proc/self/fd"]), 0).await?;
    let open = result.stdout_text().split_whitespace().filter(|name| !["0", "1", "2"].contains(name)).count();
    // One more is the folder that ls reads.
    ensure!(
        open <= 1,
        "descriptors above 2 are open: {:?}",
        result.stdout_text().split_whitespace().collect::<Vec<_>>()
    );
    Ok(())
}
