//! An attempt to make a sandbox that failed, and what may work after it.

use bollard::errors::Error;
use sandbox_core::{ErrorKind, SandboxError};

use crate::error;

/// An attempt that failed, and what may work after it.
pub(crate) struct Failed {
    pub(crate) error: SandboxError,
    pub(crate) next: Next,
}

/// What to do after an attempt that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// What failed fails again.
    Nothing,
    /// Another way into the sandbox.
    OtherWay,
    /// The same with the image got again: it has gone since.
    ImageAgain,
    /// The same under another name: this one is taken.
    OtherName,
}

impl Failed {
    pub(crate) fn then(error: SandboxError, next: Next, may: bool) -> Self {
        Self { error, next: if may { next } else { Next::Nothing } }
    }
}

impl From<SandboxError> for Failed {
    fn from(error: SandboxError) -> Self {
        Self { error, next: Next::Nothing }
    }
}

/// The engine has made no container.
pub(crate) fn not_made(error: Error, has_other_way: bool) -> Failed {
    let (is_gone, is_taken) = (error::is_missing_image(&error), error::is_name_taken(&error));
    let is_elsewhere = is_unknown_source(&error);
    let error = error::engine("making the container", error);
    match (is_gone, is_taken) {
        (true, _) => {
            let help = "somebody removes it while it is used: keep it, or let it be pulled (pull = \"if_missing\")";
            Failed { error: error.with_field("image").with_help(help), next: Next::ImageAgain }
        }
        (_, true) => Failed { error: error.with_kind(ErrorKind::AlreadyExists), next: Next::OtherName },
        _ => Failed::then(error, Next::OtherWay, is_elsewhere && has_other_way),
    }
}

/// True if the engine does not know a path of this machine: it runs elsewhere.
fn is_unknown_source(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 400, message }
        if message.contains("bind source path does not exist"))
}
