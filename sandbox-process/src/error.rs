//! Why a command could not be started, or a running one not be reached.

use std::fmt;

use crate::raw::Errno;
use crate::wire::Stage;

/// What kind of start failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartErrorKind {
    /// The program does not exist (in no folder of `PATH`, when its name has no slash).
    NotFound,
    /// The program exists but cannot be executed: no permission, a directory, not a program, or a script whose
    /// interpreter is missing.
    NotExecutable,
    /// The working directory does not exist.
    CwdMissing,
    /// The working directory is not a directory.
    CwdNotADirectory,
    /// The working directory may not be entered.
    CwdNotAccessible,
    /// The switch to the user, or the lock on privileges, was refused.
    UserRefused,
    /// An argument, an environment value or all of them together are over the kernel's limit. [`StartError::field`],
    /// [`StartError::limit_bytes`] and [`StartError::size_bytes`] say which, the limit and the size.
    TooLarge,
    /// The command cannot be meant: no program, a NUL byte, a bad variable name, a descriptor asked for twice.
    /// [`StartError::field`] says where.
    InvalidInput,
    /// The system is out of processes, memory or descriptors.
    Resource,
    /// The time limit passed before the command ran.
    TimedOut,
    /// The process set was closed, or the supervisor ended before it said anything.
    Lost,
    /// Anything else; [`StartError::stage`] and [`StartError::errno`] say what.
    Other,
}

/// A command that was not started. Nothing of it is left.
#[derive(Clone, Debug)]
pub struct StartError {
    kind: StartErrorKind,
    stage: Stage,
    errno: Option<i32>,
    field: Option<String>,
    detail: Option<&'static str>,
    sizes: Option<(usize, usize)>,
}

impl StartError {
    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> StartErrorKind {
        self.kind
    }

    /// The step that failed.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The kernel's error number, when the kernel refused.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// The offending part of the command: `argument 3`, `environment variable PATH`, `cwd`. Never its value.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// For [`StartErrorKind::TooLarge`]: the limit, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> Option<usize> {
        self.sizes.map(|(limit, _)| limit)
    }

    /// For [`StartErrorKind::TooLarge`]: the size, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> Option<usize> {
        self.sizes.map(|(_, size)| size)
    }

    fn new(kind: StartErrorKind, stage: Stage) -> StartError {
        StartError { kind, stage, errno: None, field: None, detail: None, sizes: None }
    }

    pub(crate) fn invalid(field: impl Into<String>, detail: &'static str) -> StartError {
        let error = StartError::new(StartErrorKind::InvalidInput, Stage::Prepare);
        StartError { field: Some(field.into()), detail: Some(detail), ..error }
    }

    pub(crate) fn too_large(field: impl Into<String>, limit: usize, size: usize) -> StartError {
        let error = StartError::new(StartErrorKind::TooLarge, Stage::Prepare);
        StartError { field: Some(field.into()), sizes: Some((limit, size)), ..error }
    }

    pub(crate) fn timed_out() -> StartError {
        StartError::new(StartErrorKind::TimedOut, Stage::Fork)
    }

    pub(crate) fn lost() -> StartError {
        StartError::new(StartErrorKind::Lost, Stage::Fork)
    }

    pub(crate) fn from_errno(stage: Stage, Errno(errno): Errno) -> StartError {
        StartError { errno: Some(errno), ..StartError::new(kind_of(stage, errno), stage) }
    }
}

fn kind_of(stage: Stage, errno: i32) -> StartErrorKind {
    match (stage, errno) {
        (_, libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => StartErrorKind::Resource,
        (Stage::Directory, libc::ENOENT) => StartErrorKind::CwdMissing,
        (Stage::Directory, libc::ENOTDIR) => StartErrorKind::CwdNotADirectory,
        (Stage::Directory, libc::EACCES | libc::EPERM) => StartErrorKind::CwdNotAccessible,
        (Stage::User, _) => StartErrorKind::UserRefused,
        (Stage::Interpreter, _) => StartErrorKind::NotExecutable,
        (Stage::Exec, libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG) => StartErrorKind::NotFound,
        (
            Stage::Exec,
            libc::EACCES | libc::EPERM | libc::ENOEXEC | libc::EISDIR | libc::ELIBBAD | libc::EINVAL | libc::ETXTBSY,
        ) => StartErrorKind::NotExecutable,
        (Stage::Exec, libc::E2BIG) => StartErrorKind::TooLarge,
        _ => StartErrorKind::Other,
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.kind {
            StartErrorKind::NotFound => "program not found",
            StartErrorKind::NotExecutable if self.stage == Stage::Interpreter => {
                "program is not executable: its interpreter or loader is missing"
            }
            StartErrorKind::NotExecutable => "program is not executable",
            StartErrorKind::CwdMissing => "working directory does not exist",
            StartErrorKind::CwdNotADirectory => "working directory is not a directory",
            StartErrorKind::CwdNotAccessible => "working directory may not be entered",
            StartErrorKind::UserRefused => "switch to the user was refused",
            StartErrorKind::TooLarge => "command is too large",
            StartErrorKind::InvalidInput => "command is invalid",
            StartErrorKind::Resource => "out of processes, memory or descriptors",
            StartErrorKind::TimedOut => "time limit passed before the command ran",
            StartErrorKind::Lost => "supervisor ended before the command ran",
            StartErrorKind::Other => "command could not be started",
        };
        f.write_str(text)?;
        if let Some(field) = &self.field {
            write!(f, ": {field}")?;
        }
        if let Some(detail) = self.detail {
            write!(f, " {detail}")?;
        }
        if let Some((limit, size)) = self.sizes {
            write!(f, " has {size} bytes, the kernel's limit is {limit}")?;
        }
        if let Some(errno) = self.errno {
            write!(f, " ({:?} step, error number {errno})", self.stage)?;
        }
        Ok(())
    }
}

impl std::error::Error for StartError {}

/// What kind of failure it was to reach a running command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlErrorKind {
    /// The command has ended.
    Ended,
    /// The command does not read its standard input any more. Not a failure of the command.
    BrokenPipe,
    /// The command was started without a standard input to write to, or it was closed.
    StdinClosed,
    /// Not a signal number.
    InvalidSignal,
    /// The command was started without a terminal.
    NoTerminal,
    /// The kernel refused.
    Other,
}

/// A signal or input that did not reach the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlError {
    kind: ControlErrorKind,
    errno: Option<i32>,
}

impl ControlError {
    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ControlErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ControlErrorKind) -> ControlError {
        ControlError { kind, errno: None }
    }

    pub(crate) fn from_errno(errno: i32) -> ControlError {
        match errno {
            libc::EPIPE => ControlError::new(ControlErrorKind::BrokenPipe),
            _ => ControlError { kind: ControlErrorKind::Other, errno: Some(errno) },
        }
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ControlErrorKind::Ended => "command has ended",
            ControlErrorKind::BrokenPipe => "command does not read its input any more",
            ControlErrorKind::StdinClosed => "command has no open input",
            ControlErrorKind::InvalidSignal => "not a signal number",
            ControlErrorKind::NoTerminal => "command has no terminal",
            ControlErrorKind::Other => "command could not be reached",
        })?;
        match self.errno {
            Some(errno) => write!(f, " (error number {errno})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ControlError {}
