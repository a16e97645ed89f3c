//! What PID 1 does until the serving half exists: it proves that it has arrived, and ends with its socket.

use std::fs::File;
use std::io::{Read, Write};

use crate::handover::{Handover, take_socket};
use crate::hardening;

/// Writes the handover to the socket as one line, and returns at the socket's end.
///
/// # Errors
/// One line that says why this process is no agent.
pub fn hold() -> Result<(), String> {
    hardening::protect_agent().map_err(|error| error.to_string())?;
    let handover = Handover::from_environment().map_err(|error| error.to_string())?;
    let handover = handover.ok_or("serve is what `launch` executes, not for the command line")?;
    let socket = take_socket().map_err(|error| error.to_string())?;
    let mut socket = File::from(socket);
    let mut line = serde_json::to_vec(&handover).map_err(|error| error.to_string())?;
    line.push(b'\n');
    socket.write_all(&line).map_err(|error| error.to_string())?;
    let mut rest = [0; 512];
    while socket.read(&mut rest).is_ok_and(|bytes| bytes > 0) {}
    Ok(())
}
