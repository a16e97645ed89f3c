//! What the local provider promises beyond the contract. The contract itself is `tests/conformance.rs`.

mod bounds;
mod host_death;
mod lifecycle;
mod requirements;
mod support;
mod transfers;
