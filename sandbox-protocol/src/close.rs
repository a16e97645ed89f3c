//! Why a connection ended.

use std::{fmt, io, time::Duration};

use sandbox_core::{Admitted, ErrorKind, SandboxError};

/// What ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseCause {
    /// This side closed it.
    Local,
    /// The peer closed it, in order.
    Peer,
    /// The peer refused this side: a token, a generation. The kind is that of its error.
    Refused(ErrorKind),
    /// The transport ended or failed.
    Transport,
    /// The peer was silent, or took nothing, for too long.
    Idle,
    /// The peer broke the protocol.
    Protocol(Violation),
}

/// Why a connection ended: the cause, and a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseReason {
    cause: CloseCause,
    message: String,
}

impl CloseReason {
    pub(crate) fn new(cause: CloseCause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into() }
    }

    pub(crate) fn transport(error: &io::Error) -> Self {
        Self::new(CloseCause::Transport, format!("the transport failed: {error}"))
    }

    pub(crate) fn idle(limit: Duration) -> Self {
        Self::new(CloseCause::Idle, format!("nothing moved for {} s", limit.as_secs_f64()))
    }

    /// What ended it.
    pub fn cause(&self) -> CloseCause {
        self.cause
    }

    /// The error of a stream that was open: `Lost`.
    pub fn lost(&self, admitted: Admitted) -> SandboxError {
        SandboxError::lost(format!("the connection to the agent ended: {}", self.message), admitted)
    }

    /// The error of a call of which provably nothing was sent: what the peer refused with, else `Unavailable`.
    pub fn unavailable(&self) -> SandboxError {
        let kind = match self.cause {
            CloseCause::Refused(kind) => kind,
            _ => ErrorKind::Unavailable,
        };
        SandboxError::new(kind, format!("no connection to the agent: {}", self.message))
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// How a peer broke the protocol. It ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A payload larger than its kind may be.
    TooLarge {
        /// The number of the kind.
        kind: u8,
        /// What the header says.
        bytes: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The transport ended within a frame.
    Truncated,
    /// A frame that makes no sense: why.
    BadFrame(&'static str),
    /// The first frame is not the HELLO of this protocol.
    NotHello,
    /// A kind that this side of the connection never receives, or not now: its number.
    Unexpected(u8),
    /// A frame of a stream that was never opened.
    UnknownStream(u32),
    /// A stream number that was used before.
    ReusedStream(u32),
    /// More bytes than credit was given for.
    CreditOverrun(u32),
    /// More credit than there are bytes under way.
    CreditLie(u32),
    /// Data after the end of its direction.
    DataAfterEnd(u32),
    /// More requests than may wait for an answer.
    Flood,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer broke the protocol: ")?;
        match self {
            Self::TooLarge { kind, bytes, limit } => {
                write!(f, "a frame of kind {kind} has {bytes} bytes; at most {limit} are allowed")
            }
            Self::Truncated => f.write_str("the connection ended within a frame"),
            Self::BadFrame(why) => write!(f, "a malformed frame ({why})"),
            Self::NotHello => f.write_str("no handshake of this protocol"),
            Self::Unexpected(kind) => write!(f, "a frame of kind {kind} has no place here"),
            Self::UnknownStream(id) => write!(f, "stream {id} was never opened"),
            Self::ReusedStream(id) => write!(f, "stream number {id} was used before"),
            Self::CreditOverrun(id) => write!(f, "more data than allowed on stream {id}"),
            Self::CreditLie(id) => write!(f, "more credit than data on stream {id}"),
            Self::DataAfterEnd(id) => write!(f, "data after the end on stream {id}"),
            Self::Flood => f.write_str("more requests than may wait for an answer"),
        }
    }
}

impl From<Violation> for CloseReason {
    fn from(violation: Violation) -> Self {
        Self::new(CloseCause::Protocol(violation), violation.to_string())
    }
}
