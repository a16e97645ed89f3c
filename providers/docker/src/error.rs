//! How failures of the engine become errors of the contract. Texts are the engine's own, never those of a program.

use std::error::Error as _;

use bollard::errors::Error;
use sandbox_core::{ErrorKind, SandboxError};

/// The name of this provider.
pub(crate) const NAME: &str = "docker";

/// What a call of the engine failed with. `what` says what was tried, in lower case.
pub(crate) fn engine(what: &str, error: Error) -> SandboxError {
    let (kind, text) = match &error {
        Error::DockerResponseServerError { status_code, message } => (kind_of(*status_code, message), message.clone()),
        Error::DockerStreamError { error } => (kind_of(500, error), error.clone()),
        Error::RequestTimeoutError => (ErrorKind::TimedOut, "the engine did not answer in time".to_owned()),
        Error::SocketNotFoundError(path) => (ErrorKind::Unavailable, format!("there is no socket {path}")),
        error => match transport(error) {
            Some(kind) => (kind, innermost(error)),
            None => (ErrorKind::Internal, innermost(error)),
        },
    };
    let text = text.trim().trim_end_matches('.');
    let certificate = certificate_help(&error);
    let wants_tls = text.contains("HTTP request to an HTTPS server");
    let kind = if certificate.is_some() || wants_tls { ErrorKind::Unauthorized } else { kind };
    let refused = SandboxError::new(kind, format!("{what}: {text}")).with_provider(NAME).with_source(error);
    match kind {
        _ if wants_tls => refused.with_help(
            "set tls, or DOCKER_TLS_VERIFY and DOCKER_CERT_PATH: the engine takes clients with certificates",
        ),
        _ if certificate.is_some() => refused.with_help(certificate.unwrap_or_default()),
        ErrorKind::Unavailable => refused.with_help("is the engine running? see: docker info; or set host"),
        ErrorKind::PermissionDenied => {
            refused.with_help("this user may not use the engine's socket: join its group, or run as root")
        }
        _ => refused,
    }
}

/// True if the engine says that there is no such thing.
pub(crate) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}

/// True if the engine says that something is in the way: a name is taken, a removal is under way.
pub(crate) fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 409, .. })
}

/// True if an image that was there is there no more.
pub(crate) fn is_missing_image(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, message }
        if message.to_ascii_lowercase().contains("no such image"))
}

/// True if another container has the name.
pub(crate) fn is_name_taken(error: &Error) -> bool {
    let says = |message: &str| ["already in use", "already exists"].iter().any(|words| message.contains(words));
    is_conflict(error) && matches!(error, Error::DockerResponseServerError { message, .. } if says(message))
}

fn kind_of(status: u16, message: &str) -> ErrorKind {
    let text = message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["no space left on device", "disk quota exceeded"]) {
        return ErrorKind::Exhausted;
    }
    match status {
        400 | 422 => ErrorKind::InvalidInput,
        401 => ErrorKind::Unauthorized,
        403 => ErrorKind::PermissionDenied,
        404 => ErrorKind::NotFound,
        409 => ErrorKind::InvalidState,
        429 => ErrorKind::Exhausted,
        503 => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}

/// Where a walk through the causes begins: these show themselves as their cause, and would hide it.
fn first_cause(error: &Error) -> Option<&(dyn std::error::Error + 'static)> {
    match error {
        Error::IOError { err } => Some(err),
        Error::HyperResponseError { err } => Some(err),
        Error::HyperLegacyError { err } => Some(err),
        error => Some(error),
    }
}

/// Whether it is the connection that failed, and how.
fn transport(error: &Error) -> Option<ErrorKind> {
    let mut next = first_cause(error);
    let mut found = None;
    while let Some(cause) = next {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return Some(match io.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                std::io::ErrorKind::NotFound
                | std::io::ErrorKind::ConnectionRefused
                | std::io::ErrorKind::HostUnreachable
                | std::io::ErrorKind::NetworkUnreachable => ErrorKind::Unavailable,
                // The request may have arrived.
                _ => ErrorKind::Lost,
            });
        }
        if cause.to_string().contains("client error (Connect)") {
            found = Some(ErrorKind::Unavailable);
        }
        next = cause.source();
    }
    match error {
        Error::HyperResponseError { .. } | Error::HyperLegacyError { .. } => found.or(Some(ErrorKind::Lost)),
        _ => found,
    }
}

/// What to do about a certificate that one side refused.
fn certificate_help(error: &Error) -> Option<&'static str> {
    let mut next = first_cause(error);
    while let Some(cause) = next {
        match cause.downcast_ref::<rustls::Error>() {
            Some(rustls::Error::InvalidCertificate(_)) => {
                return Some("the engine's certificate is not one that tls.ca vouches for, for this host");
            }
            Some(rustls::Error::AlertReceived(_)) => {
                return Some("the engine refused tls.cert: it must be of the authority that the engine trusts");
            }
            // An error of the system hides what it is made of from a walk.
            _ => match cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
                Some(inner) => next = Some(inner),
                None => next = cause.source(),
            },
        }
    }
    None
}

fn innermost(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = cause.to_string();
        next = cause.source();
    }
    text
}

/// A step of a creation that failed: what the caller can act on stays, the rest is a create error.
pub(crate) fn as_create(error: SandboxError) -> SandboxError {
    match error.kind() {
        ErrorKind::Internal | ErrorKind::InvalidState | ErrorKind::Lost => error.with_kind(ErrorKind::Create),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use bollard::errors::Error;
    use sandbox_core::ErrorKind;

    use super::{engine, is_missing, is_missing_image, is_name_taken};

    fn answer(status_code: u16, message: &str) -> Error {
        Error::DockerResponseServerError { status_code, message: message.to_owned() }
    }

    #[test]
    fn answers_of_the_engine_have_the_kind_that_a_caller_can_act_on() {
        for (status, text, kind) in [
            (404, "No such container: x", ErrorKind::NotFound),
            (409, "Conflict.", ErrorKind::InvalidState),
            (400, "bad parameter", ErrorKind::InvalidInput),
            (500, "write /x: no space left on device", ErrorKind::Exhausted),
            (500, "oops", ErrorKind::Internal),
        ] {
            let error = engine("creating the container", answer(status, text));
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().starts_with("creating the container: "), "{error}");
        }
        assert!(is_missing(&answer(404, "")) && !is_missing(&answer(500, "")));
        assert!(is_missing_image(&answer(404, "No such image: sha256:12")));
        assert!(!is_missing_image(&answer(404, "No such container: x")));
        assert!(is_name_taken(&answer(
            409,
            "Conflict. The container name \"/x\" is already in use by container \"y\"."
        )));
        assert!(!is_name_taken(&answer(409, "removal of container x is already in progress")));
    }

    #[test]
    fn an_engine_that_is_not_there_is_unavailable_and_one_that_refuses_us_is_named() {
        let missing = Error::SocketNotFoundError("/x/docker.sock".to_owned());
        let error = engine("asking", missing);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.help().unwrap().contains("docker info"), "{:?}", error.help());
        let denied = Error::from(std::io::Error::from_raw_os_error(13));
        assert_eq!(engine("asking", denied).kind(), ErrorKind::PermissionDenied);
        let broken = Error::from(std::io::Error::from_raw_os_error(104));
        assert_eq!(engine("asking", broken).kind(), ErrorKind::Lost);
    }
}
