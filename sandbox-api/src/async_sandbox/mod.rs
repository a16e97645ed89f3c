//! The async sandbox object: what it is (`sandbox`, `state`) and one file for each group of its verbs.

mod connect;
mod exec;
mod files;
mod jobs;
mod lifecycle;
mod options;
mod sandbox;
mod sidecar;
mod start;
mod state;

pub use options::{BackgroundChildren, ExecOptions};
pub use sandbox::{AsyncSandbox, Ownership};
pub use sidecar::SandboxSidecar;
pub(crate) use state::{Live, Slot};
