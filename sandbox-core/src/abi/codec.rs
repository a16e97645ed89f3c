//! JSON and errors, on their way over.

use abi_stable::std_types::{RErr, ROk, RVec};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::layout::{FfiError, FfiReply, FfiResult};
use crate::{ErrorKind, Result, SandboxError, error::ErrorDetail};

impl From<SandboxError> for FfiError {
    fn from(error: SandboxError) -> Self {
        let detail = serde_json::to_vec(&error.detail()).unwrap_or_default();
        Self { kind: error.kind().code(), message: error.message().into(), detail: detail.into() }
    }
}

impl From<FfiError> for SandboxError {
    fn from(error: FfiError) -> Self {
        // A detail that this side cannot read is left out: the message stands for itself.
        let detail: ErrorDetail = serde_json::from_slice(&error.detail).unwrap_or_default();
        Self::from_parts(ErrorKind::from_code(error.kind), error.message.into(), detail)
    }
}

pub(super) fn to_ffi<T>(result: Result<T>) -> FfiResult<T> {
    match result {
        Ok(value) => ROk(value),
        Err(error) => RErr(error.into()),
    }
}

pub(super) fn from_ffi<T>(result: FfiResult<T>) -> Result<T> {
    match result {
        ROk(value) => Ok(value),
        RErr(error) => Err(error.into()),
    }
}

/// Bytes as a buffer of the other side: no copy when the bytes are alone in their allocation.
pub(super) fn to_rvec(bytes: Bytes) -> RVec<u8> {
    Vec::from(bytes).into()
}

/// A buffer of the other side as bytes, without a copy: it is given back to its own allocator when dropped.
pub(super) fn to_bytes(buffer: RVec<u8>) -> Bytes {
    if buffer.is_empty() { Bytes::new() } else { Bytes::from_owner(buffer) }
}

pub(super) fn encode<T: Serialize>(value: &T) -> Result<RVec<u8>> {
    serde_json::to_vec(value)
        .map(RVec::from)
        .map_err(|error| SandboxError::internal(format!("a message could not be written: {error}")))
}

pub(super) fn decode<T: DeserializeOwned>(json: &[u8]) -> Result<T> {
    serde_json::from_slice(json)
        .map_err(|error| SandboxError::plugin(format!("a message of the other side could not be read: {error}")))
}

pub(super) fn reply<T: Serialize>(value: &T) -> Result<FfiReply> {
    Ok(FfiReply { json: encode(value)?, body: RVec::new() })
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use abi_stable::std_types::{RErr, RVec};

    use super::{FfiError, from_ffi, to_ffi};
    use crate::{
        Admitted, Capability, ErrorKind, HostEntry, Result, RuntimeRequirementsSpec, SandboxError, SandboxPtySpec,
        SandboxResources, SandboxSecurity, SandboxSidecarSpec, SandboxSpec, VolumeMount, VolumeSource,
    };

    /// What the other side makes of an error.
    fn crossed(error: SandboxError) -> SandboxError {
        from_ffi(to_ffi::<()>(Err(error))).unwrap_err()
    }

    #[test]
    fn every_part_of_an_error_crosses_with_its_causes() {
        let error = SandboxError::exhausted("the backend had enough")
            .with_provider("acme")
            .with_field("spec.cpu")
            .with_help("wait")
            .with_retry_after(Duration::from_millis(1_500))
            .with_source(io::Error::other(io::Error::from_raw_os_error(28)));
        let shown = |error: &SandboxError| {
            let parts = [error.provider(), error.field(), error.help()].map(|part| part.map(str::to_owned));
            (error.kind(), error.to_string(), parts, error.retry_after(), error.is_retryable(), error.chain())
        };
        let before = shown(&error);
        assert!(!before.5.is_empty(), "it has causes");
        let error = crossed(error);
        assert_eq!(shown(&error), before);
        assert!(std::error::Error::source(&error).is_some(), "the causes are there as sources too");
        assert_eq!(shown(&crossed(error)), before, "and over the next boundary");
        let lost = crossed(SandboxError::lost("contact was lost", Admitted::Unknown));
        assert_eq!((lost.kind(), lost.admitted()), (ErrorKind::Lost, Some(Admitted::Unknown)));
        let refused = crossed(SandboxError::unsupported("acme", Capability::Renew));
        assert_eq!(refused.capability(), Some("sandbox.renew/1"));
    }

    /// These refuse keys that they do not know: a wish that is not understood is not left out. So a field that is added
    /// must not be sent while it is not set, or no older plugin takes any message. The keys are those of 1.0.
    #[test]
    fn what_nobody_asked_for_is_not_sent_so_that_older_plugins_take_what_is() {
        fn keys<T: serde::Serialize>(value: &T) -> String {
            let object = serde_json::to_value(value).unwrap();
            object.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" ")
        }
        assert_eq!(keys(&SandboxSpec::default()), "resources security");
        assert_eq!(keys(&SandboxResources::default()), "");
        assert_eq!(keys(&SandboxSecurity::default()), "");
        assert_eq!(keys(&SandboxSidecarSpec::default()), "env image name resources");
        assert_eq!(keys(&SandboxPtySpec::default()), "cols pty rows");
        assert_eq!(keys(&RuntimeRequirementsSpec::default()), "cap_add shm_size_mib");
        let volume = VolumeMount { source: VolumeSource::Tmpfs(None), target: "/t".to_owned(), read_only: false };
        assert_eq!(keys(&volume), "read_only source target");
        let host = HostEntry { name: "a".to_owned(), address: "::1".to_owned() };
        assert_eq!(keys(&host), "address name");
    }

    #[test]
    fn an_error_of_a_newer_side_keeps_its_message() {
        for detail in ["", "no JSON", "[1]", r#"{"later": {"a": [1]}, "help": "wait"}"#] {
            let detail = RVec::from(detail.as_bytes());
            let error: Result<()> = from_ffi(RErr(FfiError { kind: 9_999, message: "of tomorrow".into(), detail }));
            let error = error.unwrap_err();
            assert_eq!((error.kind(), error.message()), (ErrorKind::Unknown, "of tomorrow"));
        }
    }
}
