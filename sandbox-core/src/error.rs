//! The one error type of the contract.

use std::{error::Error, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Capability, cause::Cause};

/// What callers of the contract get.
pub type Result<T, E = SandboxError> = std::result::Result<T, E>;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal;)*) => {
        /// What a caller can act on.
        ///
        /// The numbers travel over the ABI and never change their meaning; a number that this side does not know
        /// reads as [`ErrorKind::Unknown`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $variant,)*
        }

        impl ErrorKind {
            /// Every kind.
            pub const ALL: &[ErrorKind] = &[$(ErrorKind::$variant),*];

            /// The number on the wire.
            pub const fn code(self) -> u32 {
                match self { $(Self::$variant => $code),* }
            }

            /// The kind for a number on the wire.
            pub const fn from_code(code: u32) -> Self {
                match code { $($code => Self::$variant,)* _ => Self::Unknown }
            }

            /// The stable name, for machines: `invalid_input`, `not_found`, ….
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

kinds! {
    /// A newer peer reported a kind that this side does not know.
    Unknown = 0, "unknown";
    /// A value is wrong; `field()` names it. Retrying changes nothing.
    InvalidInput = 1, "invalid_input";
    /// The sandbox, file, session, provider or image does not exist.
    NotFound = 2, "not_found";
    /// The name is taken.
    AlreadyExists = 3, "already_exists";
    /// The provider lacks the capability, or cannot honour the field.
    Unsupported = 4, "unsupported";
    /// Credentials are missing or were refused.
    Unauthorized = 5, "unauthorized";
    /// A rate, quota, space or capacity limit; may carry `retry_after()`.
    Exhausted = 6, "exhausted";
    /// The backend was never reached: nothing has happened, so a retry is safe.
    Unavailable = 7, "unavailable";
    /// A control call ran out of time. (A command that does so is a result, not an error.)
    TimedOut = 8, "timed_out";
    /// The work may have run, and its outcome is unknown; `admitted()` says what is known. Never retried for the caller.
    Lost = 9, "lost";
    /// The sandbox could not be made.
    Create = 10, "create";
    /// The sandbox was made, but did not become usable, and was removed.
    CreateVerification = 11, "create_verification";
    /// A terminal session broke for another reason than its process ending.
    Pty = 12, "pty";
    /// A plugin could not be loaded or broke the ABI.
    Plugin = 13, "plugin";
    /// A bug, or a panic inside a provider.
    Internal = 14, "internal";
    /// The object is not in a state that allows the call: not started, already stopped, paused.
    InvalidState = 15, "invalid_state";
    /// The path or operation exists but is not allowed to this user.
    PermissionDenied = 16, "permission_denied";
}

impl ErrorKind {
    /// Whether repeating the same call may succeed without doing anything twice.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Exhausted | Self::Unavailable)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the backend took the work on before contact was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admitted {
    /// It did.
    Yes,
    /// It did not.
    No,
    /// Nobody can tell.
    Unknown,
}

/// What can go wrong with a sandbox.
///
/// `Display` is one line in lower case that says what failed; `help()` says what to do about it. Neither holds a
/// command, an environment value, file contents or a credential.
pub struct SandboxError(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    detail: ErrorDetail,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// The optional parts of an error, as they travel in JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ErrorDetail {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capability: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) help: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admitted: Option<Admitted>,
    /// Filled on the way over only; an error itself has its causes as sources.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) chain: Vec<String>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(ErrorKind::$kind, message)
        })*
    };
}

impl SandboxError {
    /// An error of this kind. The message is one lower-case line.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::from_parts(kind, message.into(), ErrorDetail::default())
    }

    constructors! {
        /// The sandbox, file, session, provider or image does not exist.
        not_found => NotFound;
        /// The name is taken.
        already_exists => AlreadyExists;
        /// Credentials are missing or were refused.
        unauthorized => Unauthorized;
        /// A rate, quota, space or capacity limit.
        exhausted => Exhausted;
        /// The backend was never reached.
        unavailable => Unavailable;
        /// A control call ran out of time.
        timed_out => TimedOut;
        /// The sandbox could not be made.
        create => Create;
        /// The sandbox was made but did not become usable.
        create_verification => CreateVerification;
        /// A terminal session broke.
        pty => Pty;
        /// A plugin could not be loaded or broke the ABI.
        plugin => Plugin;
        /// A bug, or a panic inside a provider.
        internal => Internal;
        /// The object is not in a state that allows the call.
        invalid_state => InvalidState;
        /// Not allowed to this user.
        permission_denied => PermissionDenied;
    }

    /// A value is wrong. `field` is its path: `resources.cpu`, `env.PATH`, `command[2]`.
    pub fn invalid_input(field: impl Into<String>, message: impl Into<String>) -> Self {
        let field = field.into();
        let message = format!("{field}: {}", message.into());
        Self::new(ErrorKind::InvalidInput, message).with_field(field)
    }

    /// The provider does not have a capability.
    pub fn unsupported(provider: impl Into<String>, capability: Capability) -> Self {
        let provider = provider.into();
        let mut error =
            Self::new(ErrorKind::Unsupported, format!("provider {provider:?} does not support {}", capability.label()));
        error.0.detail.capability = Some(capability.wire_name().to_owned());
        error.with_provider(provider)
    }

    /// The provider cannot honour a field; `reason` says why.
    pub fn unsupported_field(provider: impl Into<String>, field: impl Into<String>, reason: impl fmt::Display) -> Self {
        let (provider, field) = (provider.into(), field.into());
        Self::new(ErrorKind::Unsupported, format!("provider {provider:?} cannot honour {field}: {reason}"))
            .with_field(field)
            .with_provider(provider)
    }

    /// The work may have run and its outcome is unknown.
    pub fn lost(message: impl Into<String>, admitted: Admitted) -> Self {
        let mut error = Self::new(ErrorKind::Lost, message);
        error.0.detail.admitted = Some(admitted);
        error
    }

    /// A panic inside a provider, with its text.
    pub(crate) fn panicked(payload: Box<dyn std::any::Any + Send>) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        // Dropping a payload may panic itself.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(payload)));
        Self::internal(format!("the provider panicked: {text}"))
    }

    /// An operating-system error about `path` or another named thing, sorted into the right kind.
    pub fn io(what: impl fmt::Display, error: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::NotFound | Io::NotADirectory => ErrorKind::NotFound,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
            Io::AlreadyExists | Io::DirectoryNotEmpty => ErrorKind::AlreadyExists,
            Io::IsADirectory | Io::InvalidInput | Io::InvalidFilename => ErrorKind::InvalidInput,
            Io::StorageFull | Io::QuotaExceeded | Io::OutOfMemory | Io::FileTooLarge => ErrorKind::Exhausted,
            Io::ConnectionRefused | Io::HostUnreachable | Io::NetworkUnreachable => ErrorKind::Unavailable,
            Io::TimedOut => ErrorKind::TimedOut,
            _ => match error.raw_os_error() {
                // ENFILE, EMFILE and ELOOP have no stable kind of their own.
                Some(23 | 24) => ErrorKind::Exhausted,
                Some(40) => ErrorKind::InvalidInput,
                _ => ErrorKind::Internal,
            },
        };
        Self::new(kind, format!("{what}: {error}")).with_source(error)
    }

    /// Names the wrong field.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.0.detail.field = Some(field.into());
        self
    }

    /// Names the provider that the error came from, unless one is named already.
    #[must_use]
    pub fn with_provider(mut self, provider: impl Into<String>) -> Self {
        self.0.detail.provider.get_or_insert_with(|| provider.into());
        self
    }

    /// Says what to do: one line, best a command that can be run.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.0.detail.help = Some(help.into());
        self
    }

    /// Says when a retry may succeed.
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.0.detail.retry_after_s = Some(delay.as_secs_f64());
        self
    }

    /// Keeps the cause. Its text is the next line of the chain, never repeated in `Display`.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// Keeps causes of which only the texts are left, nearest first: those of an error that was told elsewhere.
    #[must_use]
    pub fn with_causes(mut self, texts: Vec<String>) -> Self {
        if let Some(cause) = Cause::chain(texts) {
            self.0.source = Some(cause);
        }
        self
    }

    /// The same error under another kind (a create step that failed is a create error).
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Puts a prefix in front of the message.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// What a caller can act on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The line that `Display` shows.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether repeating the call may succeed without doing anything twice: a function of the kind.
    pub fn is_retryable(&self) -> bool {
        self.0.kind.is_retryable()
    }

    /// The wrong field, if there is one.
    pub fn field(&self) -> Option<&str> {
        self.0.detail.field.as_deref()
    }

    /// The provider that the error came from.
    pub fn provider(&self) -> Option<&str> {
        self.0.detail.provider.as_deref()
    }

    /// The missing capability on the wire (`sandbox.pty/1`), for `Unsupported`.
    pub fn capability(&self) -> Option<&str> {
        self.0.detail.capability.as_deref()
    }

    /// What to do about it.
    pub fn help(&self) -> Option<&str> {
        self.0.detail.help.as_deref()
    }

    /// When a retry may succeed, for `Exhausted`.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.detail.retry_after_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// What is known of the work, for `Lost`.
    pub fn admitted(&self) -> Option<Admitted> {
        self.0.detail.admitted
    }

    /// The texts of the causes, nearest first.
    pub fn chain(&self) -> Vec<String> {
        let mut texts = Vec::new();
        let mut next = self.source();
        while let Some(error) = next {
            texts.push(error.to_string());
            next = error.source();
        }
        // A cause that the message ends with already says nothing new.
        texts.retain(|text| !self.0.message.ends_with(text.as_str()));
        texts
    }

    #[cfg(feature = "abi")]
    pub(crate) fn detail(&self) -> ErrorDetail {
        let mut detail = self.0.detail.clone();
        detail.chain = self.chain();
        detail
    }

    pub(crate) fn from_parts(kind: ErrorKind, message: String, mut detail: ErrorDetail) -> Self {
        let message = message.replace(['\n', '\r'], " ");
        let causes = std::mem::take(&mut detail.chain);
        Self(Box::new(Inner { kind, message, detail, source: None })).with_causes(causes)
    }
}

impl fmt::Display for SandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for SandboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)?;
        for cause in self.chain() {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}

impl Error for SandboxError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorKind, SandboxError};

    #[test]
    fn every_kind_has_its_own_number_and_name_and_comes_back_from_it() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), *kind);
            assert_eq!(ErrorKind::ALL.iter().filter(|other| other.as_str() == kind.as_str()).count(), 1);
        }
        assert_eq!(ErrorKind::from_code(9_999), ErrorKind::Unknown);
    }

    #[test]
    fn the_message_is_one_line_and_the_chain_does_not_repeat_it() {
        let error = SandboxError::io("/a/b", std::io::Error::from_raw_os_error(2));
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.chain().is_empty(), "{:?}", error.chain());
        assert!(!SandboxError::internal("a\nb").to_string().contains('\n'));
    }

    #[test]
    fn only_errors_that_did_nothing_are_retryable() {
        let retryable: Vec<_> = ErrorKind::ALL.iter().filter(|kind| kind.is_retryable()).collect();
        assert_eq!(retryable, [&ErrorKind::Exhausted, &ErrorKind::Unavailable]);
    }
}
