//! The deadline of every call that reaches a provider.

use std::{future::Future, time::Duration};

use sandbox_core::{Result, SandboxError};

/// The default limit of a command that names none, in seconds. As in the model.
pub const DEFAULT_EXEC_TIMEOUT_S: f64 = 180.0;

/// How long the facade waits beyond a command's own limit for the provider to end it. A provider that has not done so
/// by then is not going to.
pub(crate) const EXEC_END_GRACE: Duration = Duration::from_secs(30);

/// How long each control call may take. A call that takes longer fails with `TimedOut` and is cancelled.
///
/// `create` has no limit of its own: `SandboxSpec::ready_timeout_s` is its limit. Commands have theirs
/// ([`DEFAULT_EXEC_TIMEOUT_S`] unless they name one).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlTimeouts {
    /// Removing the sandbox. Default 60 s.
    pub close: Duration,
    /// Ending the provider. Default 60 s.
    pub aclose: Duration,
    /// Asking for the state. Default 15 s.
    pub status: Duration,
    /// Asking for the URL of a port, writing a descriptor, renewing. Default 30 s.
    pub query: Duration,
    /// Pausing and resuming, and keeping a state; a backend may write all memory to disk. Default 300 s.
    pub pause: Duration,
    /// Finding a sandbox of another process. Default 60 s.
    pub connect: Duration,
    /// Opening a terminal session, attaching to one, and each request to one. Default 60 s.
    pub pty: Duration,
    /// One operation on a path: list, stat, remove, make. Default 300 s, since a whole tree may be removed.
    pub path: Duration,
    /// One transfer of a file or folder, of any size. Default 3600 s.
    pub transfer: Duration,
}

impl Default for ControlTimeouts {
    fn default() -> Self {
        Self {
            close: Duration::from_secs(60),
            aclose: Duration::from_secs(60),
            status: Duration::from_secs(15),
            query: Duration::from_secs(30),
            pause: Duration::from_secs(300),
            connect: Duration::from_secs(60),
            pty: Duration::from_secs(60),
            path: Duration::from_secs(300),
            transfer: Duration::from_secs(3600),
        }
    }
}

/// Runs a call under its deadline. Dropped at the deadline, the call is cancelled.
pub(crate) async fn within<T>(
    operation: &str,
    limit: Duration,
    call: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => Err(timed_out(operation, limit)),
    }
}

pub(crate) fn timed_out(operation: &str, limit: Duration) -> SandboxError {
    SandboxError::timed_out(format!("{operation} did not finish within {} s", limit.as_secs_f64()))
}
