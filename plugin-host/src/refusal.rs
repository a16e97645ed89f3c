//! Why a plugin was refused: made once, told as often as somebody asks.

use std::error::Error;

use sandbox_core::{ErrorKind, SandboxError};

/// An error that can be kept and told again: a `SandboxError` cannot be cloned.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    kind: ErrorKind,
    message: String,
    help: Option<String>,
    provider: Option<String>,
    field: Option<String>,
    causes: Vec<String>,
}

impl Refusal {
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The error, as it was.
    pub(crate) fn error(&self) -> SandboxError {
        let mut error = SandboxError::new(self.kind, self.message.clone());
        if let Some(help) = &self.help {
            error = error.with_help(help.clone());
        }
        if let Some(provider) = &self.provider {
            error = error.with_provider(provider.clone());
        }
        if let Some(field) = &self.field {
            error = error.with_field(field.clone());
        }
        error.with_causes(self.causes.clone())
    }
}

impl From<&SandboxError> for Refusal {
    fn from(error: &SandboxError) -> Self {
        let mut causes = Vec::new();
        let mut next = error.source();
        while let Some(cause) = next {
            causes.push(cause.to_string());
            next = cause.source();
        }
        Self {
            kind: error.kind(),
            message: error.message().to_owned(),
            help: error.help().map(str::to_owned),
            provider: error.provider().map(str::to_owned),
            field: error.field().map(str::to_owned),
            causes,
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, SandboxError};

    use super::Refusal;

    #[test]
    fn a_kept_error_reads_as_the_first_one_did() {
        let causes = vec!["outer".to_owned(), "inner".to_owned()];
        let first =
            SandboxError::plugin("/x.so: broken").with_help("rebuild it").with_provider("x").with_causes(causes);
        let again = Refusal::from(&Refusal::from(&first).error()).error();
        assert_eq!((again.kind(), again.message()), (ErrorKind::Plugin, "/x.so: broken"));
        assert_eq!((again.help(), again.provider()), (Some("rebuild it"), Some("x")));
        assert_eq!(again.chain(), ["outer", "inner"]);
    }
}
