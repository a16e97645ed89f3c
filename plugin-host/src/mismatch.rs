//! A check of a plugin file that did not hold.

use std::path::Path;

use sandbox_core::SandboxError;

/// What was looked at, what it should have been, what it was, what to do.
#[derive(Debug)]
pub(crate) struct Mismatch {
    what: &'static str,
    expected: String,
    found: String,
    help: Option<String>,
}

impl Mismatch {
    pub(crate) fn new(what: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { what, expected: expected.into(), found: found.into(), help: None }
    }

    #[must_use]
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The error for the file at `path`.
    pub(crate) fn at(self, path: &Path) -> SandboxError {
        let Self { what, expected, found, help } = self;
        let error = SandboxError::plugin(format!("{}: {what}: expected {expected}, found {found}", path.display()));
        match help {
            Some(help) => error.with_help(help),
            None => error,
        }
    }
}
