//! The blocking facade.

mod exec;
mod pty;
mod runtime;
mod sandbox;
mod sidecar;

pub use exec::BlockingExecStream;
pub use pty::{BlockingPty, BlockingPtySession};
pub use runtime::DEFAULT_OPERATION_TIMEOUT;
pub use sandbox::Sandbox;
pub use sidecar::BlockingSidecar;
