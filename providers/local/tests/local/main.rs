//! What the local provider promises beyond the contract. The contract itself is `tests/conformance.rs`.

#[path = "../isolated/agent.rs"]
mod agent;
mod bounds;
mod host_death;
mod lifecycle;
mod pressure;
mod requirements;
mod support;
mod transfers;
