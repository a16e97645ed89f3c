//! What a command tells its caller.

use std::time::Duration;

use bytes::Bytes;

/// One thing that happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Bytes of standard output, as written, at most [`CHUNK_BYTES`](crate::CHUNK_BYTES).
    Stdout(Bytes),
    /// Bytes of standard error, as written, at most [`CHUNK_BYTES`](crate::CHUNK_BYTES).
    Stderr(Bytes),
    /// The command is over. Comes exactly once and last.
    Exit(Exit),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// By itself, with this code (0 to 255).
    Exited(i32),
    /// By this signal, which we did not send to end it.
    Signalled(i32),
    /// Its tree was ended because [`Limits::timeout`](crate::Limits::timeout) passed.
    TimedOut,
    /// Its tree was ended because [`Limits::idle_timeout`](crate::Limits::idle_timeout) passed.
    IdleTimedOut,
    /// Its tree was ended because the caller said so.
    Killed,
    /// Its supervisor vanished (killed from outside), or the runtime was shut down; what became of the command is
    /// not known.
    Lost,
}

/// The end of a command and what it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exit {
    /// How it ended.
    pub ending: Ending,
    /// Processor time of the command and the children it waited for. Zero when it could not be confirmed dead.
    pub cpu_time: Duration,
    /// Largest resident size of the command or a child it waited for. Not below that of the supervisor before
    /// `exec`, which the kernel counts in (one or two MiB). Zero when it could not be confirmed dead.
    pub peak_memory_bytes: u64,
    /// Time from the call of `spawn` to the end.
    pub wall_time: Duration,
    /// True when someone else (a background child) still holds a stream open: there may be more output, and it is
    /// read and thrown away.
    pub output_open: bool,
}
