//! What PID 1 does without a word on how to serve: it proves that it has arrived, and ends with its socket.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use crate::handover::Handover;
use crate::hardening;

/// Writes the handover to the socket as one line, and returns at the socket's end.
///
/// # Errors
/// One line that says what failed.
pub(crate) fn hold(handover: &Handover, socket: OwnedFd) -> Result<(), String> {
    hardening::protect_agent().map_err(|error| error.to_string())?;
    let mut socket = File::from(socket);
    let mut line = serde_json::to_vec(handover).map_err(|error| error.to_string())?;
    line.push(b'\n');
    socket.write_all(&line).map_err(|error| error.to_string())?;
    let mut rest = [0; 512];
    while socket.read(&mut rest).is_ok_and(|bytes| bytes > 0) {}
    Ok(())
}
