//! SHA-256 of a plugin file, and the pins it is compared with.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::mismatch::Mismatch;

/// What to do about the checksum of a file.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Checksum<'a> {
    /// Compute it, so that it can be shown.
    Compute,
    /// Compute it, and refuse the file unless it is this one: 64 hex digits, in upper or lower case.
    Expect(&'a str),
    /// Compute it if the provider's name is pinned, and then refuse any other.
    IfPinned(&'a BTreeMap<String, String>),
}

impl Checksum<'_> {
    /// Whether a provider of that name has to have a certain checksum.
    pub(crate) fn expects(&self, name: &str) -> Option<&str> {
        match self {
            Self::Compute => None,
            Self::Expect(expected) => Some(expected),
            Self::IfPinned(pins) => pins.get(name).map(String::as_str),
        }
    }
}

/// Gives the checksum, if one was computed.
pub(crate) fn check(name: &str, bytes: &[u8], checksum: &Checksum<'_>) -> Result<Option<String>, Mismatch> {
    let expected = checksum.expects(name);
    if expected.is_none() && matches!(checksum, Checksum::IfPinned(_)) {
        return Ok(None);
    }
    let found = sha256_hex(bytes);
    match expected {
        Some(expected) if !expected.eq_ignore_ascii_case(&found) => {
            Err(Mismatch::new("checksum", format!("SHA-256 {expected}"), found)
                .with_help("if the plugin was updated on purpose, update its pin"))
        }
        _ => Ok(Some(found)),
    }
}

fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
