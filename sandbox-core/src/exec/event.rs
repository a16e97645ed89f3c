use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{CaptureLimits, ExecExit, SandboxExecResult, collect::ExecCollector};
use crate::{Admitted, Result, SandboxError, Session, SessionEvent};

/// What happens while a command runs.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum ExecEvent {
    /// Bytes of standard output, in order, never decoded.
    Stdout(Bytes),
    /// Bytes of standard error, in order among themselves.
    Stderr(Bytes),
    /// Output of a job that is no longer kept is missing here; offsets go on behind it. Never in a command that is
    /// followed from its start.
    Gap {
        /// Of standard output.
        stdout_bytes: u64,
        /// Of standard error.
        stderr_bytes: u64,
    },
    /// The end. Arrives exactly once and last.
    Exit(ExecExit),
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Gap {
    stdout_bytes: u64,
    stderr_bytes: u64,
}

impl std::fmt::Debug for ExecEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdout(bytes) => write!(f, "Stdout({} bytes)", bytes.len()),
            Self::Stderr(bytes) => write!(f, "Stderr({} bytes)", bytes.len()),
            Self::Gap { stdout_bytes, stderr_bytes } => write!(f, "Gap({stdout_bytes} + {stderr_bytes} bytes)"),
            Self::Exit(exit) => f.debug_tuple("Exit").field(exit).finish(),
        }
    }
}

impl SessionEvent for ExecEvent {
    const WHAT: &'static str = "exec";

    fn is_last(&self) -> bool {
        matches!(self, Self::Exit(_))
    }

    fn into_frame(self) -> (u32, Bytes) {
        match self {
            Self::Stdout(bytes) => (1, bytes),
            Self::Stderr(bytes) => (2, bytes),
            Self::Gap { stdout_bytes, stderr_bytes } => {
                (3, serde_json::to_vec(&Gap { stdout_bytes, stderr_bytes }).unwrap_or_default().into())
            }
            Self::Exit(exit) => (0, serde_json::to_vec(&exit).unwrap_or_default().into()),
        }
    }

    fn from_frame(channel: u32, data: Bytes) -> Result<Option<Self>> {
        Ok(match channel {
            0 => Some(Self::Exit(serde_json::from_slice(&data).map_err(|error| {
                SandboxError::lost(format!("the exec ended with an unreadable message: {error}"), Admitted::Yes)
            })?)),
            1 => Some(Self::Stdout(data)),
            2 => Some(Self::Stderr(data)),
            3 => {
                let Gap { stdout_bytes, stderr_bytes } = serde_json::from_slice(&data).map_err(|error| {
                    SandboxError::lost(format!("the exec sent an unreadable message: {error}"), Admitted::Yes)
                })?;
                Some(Self::Gap { stdout_bytes, stderr_bytes })
            }
            _ => None,
        })
    }
}

/// A running command. Dropping it before the end kills the command's whole process tree.
pub type ExecStream = Session<ExecEvent>;

impl Session<ExecEvent> {
    /// A stream for a command that is already over. For providers whose backend does not stream.
    pub fn finished(stdout: impl Into<Bytes>, stderr: impl Into<Bytes>, exit: ExecExit) -> Self {
        let (stdout, stderr) = (stdout.into(), stderr.into());
        let mut events = Vec::with_capacity(3);
        if !stdout.is_empty() {
            events.push(ExecEvent::Stdout(stdout));
        }
        if !stderr.is_empty() {
            events.push(ExecEvent::Stderr(stderr));
        }
        events.push(ExecEvent::Exit(exit));
        Self::from_events(events)
    }

    /// Reads to the end and keeps the output within the limits (head and tail of each stream).
    ///
    /// Dropping the future kills the command.
    ///
    /// # Errors
    /// `Lost` when the stream breaks off without an end.
    pub async fn collect(mut self, limits: CaptureLimits) -> Result<SandboxExecResult> {
        let mut collector = ExecCollector::new(limits);
        while let Some(event) = self.next().await? {
            if let Some(result) = collector.push(event) {
                return Ok(result);
            }
        }
        Err(Self::lost())
    }
}
