//! Terminal sessions: the verbs on a sandbox (`facade`, `exec`), one session (`session`, `detached`), what waits to be
//! read (`source`), and how a command is run in a shell that is there already (`marker`, `run`).

mod detached;
mod exec;
mod facade;
mod marker;
mod options;
mod run;
mod session;
mod signal;
mod source;

pub use facade::SandboxPty;
pub(crate) use marker::{Marker, Scanner};
pub use options::{DEFAULT_POLL_INTERVAL, PtyExec};
pub use session::{PtyMode, SandboxPtySession};
pub use source::{PTY_BUFFER_BYTES, PtyChunk};
