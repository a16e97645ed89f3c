//! How failures of this machine become errors and outcomes of the contract.

use std::fmt;

use rustix::io::Errno;
use sandbox_core::{Admitted, ErrorKind, ExecExit, ExecOutcome, Result, SandboxError, StartFailure};
use sandbox_process::{ControlError, ControlErrorKind, StartError, StartErrorKind};

use crate::fate::Fate;

/// The name of this provider.
pub(crate) const NAME: &str = "local";

/// A system call about `what` failed.
pub(crate) fn os(what: impl fmt::Display, errno: Errno) -> SandboxError {
    SandboxError::io(what, errno.into())
}

/// A path of the sandbox that leads to somewhere it may not.
pub(crate) fn bad_path(path: impl fmt::Display, why: &str) -> SandboxError {
    SandboxError::invalid_input("path", format!("{path} {why}"))
}

/// The refusal of a sandbox that is not open.
pub(crate) fn not_open(id: &str, fate: Fate) -> SandboxError {
    SandboxError::not_found(match fate {
        Fate::Expired => format!("sandbox {id} has expired: its ttl has passed"),
        Fate::Open | Fate::Closed => format!("sandbox {id} is closed or was never made by this provider"),
    })
    .with_provider(NAME)
}

/// The end of a command that its sandbox ended.
pub(crate) fn ended_with_sandbox(fate: Fate) -> SandboxError {
    SandboxError::lost(
        match fate {
            Fate::Expired => "the sandbox has expired: its ttl passed while the command ran",
            Fate::Open | Fate::Closed => "the sandbox was closed while the command ran",
        },
        Admitted::Yes,
    )
    .with_provider(NAME)
}

/// What was being started, for the text of a failure.
pub(crate) struct Attempt {
    /// The program: argument 0, or the shell.
    pub(crate) program: String,
    /// Whether the program is the shell of a script.
    pub(crate) is_shell: bool,
    pub(crate) cwd: String,
    pub(crate) user: String,
}

impl Attempt {
    /// The outcome of a start that failed. What cannot be a command at all is an error: it was never tried.
    pub(crate) fn failed(&self, error: &StartError) -> Result<ExecExit> {
        let (reason, culprit) = match error.kind() {
            StartErrorKind::NotFound if self.is_shell => (StartFailure::NoShell, &self.program),
            StartErrorKind::NotFound => (StartFailure::NotFound, &self.program),
            StartErrorKind::NotExecutable => (StartFailure::NotExecutable, &self.program),
            StartErrorKind::CwdMissing => (StartFailure::CwdMissing, &self.cwd),
            StartErrorKind::CwdNotADirectory => (StartFailure::CwdNotADirectory, &self.cwd),
            StartErrorKind::CwdNotAccessible => (StartFailure::CwdNotAccessible, &self.cwd),
            StartErrorKind::UserRefused => (StartFailure::UserRefused, &self.user),
            StartErrorKind::Resource => (StartFailure::Resources, &self.program),
            StartErrorKind::TimedOut => return Ok(ExecExit::new(ExecOutcome::TimedOut { idle: false })),
            StartErrorKind::TooLarge | StartErrorKind::InvalidInput => {
                return Err(SandboxError::invalid_input("command", error.to_string())
                    .with_help("pass large data through stdin or a file"));
            }
            StartErrorKind::Lost => {
                return Err(SandboxError::lost("the command's supervisor ended early", Admitted::Unknown)
                    .with_source(error.clone()));
            }
            _ => (StartFailure::Other, &self.program),
        };
        Ok(ExecExit::start_failed(reason, format!("{error}: {}", culprit.escape_debug())))
    }
}

/// A running command that could not be reached.
pub(crate) fn control(error: ControlError) -> SandboxError {
    let kind = match error.kind() {
        ControlErrorKind::InvalidSignal => {
            return SandboxError::invalid_input("signal", "must be 1 to 64").with_source(error);
        }
        ControlErrorKind::Ended | ControlErrorKind::BrokenPipe | ControlErrorKind::StdinClosed => {
            ErrorKind::InvalidState
        }
        _ => ErrorKind::Internal,
    };
    SandboxError::new(kind, error.to_string())
}
