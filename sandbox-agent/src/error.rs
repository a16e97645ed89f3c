//! What stops a launch, as data: it travels as JSON from the sandbox's side to the provider.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::hint;

/// The step of a launch that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// Reading or checking the configuration.
    Config,
    /// Finding out which ids may be mapped.
    Ids,
    /// Opening a folder or file of the host that the sandbox is to see.
    Source,
    /// Making the cgroup, or moving the sandbox into it.
    Cgroup,
    /// Making the namespaces.
    Namespaces,
    /// Writing the id maps.
    IdMaps,
    /// Mounting or filling the new root.
    Root,
    /// Mounting or masking `/proc`.
    Proc,
    /// Making `/dev`.
    Dev,
    /// Host name and loopback.
    Network,
    /// no_new_privs, capabilities, seccomp or Landlock.
    Hardening,
    /// Executing PID 1.
    Exec,
    /// Talking to the launcher's two halves or to the provider.
    Report,
}

/// Why a sandbox could not be launched. Nothing of it is left behind then.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}", .path.as_deref().map(|path| format!(": {}", path.display())).unwrap_or_default())]
pub struct LaunchError {
    stage: Stage,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl LaunchError {
    pub(crate) fn new(stage: Stage, message: impl Into<String>) -> LaunchError {
        LaunchError { stage, message: message.into(), path: None, errno: None, hint: None }
    }

    /// A failed system call; the hint is looked up from what failed where.
    pub(crate) fn system(stage: Stage, what: &str, errno: Errno) -> LaunchError {
        LaunchError {
            stage,
            message: format!("{what} failed ({errno})"),
            path: None,
            errno: Some(errno.raw_os_error()),
            hint: hint::for_failure(stage, errno),
        }
    }

    pub(crate) fn at(mut self, path: impl AsRef<Path>) -> LaunchError {
        self.path = Some(path.as_ref().to_path_buf());
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> LaunchError {
        self.hint = Some(hint.into());
        self
    }

    /// The step that failed.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The path that the failed step was about: of the host or of the sandbox, as the message says.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The errno of the failed system call.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// What to do about it: the setting of the host to change, or the opt-out.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// Says what a system call was for when it fails.
pub(crate) trait Context<T> {
    fn stage(self, stage: Stage, what: &str) -> Result<T, LaunchError>;
    fn stage_at(self, stage: Stage, what: &str, path: impl AsRef<Path>) -> Result<T, LaunchError>;
}

impl<T> Context<T> for Result<T, Errno> {
    fn stage(self, stage: Stage, what: &str) -> Result<T, LaunchError> {
        self.map_err(|errno| LaunchError::system(stage, what, errno))
    }

    fn stage_at(self, stage: Stage, what: &str, path: impl AsRef<Path>) -> Result<T, LaunchError> {
        self.map_err(|errno| LaunchError::system(stage, what, errno).at(path))
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn stage(self, stage: Stage, what: &str) -> Result<T, LaunchError> {
        self.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)).stage(stage, what)
    }

    fn stage_at(self, stage: Stage, what: &str, path: impl AsRef<Path>) -> Result<T, LaunchError> {
        self.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)).stage_at(stage, what, path)
    }
}
