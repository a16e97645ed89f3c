//! What a refusal of AWS means: by its code, by its words, by its status.

use sandbox_core::{Admitted, ErrorKind, SandboxError};
use serde_json::Value;

use super::xml;

/// A request that was answered with a refusal, or not at all.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) action: String,
    /// 0: there was no answer.
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) message: String,
}

/// What can be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Too fast: the same later, and everybody slower.
    Throttle,
    /// It may pass: the same again.
    Transient,
    /// Another place may have room.
    Capacity,
    /// The credentials are old.
    Expired,
    /// The same again fails again.
    Fatal,
}

const THROTTLES: [&str; 8] = [
    "ThrottlingException",
    "Throttling",
    "ThrottledException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "SlowDown",
    "BandwidthLimitExceeded",
];
const TRANSIENTS: [&str; 6] = [
    "ServerException",
    "InternalFailure",
    "InternalError",
    "InternalServerError",
    "ServiceUnavailable",
    "ServiceUnavailableException",
];
const EXPIRED: [&str; 4] = ["ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"];

/// Sorts the words of a refusal: throttling comes under the names of other errors, too.
pub(crate) fn by_words(message: &str) -> Option<Class> {
    let text = message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["rate exceeded", "throttl", "too many requests", "request limit exceeded", "too many concurrent"]) {
        return Some(Class::Throttle);
    }
    if says(&["capacity is unavailable", "insufficient capacity", "resource:eni"]) {
        return Some(Class::Capacity);
    }
    if says(&["timeout waiting for network interface", "network interface provisioning"]) {
        return Some(Class::Transient);
    }
    None
}

impl Failure {
    /// Nothing came back.
    pub(crate) fn unanswered(action: &str, message: impl Into<String>) -> Self {
        Self { action: action.to_owned(), status: 0, code: String::new(), message: message.into() }
    }

    /// Reads a refusal, JSON or XML.
    pub(crate) fn read(action: &str, status: u16, kind_header: Option<&str>, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(&body[..body.len().min(4096)]);
        let json: Value = serde_json::from_slice(body).unwrap_or_default();
        let word = |keys: &[&str]| keys.iter().find_map(|key| json.get(key)).and_then(Value::as_str).map(str::to_owned);
        let code = word(&["__type", "code", "Code"]).or_else(|| xml::text(&text, "Code").map(str::to_owned));
        let code = code.or_else(|| kind_header.map(str::to_owned)).unwrap_or_default();
        // `com.amazonaws.ecs#ClientException`, `ClientException:http://…`
        let code = code.rsplit('#').next().unwrap_or_default().split(':').next().unwrap_or_default().to_owned();
        let message = word(&["message", "Message"]).or_else(|| xml::text(&text, "Message").map(str::to_owned));
        Self { action: action.to_owned(), status, code, message: message.unwrap_or_default() }
    }

    pub(crate) fn class(&self) -> Class {
        let is = |list: &[&str]| list.contains(&self.code.as_str());
        if is(&THROTTLES) || self.status == 429 {
            return Class::Throttle;
        }
        if let Some(class) = by_words(&self.message) {
            return class;
        }
        if is(&EXPIRED) {
            return Class::Expired;
        }
        match self.status {
            0 => Class::Transient,
            _ if is(&TRANSIENTS) => Class::Transient,
            500.. => Class::Transient,
            _ => Class::Fatal,
        }
    }

    /// As an error of the contract.
    pub(crate) fn into_error(self) -> SandboxError {
        let shown = match (self.code.as_str(), self.message.trim()) {
            ("", "") => format!("status {}", self.status),
            ("", message) => message.to_owned(),
            (code, "") => code.to_owned(),
            (code, message) => format!("{message} ({code})"),
        };
        let text = format!("{}: {}", self.action, one_line(&shown));
        let code = self.code.as_str();
        let has = |part: &str| code.contains(part);
        match self.class() {
            Class::Throttle | Class::Capacity => return SandboxError::exhausted(text),
            Class::Transient if self.status == 0 => return SandboxError::lost(text, Admitted::Unknown),
            Class::Transient => return SandboxError::unavailable(text),
            Class::Expired => {
                return SandboxError::unauthorized(text).with_help("the credentials have expired: get new ones");
            }
            Class::Fatal => {}
        }
        if has("AccessDenied") || code == "UnauthorizedOperation" {
            return SandboxError::permission_denied(text)
                .with_help("see which rights are needed: the example fargate-policy prints them");
        }
        if ["UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch"]
            .contains(&code)
            || has("AuthFailure")
            || has("MissingAuthenticationToken")
            || has("IncompleteSignature")
        {
            return SandboxError::unauthorized(text).with_help("check the access key, and this machine's clock");
        }
        match code {
            "ClusterNotFoundException" => SandboxError::not_found(text).with_field("cluster"),
            "NoSuchBucket" => SandboxError::not_found(text).with_field("s3_bucket"),
            "ResourceNotFoundException" | "ParameterNotFound" | "NoSuchKey" => SandboxError::not_found(text),
            "LimitExceededException" => SandboxError::exhausted(text),
            _ if has("InvalidParameter") || has("ClientException") || has("ValidationException") => {
                SandboxError::new(ErrorKind::InvalidInput, text)
            }
            _ => SandboxError::internal(text),
        }
    }
}

/// What AWS said, as one line of bounded length.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().take(400).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;

    use super::{Class, Failure};

    fn json(status: u16, body: &str) -> Failure {
        Failure::read("RunTask", status, None, body.as_bytes())
    }

    #[test]
    fn f06_throttling_is_seen_whatever_name_it_comes_under() {
        for body in [
            r#"{"__type":"ThrottlingException","message":""}"#,
            r#"{"__type":"com.amazonaws.ecs#ThrottlingException"}"#,
            r#"{"__type":"InvalidParameterException","message":"Error: Rate exceeded (ErrorCode: Throttling)"}"#,
            r#"{"__type":"ClientException","message":"Too many concurrent attempts to create a new revision"}"#,
        ] {
            let failure = json(400, body);
            assert_eq!(failure.class(), Class::Throttle, "{body}");
            assert_eq!(failure.into_error().kind(), ErrorKind::Exhausted, "{body}");
        }
        assert_eq!(json(429, "").class(), Class::Throttle);
    }

    #[test]
    fn the_rest_is_sorted_by_what_can_be_done_about_it() {
        let capacity = r#"{"__type":"InvalidParameterException","message":"Capacity is unavailable at this time."}"#;
        let xml = "<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>no</Message></Error></Errors></Response>";
        for (status, body, class, kind) in [
            (400, capacity, Class::Capacity, ErrorKind::Exhausted),
            (500, "<html>", Class::Transient, ErrorKind::Unavailable),
            (400, r#"{"__type":"ServerException"}"#, Class::Transient, ErrorKind::Unavailable),
            (400, r#"{"__type":"ExpiredTokenException"}"#, Class::Expired, ErrorKind::Unauthorized),
            (400, r#"{"__type":"AccessDeniedException","Message":"no"}"#, Class::Fatal, ErrorKind::PermissionDenied),
            (403, xml, Class::Fatal, ErrorKind::PermissionDenied),
            (403, r#"{"__type":"UnrecognizedClientException"}"#, Class::Fatal, ErrorKind::Unauthorized),
            (400, r#"{"__type":"ClusterNotFoundException"}"#, Class::Fatal, ErrorKind::NotFound),
            (400, r#"{"__type":"InvalidParameterException","message":"bad"}"#, Class::Fatal, ErrorKind::InvalidInput),
        ] {
            let failure = json(status, body);
            assert_eq!(failure.class(), class, "{body}");
            assert_eq!(failure.into_error().kind(), kind, "{body}");
        }
        let lost = Failure::unanswered("RunTask", "reset");
        assert_eq!((lost.class(), lost.into_error().kind()), (Class::Transient, ErrorKind::Lost));
    }

    #[test]
    fn what_aws_says_stays_one_line_of_bounded_length() {
        let long = format!(r#"{{"__type":"X","message":"a\nb{}"}}"#, "c".repeat(5000));
        let text = json(400, &long).into_error().to_string();
        assert!(!text.contains('\n') && text.len() < 500, "{text}");
    }
}
