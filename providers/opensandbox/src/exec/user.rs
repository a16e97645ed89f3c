//! Who a command runs as: resolved from the sandbox's own files, never from anything else.

use sandbox_core::{ErrorKind, Result, SandboxError};
use sandbox_process::{User, UserErrorKind};

use crate::{daemon::Daemon, error::NAME};

/// A user of the sandbox, or that there is none of that name.
#[derive(Debug)]
pub(crate) enum Found {
    User(User),
    Unknown(String),
}

impl Daemon<'_> {
    /// Finds a user: `NAME`, `UID`, `UID:GID` or `NAME:GROUP`.
    pub(crate) async fn user(&self, spec: &str) -> Result<Found> {
        let (mut files, is_number) =
            ([Vec::new(), Vec::new()], |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()));
        let is_plain = spec.split(':').count() == 2 && spec.split(':').all(is_number);
        for (file, path) in files.iter_mut().zip(["/etc/passwd", "/etc/group"]) {
            match self.read_small(path).await {
                Ok(text) => *file = text.to_vec(),
                // Numbers need no file.
                Err(failure) if failure.status() == 404 && !failure.refusal().is_some_and(|one| one.is_gone()) => {}
                Err(failure) => return Err(self.explain(failure, "looking for a user of the sandbox").await),
            }
        }
        match User::resolve(spec.as_bytes(), &files[0], &files[1]) {
            Ok(user) => Ok(Found::User(user)),
            Err(error) if error.kind() == UserErrorKind::Malformed => {
                Err(SandboxError::invalid_input("user", error.to_string()).with_provider(NAME))
            }
            Err(error) if is_plain => {
                Err(SandboxError::new(ErrorKind::InvalidInput, error.to_string()).with_provider(NAME))
            }
            Err(error) => Ok(Found::Unknown(format!("{spec}: {error}"))),
        }
    }
}
