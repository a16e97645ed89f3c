//! How failures of the service become errors of the contract.

use std::time::Duration;

use sandbox_core::{Admitted, ErrorKind, SandboxError};

/// The name of this provider.
pub(crate) const NAME: &str = "daytona";

/// How much of what the service says goes into an error, in characters.
const SAID: usize = 300;

/// What became of a request that did not succeed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Nothing was sent: the service was not reached.
    NotSent(String),
    /// It was sent, or part of it, and no whole answer came.
    Broken(String),
    /// No answer in time.
    TimedOut,
    /// The service asks for patience, longer than the caller has.
    Throttled(Duration),
    /// The service refused.
    Refused(Refusal),
}

/// A refusal as the service words it.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) code: String,
    /// None from the toolbox: it may repeat what was asked.
    pub(crate) message: Option<String>,
}

impl Failure {
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused(refusal) => Some(refusal.status),
            _ => None,
        }
    }

    /// Whether the service may have done what was asked, or may still do it.
    pub(crate) fn is_ambiguous(&self) -> bool {
        match self {
            Self::Broken(_) | Self::TimedOut => true,
            Self::Refused(refusal) => refusal.status >= 500 || refusal.status == 408,
            Self::NotSent(_) | Self::Throttled(_) => false,
        }
    }

    /// Whether the same request may succeed soon.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::Broken(_) | Self::TimedOut => true,
            Self::Refused(refusal) => matches!(refusal.status, 408 | 425 | 500 | 502 | 503 | 504),
            Self::Throttled(_) => false,
        }
    }

    /// The error of a request that changes nothing by being repeated.
    pub(crate) fn into_error(self, what: &str) -> SandboxError {
        let error = match self {
            Self::NotSent(cause) => SandboxError::unavailable(format!("{what}: the service was not reached: {cause}")),
            Self::Broken(cause) => {
                SandboxError::lost(format!("{what}: the connection broke: {cause}"), Admitted::Unknown)
            }
            Self::TimedOut => SandboxError::timed_out(format!("{what}: the service did not answer in time")),
            Self::Throttled(delay) => {
                SandboxError::exhausted(format!("{what}: the service limits the rate of requests"))
                    .with_retry_after(delay)
            }
            Self::Refused(refusal) => refusal.into_error(what),
        };
        error.with_provider(NAME)
    }
}

impl Refusal {
    /// Whether a quota is the reason: the service words it as a bad request.
    fn is_quota(&self) -> bool {
        let message = self.message.as_deref().unwrap_or_default().to_ascii_lowercase();
        ["limit exceeded", "exceeds maximum", "quota", "no available runners"].iter().any(|part| message.contains(part))
    }

    fn into_error(self, what: &str) -> SandboxError {
        let said = match &self.message {
            Some(message) => format!(": {}", message.chars().take(SAID).collect::<String>()),
            None if self.code.is_empty() => String::new(),
            None => format!(" ({})", self.code.chars().take(64).collect::<String>()),
        };
        let text = format!("{what}: the service answered {}{said}", self.status);
        match self.status {
            401 | 403 => {
                SandboxError::unauthorized(text).with_help("check connection.api_key, or the variable DAYTONA_API_KEY")
            }
            404 => SandboxError::not_found(text),
            408 => SandboxError::timed_out(text),
            409 => SandboxError::invalid_state(text),
            410 => SandboxError::invalid_state(text),
            422 => SandboxError::new(ErrorKind::Unsupported, text),
            429 => SandboxError::exhausted(text),
            400 if self.is_quota() => SandboxError::exhausted(text),
            400 => SandboxError::new(ErrorKind::InvalidInput, text),
            500.. => SandboxError::lost(text, Admitted::Unknown),
            _ => SandboxError::internal(text),
        }
    }
}

/// The refusal of a handle that is not ours.
pub(crate) fn foreign(id: &str, provider: &str) -> SandboxError {
    SandboxError::not_found(format!("sandbox {id} belongs to provider {provider:?}")).with_provider(NAME)
}

/// The refusal of a sandbox that is gone.
pub(crate) fn gone(id: &str) -> SandboxError {
    SandboxError::not_found(format!("sandbox {id} is gone")).with_provider(NAME)
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;

    use super::{Failure, Refusal};

    #[test]
    fn f03_each_status_has_its_kind() {
        for (status, message, kind) in [
            (400, "bad", ErrorKind::InvalidInput),
            (400, "Total disk limit exceeded", ErrorKind::Exhausted),
            (401, "x", ErrorKind::Unauthorized),
            (403, "x", ErrorKind::Unauthorized),
            (404, "x", ErrorKind::NotFound),
            (408, "x", ErrorKind::TimedOut),
            (409, "x", ErrorKind::InvalidState),
            (422, "x", ErrorKind::Unsupported),
            (429, "x", ErrorKind::Exhausted),
            (502, "<html>", ErrorKind::Lost),
            (413, "x", ErrorKind::Internal),
        ] {
            let refusal = Refusal { status, code: String::new(), message: Some(message.to_owned()) };
            let failure = Failure::Refused(refusal);
            assert_eq!(failure.is_transient(), matches!(status, 408 | 502), "{status}");
            assert_eq!(failure.into_error("x").kind(), kind, "{status}");
        }
    }
}
