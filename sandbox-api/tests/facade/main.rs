//! The facade on every provider: what a program is promised holds whoever runs the sandbox, linked and loaded, for code
//! that awaits and for code that blocks. What a provider cannot do is refused by name.
//!
//! It needs root and an engine: `cargo xtask engine -- cargo nextest run -p sandbox-api`.

#[path = "../local/mod.rs"]
mod local;
#[path = "../on/mod.rs"]
mod on;

mod awaiting;
mod blocking;
mod others;

use on::Place;
use sandbox_api::{AsyncSandbox, Capability, ErrorKind, Result};

/// A refusal names the provider and the capability that it lacks.
fn refused<T: std::fmt::Debug>(place: &Place, capability: Capability, result: Result<T>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.provider(), Some(place.provider.name()), "{error}");
    assert_eq!(error.capability(), Some(capability.wire_name()), "{error}");
}

fn has(sandbox: &AsyncSandbox, capability: Capability) -> bool {
    sandbox.info().capabilities.contains(capability)
}
