//! Why a plugin was refused: made once, told as often as somebody asks.

use std::{error::Error, fmt};

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
        match Cause::chain(&self.causes) {
            Some(cause) => error.with_source(cause),
            None => error,
        }
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

/// A cause of which only the text is left.
#[derive(Debug)]
pub(crate) struct Cause {
    text: String,
    next: Option<Box<Cause>>,
}

impl Cause {
    /// The causes, nearest first, as a chain.
    pub(crate) fn chain(texts: &[String]) -> Option<Self> {
        let (text, rest) = texts.split_first()?;
        Some(Self { text: text.clone(), next: Self::chain(rest).map(Box::new) })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.next.as_deref().map(|next| next as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, SandboxError};

    use super::{Cause, Refusal};

    #[test]
    fn a_kept_error_reads_as_the_first_one_did() {
        let cause = Cause::chain(&["outer".to_owned(), "inner".to_owned()]).unwrap();
        let first = SandboxError::plugin("/x.so: broken").with_help("rebuild it").with_provider("x").with_source(cause);
        let again = Refusal::from(&Refusal::from(&first).error()).error();
        assert_eq!((again.kind(), again.message()), (ErrorKind::Plugin, "/x.so: broken"));
        assert_eq!((again.help(), again.provider()), (Some("rebuild it"), Some("x")));
        assert_eq!(again.chain(), ["outer", "inner"]);
    }
}
