//! The exit codes of `sandboxctl`. `run` passes the command's own code through; these are ours.

/// Our own command failed.
pub(crate) const FAILED: u8 = 1;
/// Usage, an invalid spec or an invalid configuration; a provider that is not there.
pub(crate) const USAGE: u8 = 2;
/// Credentials are missing or were refused.
pub(crate) const CREDENTIALS: u8 = 4;
/// A time limit of the command was hit.
pub(crate) const TIMED_OUT: u8 = 124;
/// The system around the command failed.
pub(crate) const INFRASTRUCTURE: u8 = 125;
/// The reader of our standard output has gone away: 128 + SIGPIPE, as a shell would show it.
pub(crate) const BROKEN_PIPE: u8 = 141;
/// Added to the number of a signal that ended the command or interrupted us.
pub(crate) const SIGNAL_BASE: i32 = 128;

/// An exit code as the system can carry it: the low eight bits.
pub(crate) fn low_bits(code: i32) -> u8 {
    (code & 0xff) as u8
}
