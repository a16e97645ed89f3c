use std::{fmt, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    ByteString, Env, Field, Result, SandboxError,
    validate::{
        MAX_ARGUMENT_BYTES, MAX_ARGUMENTS_TOTAL_BYTES, check_no_nul, check_path, check_seconds, check_user, to_duration,
    },
};

/// What to run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExecCommand {
    /// A script for a shell: `<shell> -c <script>`, not a login shell. It may be longer than one argument may be.
    Shell {
        /// The text.
        script: ByteString,
        /// The shell, by name or path. By default bash where the sandbox has it, else sh.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shell: Option<String>,
    },
    /// A program and its arguments, run without any shell.
    Argv(Vec<ByteString>),
}

/// Where a command's input comes from.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StdinSource {
    /// At end-of-file from the start.
    #[default]
    Null,
    /// These bytes, then end-of-file. They travel beside the JSON, not in it.
    Bytes(#[serde(skip)] Bytes),
    /// What the caller writes to the stream, until it closes it.
    Stream,
}

impl fmt::Debug for StdinSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Stream => f.write_str("Stream"),
        }
    }
}

/// One command to run in a sandbox.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExecRequest {
    /// Chosen by the caller and unique in the sandbox: a provider that sees an id again must not run the command again.
    /// Empty means that the provider chooses.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub exec_id: String,
    /// What to run.
    pub command: ExecCommand,
    /// Working directory; relative ones are below the sandbox's workdir. Default: the workdir, else `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<ByteString>,
    /// Environment over that of the sandbox.
    #[serde(default, skip_serializing_if = "Env::is_empty")]
    pub env: Env,
    /// User to run as: `NAME`, `UID`, `UID:GID` or `NAME:GROUP`. Default: the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Longest run time in seconds; then the whole process tree is killed and the outcome is `TimedOut`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// Longest time without any output, in seconds, with the same consequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_s: Option<f64>,
    /// Seconds between SIGTERM and SIGKILL when a limit is hit. 0: SIGKILL at once.
    #[serde(default)]
    pub kill_grace_s: f64,
    /// Where the input comes from.
    #[serde(default)]
    pub stdin: StdinSource,
}

impl ExecRequest {
    fn new(command: ExecCommand) -> Self {
        Self {
            exec_id: String::new(),
            command,
            cwd: None,
            env: Env::default(),
            user: None,
            timeout_s: None,
            idle_timeout_s: None,
            kill_grace_s: 0.0,
            stdin: StdinSource::Null,
        }
    }

    /// A script for the default shell.
    pub fn shell(script: impl Into<ByteString>) -> Self {
        Self::new(ExecCommand::Shell { script: script.into(), shell: None })
    }

    /// A program and its arguments.
    pub fn argv<A: Into<ByteString>>(argv: impl IntoIterator<Item = A>) -> Self {
        Self::new(ExecCommand::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// Sets the working directory.
    #[must_use]
    pub fn with_cwd(mut self, cwd: impl Into<ByteString>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Sets one environment variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<ByteString>) -> Self {
        self.env.insert(name, value);
        self
    }

    /// Sets the user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the longest run time, in seconds.
    #[must_use]
    pub fn with_timeout_s(mut self, timeout_s: f64) -> Self {
        self.timeout_s = Some(timeout_s);
        self
    }

    /// Sets the longest time without output, in seconds.
    #[must_use]
    pub fn with_idle_timeout_s(mut self, idle_timeout_s: f64) -> Self {
        self.idle_timeout_s = Some(idle_timeout_s);
        self
    }

    /// Sets the time between SIGTERM and SIGKILL, in seconds.
    #[must_use]
    pub fn with_kill_grace_s(mut self, kill_grace_s: f64) -> Self {
        self.kill_grace_s = kill_grace_s;
        self
    }

    /// Sets where the input comes from.
    #[must_use]
    pub fn with_stdin(mut self, stdin: StdinSource) -> Self {
        self.stdin = stdin;
        self
    }

    /// Gives these bytes as input, then end-of-file.
    #[must_use]
    pub fn with_stdin_bytes(self, bytes: impl Into<Bytes>) -> Self {
        self.with_stdin(StdinSource::Bytes(bytes.into()))
    }

    /// The longest run time.
    pub fn timeout(&self) -> Option<Duration> {
        to_duration(self.timeout_s)
    }

    /// The longest time without output.
    pub fn idle_timeout(&self) -> Option<Duration> {
        to_duration(self.idle_timeout_s)
    }

    /// The time between SIGTERM and SIGKILL.
    pub fn kill_grace(&self) -> Duration {
        to_duration(Some(self.kill_grace_s)).unwrap_or_default()
    }

    /// Checks every value that can be checked without a provider. Nothing has started when this fails.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field (`command[2]`, `env.NAME`, `cwd`, …) and the limit.
    pub fn validate(&self) -> Result<()> {
        let total =
            self.validate_command()? + self.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>();
        if total > MAX_ARGUMENTS_TOTAL_BYTES {
            return Err(too_large("command", total, MAX_ARGUMENTS_TOTAL_BYTES));
        }
        if let Some(cwd) = &self.cwd {
            check_path("cwd", cwd)?;
        }
        self.env.validate("env")?;
        check_user("user", self.user.as_deref())?;
        check_seconds("timeout_s", self.timeout_s)?;
        check_seconds("idle_timeout_s", self.idle_timeout_s)?;
        if self.kill_grace_s != 0.0 {
            check_seconds("kill_grace_s", Some(self.kill_grace_s))?;
        }
        if self.exec_id.len() > 128 || self.exec_id.contains(|c: char| !c.is_ascii_graphic() || c == '/') {
            return Err(SandboxError::invalid_input(
                "exec_id",
                "must be at most 128 printable ASCII characters without '/'",
            ));
        }
        Ok(())
    }

    /// Checks the command and returns how many bytes of argument space it takes.
    fn validate_command(&self) -> Result<usize> {
        match &self.command {
            ExecCommand::Shell { script, shell } => {
                check_no_nul("command", script.as_bytes())?;
                if shell.as_deref().is_some_and(|shell| shell.is_empty() || shell.contains('\0')) {
                    return Err(SandboxError::invalid_input("shell", "must name a program"));
                }
                // A long script does not travel as an argument.
                Ok(if script.len() > MAX_ARGUMENT_BYTES { 0 } else { script.len() })
            }
            ExecCommand::Argv(argv) => {
                if argv.first().is_none_or(ByteString::is_empty) {
                    return Err(SandboxError::invalid_input("command", "must name a program"));
                }
                for (index, argument) in argv.iter().enumerate() {
                    let field = format!("command[{index}]");
                    check_no_nul(&field, argument.as_bytes())?;
                    if argument.len() > MAX_ARGUMENT_BYTES {
                        return Err(too_large(&field, argument.len(), MAX_ARGUMENT_BYTES));
                    }
                }
                Ok(argv.iter().map(|argument| argument.len() + 1).sum())
            }
        }
    }

    /// The fields that are set, for the check against what a provider honours.
    pub fn used_fields(&self) -> Vec<Field> {
        let used = [
            (Field::ExecEnv, !self.env.is_empty()),
            (Field::ExecCwd, self.cwd.is_some()),
            (Field::ExecUser, self.user.is_some()),
            (Field::ExecTimeoutS, self.timeout_s.is_some()),
            (Field::ExecIdleTimeoutS, self.idle_timeout_s.is_some()),
            (Field::ExecKillGraceS, self.kill_grace_s > 0.0),
            (Field::ExecStdinBytes, matches!(self.stdin, StdinSource::Bytes(_))),
            (Field::ExecStdinStream, self.stdin == StdinSource::Stream),
        ];
        used.into_iter().filter_map(|(field, is_used)| is_used.then_some(field)).collect()
    }
}

fn too_large(field: &str, size: usize, limit: usize) -> SandboxError {
    SandboxError::invalid_input(field, format!("has {size} bytes; the kernel takes at most {limit}"))
        .with_help("pass large data through stdin or a file; a shell script may be longer than one argument")
}

impl fmt::Debug for ExecRequest {
    // Commands, environments and input are never shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match &self.command {
            ExecCommand::Shell { .. } => "shell",
            ExecCommand::Argv(_) => "argv",
        };
        f.debug_struct("ExecRequest")
            .field("exec_id", &self.exec_id)
            .field("form", &form)
            .field("timeout_s", &self.timeout_s)
            .field("stdin", &self.stdin)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{ExecRequest, StdinSource};

    #[test]
    fn every_bad_value_is_refused_with_its_field() {
        let sh = || ExecRequest::shell("true");
        let long = "x".repeat(200_000);
        let cases = [
            (ExecRequest::argv(Vec::<String>::new()), "command"),
            (ExecRequest::argv([""]), "command"),
            (ExecRequest::argv(["a", "b\0"]), "command[1]"),
            (ExecRequest::argv(["a", &long]), "command[1]"),
            (ExecRequest::argv(vec!["x".repeat(100_000); 30]), "command"),
            (ExecRequest::shell("a\0b"), "command"),
            (sh().with_cwd(""), "cwd"),
            (sh().with_cwd("/a\0"), "cwd"),
            (sh().with_env("", "x"), "env."),
            (sh().with_env("BIG", &long), "env.BIG"),
            (sh().with_user(""), "user"),
            (sh().with_timeout_s(0.0), "timeout_s"),
            (sh().with_idle_timeout_s(f64::NAN), "idle_timeout_s"),
            (sh().with_kill_grace_s(-1.0), "kill_grace_s"),
        ];
        for (request, field) in cases {
            let error = request.validate().expect_err(field);
            assert_eq!(error.field(), Some(field), "{error}");
        }
        ExecRequest::shell("x".repeat(5_000_000)).validate().expect("a script may be long");
    }

    #[test]
    fn it_comes_back_from_json_without_the_input_bytes() {
        let request = ExecRequest::argv([&b"cat"[..], b"\xff"]).with_stdin_bytes("canary").with_env("A", "canary");
        let json = serde_json::to_string(&request).unwrap();
        let mut again: ExecRequest = serde_json::from_str(&json).unwrap();
        assert_eq!(again.stdin, StdinSource::Bytes(Default::default()));
        again.stdin = request.stdin.clone();
        assert!(again == request);
        assert!(!format!("{request:?}").contains("canary"));
    }
}
