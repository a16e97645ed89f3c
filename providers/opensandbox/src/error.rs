//! How what a server answers, or does not answer, becomes an error of the contract.

use std::time::Duration;

use sandbox_core::{Admitted, ErrorKind, SandboxError};
use serde_json::Value;

/// The name of this provider.
pub(crate) const NAME: &str = "opensandbox";

/// So much of a body that nobody understands is shown.
const BODY_SHOWN_BYTES: usize = 1024;

/// Why a call did not work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No connection was made: nothing of the request has arrived.
    NeverReached(String),
    /// The connection broke after the request, or a part of it, had gone.
    Broke(String),
    /// No answer in time.
    TimedOut(Duration),
    /// An answer that says no.
    Refused(Refusal),
}

/// An answer that says no.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    /// `NAMESPACE::NAME`, where the answer has one.
    pub(crate) code: String,
    pub(crate) message: String,
    /// The field that was wrong, where it is told.
    pub(crate) field: Option<String>,
    pub(crate) retry_after: Option<Duration>,
}

impl Refusal {
    /// Reads the body of an error: ours, FastAPI's, the daemon's, or anybody's.
    pub(crate) fn read(status: u16, body: &[u8], retry_after: Option<Duration>) -> Self {
        let mut refusal = Self { status, retry_after, ..Self::default() };
        let Ok(value) = serde_json::from_slice::<Value>(body) else {
            let text = String::from_utf8_lossy(&body[..body.len().min(BODY_SHOWN_BYTES)]);
            refusal.message = text.split_whitespace().collect::<Vec<_>>().join(" ");
            return refusal;
        };
        let inner = if value["detail"].is_object() { &value["detail"] } else { &value };
        refusal.code = inner["code"].as_str().unwrap_or_default().to_owned();
        if let Some(text) = inner["message"].as_str().or(inner["error"].as_str()).or(value["detail"].as_str()) {
            refusal.message = text.chars().take(BODY_SHOWN_BYTES).collect();
        }
        if let Some(first) = value["detail"].as_array().and_then(|all| all.first()) {
            // What was sent stands in `input`, and stays there: it may hold secrets.
            let loc = first["loc"].as_array().into_iter().flatten().filter_map(Value::as_str);
            refusal.field = Some(loc.filter(|part| *part != "body" && *part != "query").collect::<Vec<_>>().join("."));
            refusal.message = first["msg"].as_str().unwrap_or("is not valid").to_owned();
        }
        refusal
    }

    fn has(&self, part: &str) -> bool {
        self.code.ends_with(part)
    }

    /// The server says that the sandbox itself is not there any more.
    pub(crate) fn is_gone(&self) -> bool {
        // A container that has exited has no address: the server says so with 500.
        self.has("SANDBOX_NOT_FOUND") || self.has("NETWORK_MODE_ENDPOINT_UNAVAILABLE")
    }

    /// A sandbox that is on its way has no address yet.
    pub(crate) fn is_not_yet(&self) -> bool {
        self.status == 404 && self.has("POD_IP_NOT_AVAILABLE")
    }

    /// The request has surely not reached the sandbox.
    pub(crate) fn is_unreached(&self) -> bool {
        self.status == 502 && self.has("BACKEND_CONNECTION_FAILED")
    }

    fn kind(&self) -> ErrorKind {
        match self.status {
            _ if self.is_gone() => ErrorKind::NotFound,
            _ if self.is_not_yet() || self.is_unreached() => ErrorKind::Unavailable,
            403 if self.has("QUOTA_EXCEEDED") => ErrorKind::Exhausted,
            401 => ErrorKind::Unauthorized,
            403 => ErrorKind::PermissionDenied,
            404 | 410 => ErrorKind::NotFound,
            408 => ErrorKind::TimedOut,
            409 | 425 => ErrorKind::InvalidState,
            429 | 507 => ErrorKind::Exhausted,
            501 => ErrorKind::Unsupported,
            503 => ErrorKind::Unavailable,
            400..=499 => ErrorKind::InvalidInput,
            502 | 504 => ErrorKind::Lost,
            _ => ErrorKind::Internal,
        }
    }

    fn error(&self, what: &str) -> SandboxError {
        let mut text = format!("{what}: the server answered {}", self.status);
        for part in [&self.code, &self.message].into_iter().filter(|part| !part.is_empty()) {
            text = format!("{text}: {part}");
        }
        let kind = self.kind();
        let mut error = match kind {
            ErrorKind::Lost => SandboxError::lost(text, Admitted::Unknown),
            kind => SandboxError::new(kind, text),
        };
        if let Some(field) = self.field.as_ref().filter(|_| kind == ErrorKind::InvalidInput) {
            error = error.with_field(field);
        }
        if let Some(delay) = self.retry_after {
            error = error.with_retry_after(delay);
        }
        match self.status {
            401 => error.with_help("set connection.api_key, or OPENSANDBOX_API_KEY"),
            _ => error,
        }
    }
}

impl Failure {
    /// As an error of the contract; `what` says what was tried.
    pub(crate) fn error(self, what: &str) -> SandboxError {
        let error = match self {
            Self::NeverReached(why) => SandboxError::unavailable(format!("{what}: {why}"))
                .with_help("is the server there? see connection.domain and connection.protocol"),
            Self::Broke(why) => SandboxError::lost(format!("{what}: the connection broke: {why}"), Admitted::Unknown),
            Self::TimedOut(time) => {
                SandboxError::timed_out(format!("{what}: no answer within {:.1} s", time.as_secs_f64()))
            }
            Self::Refused(refusal) => refusal.error(what),
        };
        error.with_provider(NAME)
    }

    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    pub(crate) fn status(&self) -> u16 {
        self.refusal().map_or(0, |refusal| refusal.status)
    }
}

/// Text that may go into an error: one line, not too long.
pub(crate) fn short(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(BODY_SHOWN_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;

    use super::{Failure, Refusal};

    fn kind(status: u16, body: &str) -> ErrorKind {
        Failure::Refused(Refusal::read(status, body.as_bytes(), None)).error("x").kind()
    }

    #[test]
    fn every_form_of_an_error_gets_its_kind() {
        let code = |code: &str| format!("{{\"code\":\"{code}\",\"message\":\"m\"}}");
        for (status, body, expected) in [
            (401, code("INVALID_API_KEY"), ErrorKind::Unauthorized),
            (403, code("KUBERNETES::QUOTA_EXCEEDED"), ErrorKind::Exhausted),
            (403, code("X"), ErrorKind::PermissionDenied),
            (404, code("DOCKER::SANDBOX_NOT_FOUND"), ErrorKind::NotFound),
            (404, code("KUBERNETES::POD_IP_NOT_AVAILABLE"), ErrorKind::Unavailable),
            (404, "404 page not found".to_owned(), ErrorKind::NotFound),
            (409, code("DOCKER::SANDBOX_NOT_RUNNING"), ErrorKind::InvalidState),
            (413, "<html>".to_owned(), ErrorKind::InvalidInput),
            (422, "{\"detail\":[{\"loc\":[\"body\",\"timeout\"],\"msg\":\"m\"}]}".to_owned(), ErrorKind::InvalidInput),
            (429, code("KUBERNETES::POOL_CAPACITY_EXHAUSTED"), ErrorKind::Exhausted),
            (500, code("DOCKER::NETWORK_MODE_ENDPOINT_UNAVAILABLE"), ErrorKind::NotFound),
            (500, code("GENERAL::UNKNOWN_ERROR"), ErrorKind::Internal),
            (501, String::new(), ErrorKind::Unsupported),
            (502, code("BACKEND_CONNECTION_FAILED"), ErrorKind::Unavailable),
            (502, code("BACKEND_RESPONSE_FAILED"), ErrorKind::Lost),
            (503, "<html>busy</html>".to_owned(), ErrorKind::Unavailable),
            (504, code("BACKEND_TIMEOUT"), ErrorKind::Lost),
        ] {
            assert_eq!(kind(status, &body), expected, "{status} {body}");
        }
    }

    #[test]
    fn the_field_is_named_and_what_was_sent_is_not() {
        let body = "{\"detail\":[{\"loc\":[\"body\",\"timeout\"],\"msg\":\"too small\",\"input\":\"canary\"}]}";
        let error = Failure::Refused(Refusal::read(422, body.as_bytes(), None)).error("create");
        assert_eq!(error.field(), Some("timeout"));
        assert!(error.to_string().contains("too small") && !error.to_string().contains("canary"), "{error}");
    }

    #[test]
    fn a_page_of_somebody_else_is_shown_in_one_line_of_at_most_1_kib() {
        let page = format!("<html>\n{}</html>", "x\n".repeat(5000));
        let error = Failure::Refused(Refusal::read(500, page.as_bytes(), None)).error("x");
        assert!(error.to_string().len() < 1200 && !error.to_string().contains('\n'));
    }

    #[test]
    fn an_error_in_a_detail_is_read_too() {
        let refusal = Refusal::read(404, b"{\"detail\":{\"code\":\"A::B\",\"message\":\"m\"}}", None);
        assert_eq!((refusal.code.as_str(), refusal.message.as_str()), ("A::B", "m"));
    }
}
