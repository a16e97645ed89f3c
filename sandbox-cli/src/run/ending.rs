//! How a run ended: as an exit code, as text, as JSON.

use sandbox_core::{ExecExit, ExecOutcome, StartFailure};
use serde_json::{Value, json};

use super::interrupt::EndSignal;
use crate::{exit, failure::Failure, output::SCHEMA, usage::quote, values::show_seconds};

/// How a run ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// The command is over.
    Over(ExecExit),
    /// We were told to stop.
    Interrupted(EndSignal),
    /// Nobody reads our output any more.
    BrokenPipe,
    /// The system around the command failed.
    Failed(Failure),
}

/// What the texts name.
pub(super) struct Names<'a> {
    pub(super) program: &'a std::ffi::OsStr,
    pub(super) cwd: Option<String>,
    pub(super) user: Option<&'a str>,
    pub(super) timeout_s: Option<f64>,
    pub(super) idle_timeout_s: Option<f64>,
    /// `sandboxctl run …` up to the `--`.
    pub(super) again: String,
}

impl Ending {
    /// The exit code.
    pub(super) fn exit(&self) -> u8 {
        match self {
            Self::Over(ExecExit { outcome: ExecOutcome::TimedOut { .. }, .. }) => exit::TIMED_OUT,
            Self::Over(over) => exit::low_bits(over.outcome.return_code()),
            Self::Interrupted(signal) => exit::low_bits(exit::SIGNAL_BASE + signal.number()),
            Self::BrokenPipe => exit::BROKEN_PIPE,
            Self::Failed(failure) => failure.exit(),
        }
    }

    /// The result for scripts.
    pub(super) fn to_json(&self) -> Value {
        let mut result = json!({ "schema": SCHEMA, "exit_code": self.exit() });
        match self {
            Self::Over(over) => {
                let (name, key, value) = match &over.outcome {
                    ExecOutcome::Exited(_) => ("exited", "", Value::Null),
                    ExecOutcome::Signalled(signal) => ("signalled", "signal", json!(signal)),
                    ExecOutcome::TimedOut { idle } => ("timeout", "idle", json!(idle)),
                    ExecOutcome::StartFailed { reason, .. } => ("start_failed", "reason", json!(reason)),
                    _ => ("unknown", "", Value::Null),
                };
                result["outcome"] = json!(name);
                if !key.is_empty() {
                    result[key] = value;
                }
                result["usage"] = json!(over.usage);
                result["oom"] = json!(over.oom);
            }
            Self::Interrupted(signal) => {
                result["outcome"] = json!("interrupted");
                result["signal"] = json!(signal.number());
            }
            Self::BrokenPipe => result["outcome"] = json!("broken_pipe"),
            Self::Failed(failure) => {
                result["outcome"] = json!("infra");
                result["error"] = json!({ "code": failure.code(), "message": failure.message() });
            }
        }
        result
    }

    /// What there is to say beyond the exit code: nothing for a command that ended by itself.
    pub(super) fn into_result(self, names: &Names<'_>) -> Result<u8, Failure> {
        let exit = self.exit();
        match self {
            Self::Over(over) => match over.outcome {
                ExecOutcome::TimedOut { idle } => Err(timed_out(exit, idle, names)),
                ExecOutcome::StartFailed { reason, message } => Err(not_started(exit, reason, &message, names)),
                _ if over.oom == Some(true) => {
                    Err(Failure::new(exit, "exec.oom", "the command was killed: its sandbox ran out of memory")
                        .with_help("give it more with --memory"))
                }
                _ => Ok(exit),
            },
            Self::Interrupted(_) | Self::BrokenPipe => Ok(exit),
            Self::Failed(failure) => Err(failure),
        }
    }
}

fn timed_out(exit: u8, idle: bool, names: &Names<'_>) -> Failure {
    let (code, limit) =
        if idle { ("exec.idle_timeout", names.idle_timeout_s) } else { ("exec.timeout", names.timeout_s) };
    let after = limit.map(|limit| format!(" after {}", show_seconds(limit))).unwrap_or_default();
    let what = if idle { "command was silent for too long and was killed" } else { "command timed out" };
    let end = if idle { "" } else { "; it was killed" };
    Failure::new(exit, code, format!("{what}{after}{end}"))
}

fn not_started(exit: u8, reason: StartFailure, message: &str, names: &Names<'_>) -> Failure {
    let program = names.program.to_string_lossy();
    let cwd = names.cwd.as_deref().unwrap_or("the working directory");
    let user = names.user.unwrap_or("the default user");
    let (code, text) = match reason {
        StartFailure::NotFound if program.contains('/') => {
            ("exec.not_found", format!("cannot start {program:?}: there is no such file in the sandbox"))
        }
        StartFailure::NotFound => ("exec.not_found", format!("cannot start {program:?}: not found in PATH")),
        StartFailure::NotExecutable => {
            ("exec.not_executable", format!("cannot start {program:?}: it is not executable"))
        }
        StartFailure::CwdMissing => {
            ("exec.cwd_missing", format!("cannot start {program:?}: {cwd:?} does not exist in the sandbox"))
        }
        StartFailure::CwdNotADirectory => {
            ("exec.cwd_not_a_directory", format!("cannot start {program:?}: {cwd:?} is no directory"))
        }
        StartFailure::CwdNotAccessible => {
            ("exec.cwd_not_accessible", format!("cannot start {program:?}: {cwd:?} may not be entered"))
        }
        StartFailure::UnknownUser => {
            ("exec.unknown_user", format!("cannot start {program:?}: there is no user {user:?} in the sandbox"))
        }
        StartFailure::UserRefused => ("exec.user_refused", format!("cannot start {program:?} as {user:?}: {message}")),
        _ => ("exec.not_started", format!("cannot start {program:?}: {message}")),
    };
    let failure = Failure::new(exit, code, text);
    let again = &names.again;
    match reason {
        StartFailure::NotFound if !program.contains('/') => {
            let script = format!("command -v {}; echo $PATH", quote(names.program));
            failure.with_help(format!("{again} -- sh -c {}", quote(script.as_ref())))
        }
        StartFailure::NotFound | StartFailure::NotExecutable => {
            failure.with_help(format!("{again} -- ls -l {}", quote(names.program)))
        }
        StartFailure::CwdMissing | StartFailure::CwdNotADirectory | StartFailure::CwdNotAccessible => {
            failure.with_field("--workdir").with_help(format!("{again} -- ls -ld {}", quote(cwd.as_ref())))
        }
        StartFailure::UnknownUser | StartFailure::UserRefused => {
            failure.with_field("--user").with_help(format!("{again} -- cat /etc/passwd"))
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ExecExit, ExecOutcome, StartFailure};

    use super::{EndSignal, Ending};

    #[test]
    fn every_ending_has_its_exit_code_and_an_interrupted_run_is_never_a_success() {
        let over = |outcome| Ending::Over(ExecExit::new(outcome));
        let start_failed = |reason| over(ExecOutcome::StartFailed { reason, message: String::new() });
        for (ending, code) in [
            (over(ExecOutcome::Exited(0)), 0),
            (over(ExecOutcome::Exited(7)), 7),
            (over(ExecOutcome::Signalled(9)), 137),
            (over(ExecOutcome::TimedOut { idle: false }), 124),
            (over(ExecOutcome::TimedOut { idle: true }), 124),
            (start_failed(StartFailure::NotFound), 127),
            (start_failed(StartFailure::NotExecutable), 126),
            (start_failed(StartFailure::CwdMissing), 125),
            (start_failed(StartFailure::UnknownUser), 125),
            (Ending::Interrupted(EndSignal::Interrupt), 130),
            (Ending::Interrupted(EndSignal::Terminate), 143),
            (Ending::Interrupted(EndSignal::Hangup), 129),
            (Ending::BrokenPipe, 141),
        ] {
            assert_eq!(ending.exit(), code, "{ending:?}");
            assert_eq!(ending.to_json()["exit_code"], code);
        }
    }
}
