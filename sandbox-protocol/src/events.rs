//! Events of the sessions that are not core's.

use std::fmt;

use bytes::Bytes;
use sandbox_core::{Admitted, ExecExit, Result, SandboxError, SessionEvent};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// What is kept of a command's output, in the order in which it was written.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum LogEvent {
    /// Bytes of standard output.
    Stdout(Bytes),
    /// Bytes of standard error.
    Stderr(Bytes),
    /// So many bytes of each stream are no longer kept, and are missing here; offsets go on behind them.
    Gap {
        /// Of standard output.
        stdout_bytes: u64,
        /// Of standard error.
        stderr_bytes: u64,
    },
    /// That is all, and how the command ended; none while it runs. Last.
    End(Option<ExecExit>),
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Gap {
    stdout_bytes: u64,
    stderr_bytes: u64,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct End {
    exit: Option<ExecExit>,
}

impl fmt::Debug for LogEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout(bytes) => write!(f, "Stdout({} bytes)", bytes.len()),
            Self::Stderr(bytes) => write!(f, "Stderr({} bytes)", bytes.len()),
            Self::Gap { stdout_bytes, stderr_bytes } => write!(f, "Gap({stdout_bytes} + {stderr_bytes} bytes)"),
            Self::End(exit) => f.debug_tuple("End").field(exit).finish(),
        }
    }
}

impl SessionEvent for LogEvent {
    const WHAT: &'static str = "log";

    fn is_last(&self) -> bool {
        matches!(self, Self::End(_))
    }

    fn into_frame(self) -> (u32, Bytes) {
        match self {
            Self::End(exit) => (0, json(&End { exit })),
            Self::Stdout(bytes) => (1, bytes),
            Self::Stderr(bytes) => (2, bytes),
            Self::Gap { stdout_bytes, stderr_bytes } => (3, json(&Gap { stdout_bytes, stderr_bytes })),
        }
    }

    fn from_frame(channel: u32, data: Bytes) -> Result<Option<Self>> {
        Ok(match channel {
            0 => Some(Self::End(parse::<End>(&data, "end of a log")?.exit)),
            1 => Some(Self::Stdout(data)),
            2 => Some(Self::Stderr(data)),
            3 => {
                let Gap { stdout_bytes, stderr_bytes } = parse(&data, "gap of a log")?;
                Some(Self::Gap { stdout_bytes, stderr_bytes })
            }
            _ => None,
        })
    }
}

/// What a listener inside has got.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenEvent {
    /// Somebody inside has connected. Whoever wants it opens [`PORT_ACCEPT`](crate::methods::PORT_ACCEPT) with this
    /// number; a connection that nobody takes in time is closed.
    Incoming {
        /// The connection's number, never used twice by one agent.
        connection: u64,
    },
    /// It listens no more. Last.
    Closed,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Incoming {
    connection: u64,
}

impl SessionEvent for ListenEvent {
    const WHAT: &'static str = "listener";

    fn is_last(&self) -> bool {
        matches!(self, Self::Closed)
    }

    fn into_frame(self) -> (u32, Bytes) {
        match self {
            Self::Closed => (0, Bytes::new()),
            Self::Incoming { connection } => (1, json(&Incoming { connection })),
        }
    }

    fn from_frame(channel: u32, data: Bytes) -> Result<Option<Self>> {
        Ok(match channel {
            0 => Some(Self::Closed),
            1 => Some(Self::Incoming { connection: parse::<Incoming>(&data, "connection of a listener")?.connection }),
            _ => None,
        })
    }
}

/// What comes out of a connection that a listener inside has got. Unlike a connection that is opened from outside, its
/// inside may be done with sending long before it has read everything.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardEvent {
    /// Bytes from inside.
    Data(Bytes),
    /// The inside sends no more; it still reads.
    InputEnd,
    /// Both directions are closed. Last.
    End,
}

impl fmt::Debug for ForwardEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(bytes) => write!(f, "Data({} bytes)", bytes.len()),
            Self::InputEnd => f.write_str("InputEnd"),
            Self::End => f.write_str("End"),
        }
    }
}

impl SessionEvent for ForwardEvent {
    const WHAT: &'static str = "forwarded connection";

    fn is_last(&self) -> bool {
        matches!(self, Self::End)
    }

    fn into_frame(self) -> (u32, Bytes) {
        match self {
            Self::End => (0, Bytes::new()),
            Self::Data(bytes) => (1, bytes),
            Self::InputEnd => (2, Bytes::new()),
        }
    }

    fn from_frame(channel: u32, data: Bytes) -> Result<Option<Self>> {
        Ok(match channel {
            0 => Some(Self::End),
            1 => Some(Self::Data(data)),
            2 => Some(Self::InputEnd),
            _ => None,
        })
    }
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

fn parse<T: DeserializeOwned>(data: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(data).map_err(|_| SandboxError::lost(format!("the {what} could not be read"), Admitted::Yes))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sandbox_core::{ExecExit, ExecOutcome, SessionEvent};

    use super::{ForwardEvent, ListenEvent, LogEvent};

    #[test]
    fn every_event_comes_back_as_it_was_and_newer_ones_are_skipped() {
        for event in [
            LogEvent::Stdout("a".into()),
            LogEvent::Stderr("b".into()),
            LogEvent::Gap { stdout_bytes: 1 << 40, stderr_bytes: 3 },
            LogEvent::End(None),
            LogEvent::End(Some(ExecExit::new(ExecOutcome::Exited(3)))),
        ] {
            let (channel, data) = event.clone().into_frame();
            assert_eq!(LogEvent::from_frame(channel, data).unwrap(), Some(event));
        }
        for event in [ListenEvent::Incoming { connection: 7 }, ListenEvent::Closed] {
            let (channel, data) = event.clone().into_frame();
            assert_eq!(ListenEvent::from_frame(channel, data).unwrap(), Some(event));
        }
        for event in [ForwardEvent::Data("x".into()), ForwardEvent::InputEnd, ForwardEvent::End] {
            let (channel, data) = event.clone().into_frame();
            assert_eq!(ForwardEvent::from_frame(channel, data).unwrap(), Some(event));
        }
        assert_eq!(LogEvent::from_frame(9, Bytes::new()).unwrap(), None);
        assert!(LogEvent::from_frame(3, "x".into()).is_err());
    }
}
