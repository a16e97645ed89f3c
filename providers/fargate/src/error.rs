//! What failures of this provider look like.

use sandbox_core::{ErrorKind, SandboxError};

/// The name of this provider.
pub(crate) const NAME: &str = "fargate";

/// A step of a creation that failed: what the caller can act on stays, the rest is a create error.
pub(crate) fn as_create(error: SandboxError) -> SandboxError {
    match error.kind() {
        ErrorKind::Internal | ErrorKind::InvalidState | ErrorKind::Lost => error.with_kind(ErrorKind::Create),
        _ => error,
    }
    .with_provider(NAME)
}

pub(crate) fn not_found(id: &str, why: &str) -> SandboxError {
    SandboxError::not_found(format!("sandbox {id} {why}")).with_provider(NAME)
}
