use std::{borrow::Cow, fmt};

use super::{ExecExit, ExecOutcome};

/// A command that is over, with what was kept of its output.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct SandboxExecResult {
    /// Standard output, within the capture limit: head and tail.
    pub stdout: Vec<u8>,
    /// Standard error, likewise.
    pub stderr: Vec<u8>,
    /// How many bytes the command wrote to standard output in all.
    pub stdout_bytes: u64,
    /// How many bytes the command wrote to standard error in all.
    pub stderr_bytes: u64,
    /// True if the middle of standard output was dropped.
    pub stdout_truncated: bool,
    /// True if the middle of standard error was dropped.
    pub stderr_truncated: bool,
    /// How it ended.
    pub exit: ExecExit,
}

/// The model's other name for [`SandboxExecResult`].
pub type ExecResult = SandboxExecResult;

impl SandboxExecResult {
    /// How it ended.
    pub fn outcome(&self) -> &ExecOutcome {
        &self.exit.outcome
    }

    /// The model's integer; see [`ExecOutcome::return_code`].
    pub fn return_code(&self) -> i32 {
        self.exit.outcome.return_code()
    }

    /// The model's `error_type`; see [`ExecOutcome::error_type`].
    pub fn error_type(&self) -> Option<&'static str> {
        self.exit.outcome.error_type()
    }

    /// True if part of either stream was dropped.
    pub fn truncated(&self) -> bool {
        self.stdout_truncated || self.stderr_truncated
    }

    /// Standard output as text; what is not UTF-8 shows as a replacement character.
    pub fn stdout_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    /// Standard error as text, likewise.
    pub fn stderr_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }
}

impl fmt::Debug for SandboxExecResult {
    // Output is never shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxExecResult")
            .field("outcome", &self.exit.outcome)
            .field("stdout_bytes", &self.stdout_bytes)
            .field("stderr_bytes", &self.stderr_bytes)
            .field("truncated", &self.truncated())
            .finish_non_exhaustive()
    }
}
