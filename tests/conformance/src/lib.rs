//! The provider contract as a suite that runs against any provider.
//!
//! A provider's author writes one test: a factory for the provider, handed to [`assert_conformant`].
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use sandbox_conformance::{assert_conformant, factory};
//!
//! # async fn test(make_my_provider: fn() -> sandbox_core::Result<Arc<dyn sandbox_core::SandboxProvider>>) {
//! assert_conformant(factory(move || async move { make_my_provider() })).await;
//! # }
//! ```
//!
//! Every case runs on a sandbox of its own, under a deadline. A case whose requirement the provider does not declare is
//! *skipped*, with the reason; a declared ability that answers `Unsupported` is a failure. After each case the sandbox is
//! closed, must read as stopped, and nothing of it may be left. Skipped is not passed: [`Suite::with_minimum_run`] says
//! how many cases must have run.

#![forbid(unsafe_code)]

#[macro_use]
mod check;
mod bytes;
mod case;
mod cases;
mod context;
mod documents;
mod factory;
mod host;
mod leak;
mod report;
mod sandbox;
mod suite;

pub use case::{CaseInfo, Requirement};
pub use documents::{Documents, ManifestSays};
pub use factory::{FnFactory, ProviderFactory, factory};
pub use report::{CaseReport, CaseStatus, Report, SCHEMA};
pub use suite::{DEFAULT_DEADLINE, DEFAULT_PARALLELISM, Suite, assert_conformant, assert_suite, run_cli};
