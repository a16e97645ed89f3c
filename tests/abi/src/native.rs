//! The good fixture's provider, compiled in: the same code without any boundary, to compare with.

#![allow(missing_docs, unreachable_pub, reason = "the fixture is a crate of its own, with rules of its own")]

#[path = "../../fixtures/good/src/builtin.rs"]
mod builtin;
#[path = "../../fixtures/good/src/command.rs"]
mod command;
#[path = "../../fixtures/good/src/files.rs"]
mod files;
#[path = "../../fixtures/good/src/provider.rs"]
mod provider;

pub use builtin::{pattern, records};
pub use provider::{Acme, AcmeSettings};
