use serde::{Deserialize, Serialize};

/// Why a command could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StartFailure {
    /// There is no such program.
    NotFound,
    /// The file is there but is not a program that this user may run.
    NotExecutable,
    /// The working directory does not exist.
    CwdMissing,
    /// The working directory is a file.
    CwdNotADirectory,
    /// The working directory may not be entered.
    CwdNotAccessible,
    /// The user or group does not exist in the sandbox.
    UnknownUser,
    /// The user exists, but this sandbox cannot switch to it.
    UserRefused,
    /// The sandbox has no shell for a script.
    NoShell,
    /// No process could be made: out of processes, memory or descriptors.
    Resources,
    /// Anything else.
    #[serde(other)]
    Other,
}

impl StartFailure {
    /// The conventional exit code: 127 not found, 126 not executable, 125 for the rest.
    pub const fn code(self) -> i32 {
        match self {
            Self::NotFound | Self::NoShell => 127,
            Self::NotExecutable => 126,
            _ => 125,
        }
    }
}

/// How a command ended. There is no state "still running".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExecOutcome {
    /// It exited with this code.
    Exited(i32),
    /// It was ended by this signal.
    Signalled(i32),
    /// A time limit was hit and the whole process tree was killed.
    TimedOut {
        /// True if it was the limit on silence, false if it was the limit on the whole run.
        idle: bool,
    },
    /// It never ran.
    StartFailed {
        /// Why.
        reason: StartFailure,
        /// One line that names the program, directory or user.
        message: String,
    },
}

impl ExecOutcome {
    /// One integer, as in the model: the exit code; 128 + n for a signal; 125 for a timeout; 125 to 127 for a failed
    /// start.
    pub const fn return_code(&self) -> i32 {
        match self {
            Self::Exited(code) => *code,
            Self::Signalled(signal) => 128 + *signal,
            Self::TimedOut { .. } => 125,
            Self::StartFailed { reason, .. } => reason.code(),
        }
    }

    /// The model's `error_type`: none when the code is the program's own.
    pub const fn error_type(&self) -> Option<&'static str> {
        match self {
            Self::Exited(_) | Self::Signalled(_) => None,
            Self::TimedOut { .. } => Some("timeout"),
            Self::StartFailed { .. } => Some("sandbox"),
        }
    }

    /// True for exit code 0.
    pub const fn is_success(&self) -> bool {
        matches!(self, Self::Exited(0))
    }
}

/// What a command used. What a provider cannot measure is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceUsage {
    /// User and system time in seconds.
    pub cpu_time_s: Option<f64>,
    /// Peak resident memory in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Time from start to end in seconds.
    pub wall_time_s: Option<f64>,
}

/// The last event of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExecExit {
    /// How it ended.
    pub outcome: ExecOutcome,
    /// What it used.
    #[serde(default)]
    pub usage: ResourceUsage,
    /// Whether it was killed for memory: none where the provider cannot tell.
    #[serde(default)]
    pub oom: Option<bool>,
    /// True if a background child still held the output when the command was over.
    #[serde(default)]
    pub output_open: bool,
}

impl ExecExit {
    /// An ending without measurements.
    pub fn new(outcome: ExecOutcome) -> Self {
        Self { outcome, usage: ResourceUsage::default(), oom: None, output_open: false }
    }

    /// A command that never ran.
    pub fn start_failed(reason: StartFailure, message: impl Into<String>) -> Self {
        Self::new(ExecOutcome::StartFailed { reason, message: message.into() })
    }

    /// The same ending with measurements.
    #[must_use]
    pub fn with_usage(mut self, usage: ResourceUsage) -> Self {
        self.usage = usage;
        self
    }

    /// The same ending, saying whether the output was still held.
    #[must_use]
    pub fn with_output_open(mut self, output_open: bool) -> Self {
        self.output_open = output_open;
        self
    }
}
