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
