//! How a case ends early, and the checks that end it.

use sandbox_core::{ErrorKind, Result, SandboxError};

/// Why a case did not pass.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The provider broke the contract.
    Failed(String),
    /// The case needs something that is not declared, or that is not in the image.
    Skipped(String),
}

/// What a case's body returns.
pub(crate) type Check<T = ()> = Result<T, Stop>;

impl Stop {
    pub(crate) fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }

    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Self::Skipped(reason.into())
    }
}

impl From<SandboxError> for Stop {
    fn from(error: SandboxError) -> Self {
        Self::Failed(format!("unexpected error {error:?}"))
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(format!("on the suite's side: {error}"))
    }
}

/// Fails unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err($crate::check::Stop::failed(format!($($reason)+)));
        }
    };
}

/// Fails unless both are equal; says what was compared.
macro_rules! ensure_eq {
    ($got:expr, $expected:expr, $($what:tt)+) => {
        // A match and not a let, so that temporaries live until the comparison is done.
        match (&$got, &$expected) {
            (got, expected) => {
                if *got != *expected {
                    let what = format!($($what)+);
                    return Err($crate::check::Stop::failed(format!("{what}: expected {expected:?}, got {got:?}")));
                }
            }
        }
    };
}

/// Fails unless the bytes are equal; shows them shortened.
pub(crate) fn ensure_bytes(got: &[u8], expected: &[u8], what: &str) -> Check {
    ensure!(got == expected, "{what}: expected {}, got {}", show(expected), show(got));
    Ok(())
}

/// Fails unless the call was refused with one of these kinds.
pub(crate) fn ensure_refused<T>(result: Result<T>, kinds: &[ErrorKind], what: &str) -> Check<SandboxError> {
    match result {
        Ok(_) => Err(Stop::failed(format!("{what} was accepted"))),
        Err(error) if kinds.contains(&error.kind()) => Ok(error),
        Err(error) => {
            let names: Vec<_> = kinds.iter().map(|kind| kind.as_str()).collect();
            Err(Stop::failed(format!("{what}: expected an error of kind {}, got {error:?}", names.join(" or "))))
        }
    }
}

/// Bytes for a report: escaped and shortened.
pub(crate) fn show(bytes: &[u8]) -> String {
    const SHOWN: usize = 120;
    let start = bytes[..bytes.len().min(SHOWN)].escape_ascii();
    if bytes.len() <= SHOWN { format!("\"{start}\"") } else { format!("\"{start}…\" ({} bytes)", bytes.len()) }
}
