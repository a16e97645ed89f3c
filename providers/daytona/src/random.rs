//! Random names and delays.

use std::{fs::File, io::Read, time::Duration};

use sandbox_core::{Result, SandboxError};

fn fill(buffer: &mut [u8]) -> std::io::Result<()> {
    File::open("/dev/urandom")?.read_exact(buffer)
}

/// So many random bytes as hexadecimal digits, for names that nobody guesses.
pub(crate) fn random_hex(bytes: usize) -> Result<String> {
    let mut buffer = vec![0; bytes];
    fill(&mut buffer).map_err(|error| SandboxError::io("/dev/urandom", error))?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A random part of a time. The whole of it where there is no randomness.
pub(crate) fn jitter(most: Duration) -> Duration {
    let mut buffer = [0xff; 2];
    let _ = fill(&mut buffer);
    most.mul_f64(f64::from(u16::from_ne_bytes(buffer)) / f64::from(u16::MAX))
}
