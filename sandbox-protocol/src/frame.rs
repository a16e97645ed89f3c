//! What a frame is.

use bytes::Bytes;

use crate::{
    Violation,
    limits::{HEADER_BYTES, MAX_CONTROL_BYTES, MAX_DATA_BYTES, MAX_HELLO_BYTES},
};

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $limit:expr;)*) => {
        /// What a frame says. Numbers are never changed or reused; a number that this side does not know is skipped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum FrameKind {
            $($(#[$doc])* $variant,)*
        }

        impl FrameKind {
            /// Every kind.
            pub const ALL: &[FrameKind] = &[$(FrameKind::$variant),*];

            /// The number on the wire.
            pub const fn code(self) -> u8 {
                match self { $(Self::$variant => $code),* }
            }

            /// The kind of a number on the wire.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// The name in the schema.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The largest payload, in bytes.
            pub const fn max_bytes(self) -> usize {
                match self { $(Self::$variant => $limit),* }
            }
        }
    };
}

kinds! {
    /// First frame of each side: magic, generation, features, limits, token. Stream 0.
    Hello = 1, "hello", MAX_HELLO_BYTES;
    /// Last frame of a side, with the reason as an error if there is one. Stream 0.
    Goodbye = 2, "goodbye", MAX_HELLO_BYTES;
    /// Asks for a PONG with the same payload. Stream 0.
    Ping = 3, "ping", 64;
    /// The answer to a PING. Stream 0.
    Pong = 4, "pong", 64;
    /// Client: opens a stream: `{method, request}`. END: no input follows.
    Open = 5, "open", MAX_CONTROL_BYTES;
    /// Server: the request is taken on: `{reply}`. END: the stream is over.
    Accept = 6, "accept", MAX_CONTROL_BYTES;
    /// Server: the request is refused, with an error; the stream is over.
    Refuse = 7, "refuse", MAX_CONTROL_BYTES;
    /// Both: bytes of a channel, under credit. MORE: the event goes on in the next frame. END: the last of this
    /// direction; from the server the stream is over.
    Data = 8, "data", MAX_DATA_BYTES;
    /// Server: an accepted stream broke, with an error; it is over.
    Fail = 9, "fail", MAX_CONTROL_BYTES;
    /// Both: the peer may send so many bytes more (u32) on this stream.
    Credit = 10, "credit", 64;
    /// Client: a numbered control request: `{number, request}`. Overtakes data.
    Control = 11, "control", MAX_DATA_BYTES;
    /// Server: the answer to one: `{number, reply}` or `{number, error}`.
    Reply = 12, "reply", MAX_DATA_BYTES;
    /// Client: the stream is dropped; its work must end at once. Nothing is answered.
    Cancel = 13, "cancel", 64;
    /// Server: input is no longer taken, with the error that further writes get.
    StopInput = 14, "stop_input", MAX_CONTROL_BYTES;
}

/// Flag of a data frame: the event goes on in the next data frame of this stream.
pub const FLAG_MORE: u16 = 1;

/// Flag of OPEN, ACCEPT and DATA: the last of this direction.
pub const FLAG_END: u16 = 2;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The stream that it belongs to; 0 for the connection itself.
    pub stream: u32,
    /// What it says.
    pub kind: FrameKind,
    /// The channel of a data frame: that of the session's event, 0 for input and bodies.
    pub channel: u8,
    /// [`FLAG_MORE`], [`FLAG_END`]; bits that a side does not know are ignored.
    pub flags: u16,
    /// The rest.
    pub payload: Bytes,
}

impl Frame {
    /// A frame without channel and flags.
    pub fn new(kind: FrameKind, stream: u32, payload: impl Into<Bytes>) -> Self {
        Self { stream, kind, channel: 0, flags: 0, payload: payload.into() }
    }

    /// Sets flags.
    #[must_use]
    pub fn with_flags(mut self, flags: u16) -> Self {
        self.flags |= flags;
        self
    }

    /// Sets the channel.
    #[must_use]
    pub fn with_channel(mut self, channel: u8) -> Self {
        self.channel = channel;
        self
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// What the frame costs in credit, if it is a data frame, and in queue space.
    pub(crate) fn cost(&self) -> u32 {
        cost(self.payload.len())
    }

    /// The header: payload length u32, stream u32, kind u8, channel u8, flags u16, little endian.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&self.stream.to_le_bytes());
        header[8] = self.kind.code();
        header[9] = self.channel;
        header[10..].copy_from_slice(&self.flags.to_le_bytes());
        header
    }

    /// The frame as it travels.
    pub fn encode(&self) -> Vec<u8> {
        [&self.header()[..], &self.payload].concat()
    }
}

/// What a data frame with so many bytes costs.
pub(crate) fn cost(payload_bytes: usize) -> u32 {
    payload_bytes as u32 + crate::limits::DATA_FRAME_COST
}

/// A header that was checked.
pub(crate) struct Header {
    pub(crate) length: usize,
    /// None for a kind of a newer peer: to be skipped.
    pub(crate) kind: Option<FrameKind>,
    stream: u32,
    channel: u8,
    flags: u16,
}

impl Header {
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Violation> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (length, stream, code) = (word(0) as usize, word(4), bytes[8]);
        if code == 0 {
            return Err(Violation::BadFrame("kind 0"));
        }
        let kind = FrameKind::from_code(code);
        let limit = kind.map_or(MAX_CONTROL_BYTES, FrameKind::max_bytes);
        if length > limit {
            return Err(Violation::TooLarge { kind: code, bytes: length, limit });
        }
        if let Some(kind) = kind {
            use FrameKind::{Goodbye, Hello, Ping, Pong};
            let is_for_connection = matches!(kind, Hello | Goodbye | Ping | Pong);
            if is_for_connection != (stream == 0) {
                return Err(Violation::BadFrame("stream number does not fit the kind"));
            }
        }
        Ok(Self { length, kind, stream, channel: bytes[9], flags: u16::from_le_bytes([bytes[10], bytes[11]]) })
    }

    pub(crate) fn into_frame(self, kind: FrameKind, payload: Bytes) -> Frame {
        Frame { stream: self.stream, kind, channel: self.channel, flags: self.flags, payload }
    }
}
