//! Running other programs.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
};

use anyhow::{Context, Result, bail};

/// The top folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the repository").to_path_buf()
}

/// The target folder.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// The cargo that runs us, in the repository.
pub(crate) fn cargo<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    as_from_a_shell(&mut command);
    command
}

/// Takes away what cargo has set for this program. Build scripts look at it, and would run again after a cargo of the
/// shell's.
pub(crate) fn as_from_a_shell(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
}

/// Runs a command to its end, which must be a success.
pub(crate) fn must(mut command: Command) -> Result<()> {
    let status = status(&mut command)?;
    if !status.success() {
        bail!("{} failed: {status}", shown(&command));
    }
    Ok(())
}

/// Runs a command to its end.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    command.status().with_context(|| format!("cannot start {}", shown(command)))
}

/// Runs a command and returns its standard output; it must succeed.
pub(crate) fn output(mut command: Command) -> Result<String> {
    command.stderr(std::process::Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot start {}", shown(&command)))?;
    if !output.status.success() {
        bail!("{} failed: {}", shown(&command), output.status);
    }
    String::from_utf8(output.stdout).context("the output is not text")
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// The exit code of a program, as ours; death by a signal as shells say it.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
