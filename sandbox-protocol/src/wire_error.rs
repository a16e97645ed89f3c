//! Errors on the wire: kind, message and detail, as over the ABI.

use std::time::Duration;

use sandbox_core::{Admitted, Capability, ErrorKind, SandboxError};
use serde::{Deserialize, Serialize};

/// How much of a message or a detail of the peer is kept, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// How many causes of the peer are kept.
const MAX_CAUSES: usize = 16;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WireError {
    kind: u32,
    message: String,
    detail: Detail,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Detail {
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capability: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admitted: Option<Admitted>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    chain: Vec<String>,
}

impl From<&SandboxError> for WireError {
    fn from(error: &SandboxError) -> Self {
        let text = |text: &str| clip(text.to_owned());
        Self {
            kind: error.kind().code(),
            message: text(error.message()),
            detail: Detail {
                provider: error.provider().map(text),
                field: error.field().map(text),
                capability: error.capability().map(text),
                help: error.help().map(text),
                retry_after_s: error.retry_after().map(|delay| delay.as_secs_f64()),
                admitted: error.admitted(),
                chain: error.chain().into_iter().take(MAX_CAUSES).map(clip).collect(),
            },
        }
    }
}

impl From<WireError> for SandboxError {
    fn from(wire: WireError) -> Self {
        let (kind, message, detail) = (ErrorKind::from_code(wire.kind), clip(wire.message), wire.detail);
        let mut error = match (detail.admitted, detail.capability.as_deref().and_then(Capability::from_wire_name)) {
            (Some(admitted), _) => Self::lost(message, admitted).with_kind(kind),
            // Core sets a capability only together with its own text.
            (None, Some(capability)) => {
                let whole = Self::unsupported(detail.provider.clone().unwrap_or_default(), capability);
                if whole.message() == message { whole.with_kind(kind) } else { Self::new(kind, message) }
            }
            (None, None) => Self::new(kind, message),
        };
        if let Some(provider) = detail.provider {
            error = error.with_provider(clip(provider));
        }
        if let Some(field) = detail.field {
            error = error.with_field(clip(field));
        }
        if let Some(help) = detail.help {
            error = error.with_help(clip(help));
        }
        if let Some(delay) = detail.retry_after_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            error = error.with_retry_after(delay);
        }
        error.with_causes(detail.chain.into_iter().take(MAX_CAUSES).map(clip).collect())
    }
}

/// The payload of an error frame.
pub(crate) fn encode(error: &SandboxError) -> Vec<u8> {
    serde_json::to_vec(&WireError::from(error)).unwrap_or_default()
}

/// The error of an error frame. One that cannot be read is an error all the same.
pub(crate) fn decode(payload: &[u8]) -> SandboxError {
    match serde_json::from_slice::<WireError>(payload) {
        Ok(wire) => wire.into(),
        Err(_) => SandboxError::new(ErrorKind::Unknown, "the agent sent an error that cannot be read"),
    }
}

fn clip(mut text: String) -> String {
    if text.len() > MAX_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbox_core::{Admitted, Capability, ErrorKind, SandboxError};

    use super::{decode, encode};

    #[test]
    fn an_error_comes_back_with_everything_it_says() {
        let cause = SandboxError::internal("inner").with_source(std::io::Error::other("innermost"));
        let errors = [
            SandboxError::invalid_input("env.A", "is bad").with_help("change it").with_provider("agent"),
            SandboxError::lost("gone", Admitted::Unknown).with_source(cause),
            SandboxError::exhausted("full").with_retry_after(Duration::from_millis(1500)),
            SandboxError::unsupported("agent", Capability::ALL[0]),
        ];
        for error in errors {
            let again = decode(&encode(&error));
            assert_eq!(again.kind(), error.kind());
            assert_eq!(again.message(), error.message());
            assert_eq!(again.field(), error.field());
            assert_eq!(again.help(), error.help());
            assert_eq!(again.provider(), error.provider());
            assert_eq!(again.capability(), error.capability());
            assert_eq!(again.retry_after(), error.retry_after());
            assert_eq!(again.admitted(), error.admitted());
            assert_eq!(again.chain(), error.chain());
        }
    }

    #[test]
    fn what_cannot_be_read_is_still_an_error() {
        assert_eq!(decode(b"\xff").kind(), ErrorKind::Unknown);
        assert_eq!(decode(b"{\"kind\":4000000}").kind(), ErrorKind::Unknown);
        assert!(decode(format!("{{\"message\":{:?}}}", "é".repeat(9000)).as_bytes()).message().len() <= 4096);
    }
}
