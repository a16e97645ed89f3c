//! Every limit of the protocol, with its reason.

use std::time::Duration;

/// Size of a frame's header, in bytes.
pub const HEADER_BYTES: usize = 12;

/// The largest payload of a data frame, in bytes. One frame of a busy stream delays the others by so much.
pub const MAX_DATA_BYTES: usize = 64 * 1024;

/// The largest payload of any other frame, in bytes. Kinds of a newer peer are skipped up to this size.
pub const MAX_CONTROL_BYTES: usize = 1024 * 1024;

/// The largest HELLO, in bytes: what a peer that has not shown its token can make this side hold.
pub const MAX_HELLO_BYTES: usize = 16 * 1024;

/// How long the handshake may take.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Requests and replies up to this size travel inside their frame; larger ones travel as data, under credit.
pub const INLINE_JSON_BYTES: usize = 64 * 1024;

/// The largest request or reply, in bytes. What can be larger is a body.
pub const MAX_JSON_BYTES: usize = 16 * 1024 * 1024;

/// The largest single event of a session, in bytes. Larger ones fail their session: programs' output is cut by its
/// producer, and everything else is small.
pub const MAX_EVENT_BYTES: usize = 256 * 1024;

/// What a data frame costs in credit beside its payload, so that empty frames are not free.
pub const DATA_FRAME_COST: u32 = 64;

/// Credit that a stream starts with in each direction, in bytes: what a stalled reader makes this side hold.
pub const WINDOW_BYTES: u32 = 256 * 1024;

/// The smallest window: a full data frame must fit in three quarters of it, or a stream could stall for ever.
pub const MIN_WINDOW_BYTES: u32 = 128 * 1024;

/// The largest window.
pub const MAX_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// How many streams may be open at once. Together with the window it bounds what a connection holds.
pub const MAX_STREAMS: u32 = 512;

/// How many control requests of one stream may wait for their reply.
pub const MAX_PENDING_CONTROLS: usize = 32;

/// How many bytes of requests, replies and control wait for the transport before their senders wait.
pub const CONTROL_QUEUE_BYTES: u32 = 1024 * 1024;

/// How many bytes of answers may wait for a peer that goes on asking without reading them. An honest one never gets
/// there: its streams and its control requests are counted.
pub const CONTROL_BACKLOG_BYTES: usize = 4 * 1024 * 1024;

/// How many bytes of data wait for the transport before their senders wait; for all streams together.
pub const DATA_QUEUE_BYTES: u32 = 1024 * 1024;

/// How much is handed to the transport at once: what a control frame waits for at most.
pub const WRITE_BATCH_BYTES: usize = 256 * 1024;

/// A side that has been silent or has heard nothing for so long sends a PING: below the idle limits of proxies (5 s
/// has been seen).
pub const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// A connection on which nothing arrives, or nothing can be written, for so long is lost.
pub const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// How long a side whose writes fail goes on reading: what the peer said last tells why.
pub const LINGER: Duration = Duration::from_secs(1);

/// How long a session of a lost connection may take to detach.
pub const DETACH_LIMIT: Duration = Duration::from_secs(5);

/// How long the last event of a session waits for control requests that are under way.
pub const LAST_REPLIES_LIMIT: Duration = Duration::from_secs(1);
