//! Interactive sessions.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Admitted, ByteString, ControlRequest, Env, ExecExit, Result, SandboxError, Session, SessionEvent,
    validate::{check_no_nul, check_path, check_user},
};

/// An interactive session to open.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxPtySpec {
    /// A script for the shell; none opens the shell itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<ByteString>,
    /// Working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<ByteString>,
    /// Environment over that of the sandbox.
    #[serde(skip_serializing_if = "Env::is_empty")]
    pub env: Env,
    /// Rows of the terminal, 1 to 9999.
    pub rows: u16,
    /// Columns of the terminal, 1 to 9999.
    pub cols: u16,
    /// User to run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A terminal if true; pipes with separate output streams if false (the size is ignored then).
    pub pty: bool,
}

impl Default for SandboxPtySpec {
    fn default() -> Self {
        Self { command: None, cwd: None, env: Env::default(), rows: 24, cols: 80, user: None, pty: true }
    }
}

impl SandboxPtySpec {
    /// Checks every value that can be checked without a provider.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field.
    pub fn validate(&self) -> Result<()> {
        if let Some(command) = &self.command {
            check_no_nul("command", command.as_bytes())?;
        }
        if let Some(cwd) = &self.cwd {
            check_path("cwd", cwd)?;
        }
        self.env.validate("env")?;
        check_user("user", self.user.as_deref())?;
        for (field, value) in [("rows", self.rows), ("cols", self.cols)] {
            if self.pty && !(1..=9999).contains(&value) {
                return Err(SandboxError::invalid_input(field, format!("must be 1 to 9999, not {value}")));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SandboxPtySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxPtySpec")
            .field("rows", &self.rows)
            .field("cols", &self.cols)
            .field("pty", &self.pty)
            .finish_non_exhaustive()
    }
}

/// What comes out of an interactive session.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum PtyEvent {
    /// The session is open. First, exactly once.
    Opened {
        /// Its id, for attaching to it again.
        session_id: String,
    },
    /// Bytes of the terminal, or of standard output in pipe mode.
    Output(Bytes),
    /// Bytes of standard error; in pipe mode only.
    Stderr(Bytes),
    /// So many bytes of output are no longer retained and are missing here.
    Gap(u64),
    /// The session's process is over. Last, exactly once.
    Exit(ExecExit),
}

impl fmt::Debug for PtyEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened { session_id } => write!(f, "Opened({session_id})"),
            Self::Output(bytes) => write!(f, "Output({} bytes)", bytes.len()),
            Self::Stderr(bytes) => write!(f, "Stderr({} bytes)", bytes.len()),
            Self::Gap(bytes) => write!(f, "Gap({bytes} bytes)"),
            Self::Exit(exit) => f.debug_tuple("Exit").field(exit).finish(),
        }
    }
}

impl SessionEvent for PtyEvent {
    const WHAT: &'static str = "terminal session";

    fn is_last(&self) -> bool {
        matches!(self, Self::Exit(_))
    }

    fn into_frame(self) -> (u32, Bytes) {
        match self {
            Self::Exit(exit) => (0, serde_json::to_vec(&exit).unwrap_or_default().into()),
            Self::Output(bytes) => (1, bytes),
            Self::Stderr(bytes) => (2, bytes),
            Self::Opened { session_id } => (3, session_id.into()),
            Self::Gap(bytes) => (4, bytes.to_string().into()),
        }
    }

    fn from_frame(channel: u32, data: Bytes) -> Result<Option<Self>> {
        let broken = || SandboxError::lost("the terminal session sent an unreadable message", Admitted::Yes);
        let text = || std::str::from_utf8(&data).map_err(|_| broken());
        Ok(match channel {
            0 => Some(Self::Exit(serde_json::from_slice(&data).map_err(|_| broken())?)),
            1 => Some(Self::Output(data)),
            2 => Some(Self::Stderr(data)),
            3 => Some(Self::Opened { session_id: text()?.to_owned() }),
            4 => Some(Self::Gap(text()?.parse().map_err(|_| broken())?)),
            _ => None,
        })
    }
}

/// An open interactive session. Dropping it closes a session that this client created and detaches from any other.
pub type PtyStream = Session<PtyEvent>;

impl Session<PtyEvent> {
    /// Sets the size of the terminal.
    ///
    /// # Errors
    /// `InvalidState` after the end; `Unsupported` in pipe mode.
    pub fn resize(&self, rows: u16, cols: u16) -> impl Future<Output = Result<()>> + Send + use<> {
        self.request(ControlRequest::Resize { rows, cols })
    }

    /// Leaves the session running and ends this connection to it.
    ///
    /// # Errors
    /// `InvalidState` after the end.
    pub async fn detach(self) -> Result<()> {
        self.control().control(ControlRequest::Detach).await.map(drop)
    }
}
