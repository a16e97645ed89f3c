//! What isolated sandboxes promise beyond the contract. The contract itself is `tests/conformance.rs`.

mod adversaries;
mod agent;
mod cases;
mod escapes;
mod images;
mod kills;
mod leaks;
mod networks;
mod outlive;
mod paused;
mod ports;
mod specs;
mod support;
mod transfers;
mod volumes;
