//! One command: the request, what happens while it runs, and how it ended.

mod collect;
mod event;
mod outcome;
mod request;
mod result;

pub use collect::{CaptureLimits, DEFAULT_CAPTURE_BYTES, ExecCollector, TextDecoder};
pub use event::{ExecEvent, ExecStream};
pub use outcome::{ExecExit, ExecOutcome, ResourceUsage, StartFailure};
pub use request::{ExecCommand, ExecRequest, StdinSource};
pub use result::{ExecResult, SandboxExecResult};
