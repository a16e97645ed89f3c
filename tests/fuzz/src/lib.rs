//! Fuzz targets for the bytes of strangers that a host reads.
//!
//! Each target takes any bytes and must return: a refusal is fine, a panic, a hang or unbounded memory is a finding.
//! `cargo test` drives them with random and with mutated good inputs on stable Rust; a coverage-guided fuzzer calls the
//! same functions.

#![forbid(unsafe_code)]

use bytes::Bytes;
use sandbox_core::{
    ByteString, ExecEvent, ExecRequest, PortEvent, ProviderInfo, ProviderManifest, PtyEvent, SandboxHandle,
    SandboxSpec, SessionEvent,
};

/// The lines that a build writes in front of an author's `provider.toml`.
pub const MANIFEST_HEAD: &str =
    "sandbox-provider 1\nversion=1\ncontract=1.0\npanic=unwind\ntarget=linux-x86_64\nentry=e\n\n";

/// The manifest section of a plugin file.
pub fn manifest(bytes: &[u8]) {
    if let Ok(manifest) = ProviderManifest::parse(bytes) {
        assert!(ProviderManifest::check_name(&manifest.name).is_ok(), "the name of a manifest that was read is a name");
    }
}

/// The author's part of a manifest.
pub fn provider_toml(bytes: &[u8]) {
    manifest(&[MANIFEST_HEAD.as_bytes(), bytes].concat());
}

/// A frame of a stream: the first byte says the channel.
pub fn frame(bytes: &[u8]) {
    fn one<E: SessionEvent>(channel: u32, data: &[u8]) {
        if let Ok(Some(event)) = E::from_frame(channel, Bytes::copy_from_slice(data)) {
            let (channel, data) = event.into_frame();
            assert!(matches!(E::from_frame(channel, data), Ok(Some(_))), "what was understood is understood again");
        }
    }
    let Some((channel, data)) = bytes.split_first() else { return };
    let channel = u32::from(*channel % 6);
    one::<ExecEvent>(channel, data);
    one::<PtyEvent>(channel, data);
    one::<PortEvent>(channel, data);
}

/// A JSON message of the other side of the ABI.
pub fn message(bytes: &[u8]) {
    let _ = serde_json::from_slice::<SandboxHandle>(bytes);
    let _ = serde_json::from_slice::<ProviderInfo>(bytes);
    if let Ok(request) = serde_json::from_slice::<ExecRequest>(bytes) {
        let _ = request.validate();
    }
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) {
        let _ = SandboxSpec::from_json(value);
    }
}

/// Any bytes as an argument or a path: they come back from JSON as they were.
pub fn byte_string(bytes: &[u8]) {
    let value = ByteString::new(bytes);
    let json = serde_json::to_vec(&value).expect("a byte string can be written");
    assert_eq!(serde_json::from_slice::<ByteString>(&json).expect("and read"), value);
}
