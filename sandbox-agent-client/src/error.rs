//! Failures of this machine as errors of the contract.

use std::fmt;

use rustix::io::Errno;
use sandbox_core::SandboxError;

/// A system call about `what` failed.
pub(crate) fn os(what: impl fmt::Display, errno: Errno) -> SandboxError {
    SandboxError::io(what, errno.into())
}

/// A path that leads to somewhere it may not.
pub(crate) fn bad_path(path: impl fmt::Display, why: &str) -> SandboxError {
    SandboxError::invalid_input("path", format!("{path} {why}"))
}
