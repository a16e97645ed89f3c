//! Starts, pumps, signals and reaps process trees, with no survivor.
//!
//! Every command gets a supervisor: a small process without a program of its own that is the reaper of all of the
//! command's descendants. Supervisors are forked by the set's nursery, which is forked from the host once. It reports the start, the exit and the moment when nobody is left, and it ends the whole
//! tree when the host says so, drops its handles, or dies in any way. Children that a command leaves in the
//! background live until their [`ProcessSet`] ends them.
//!
//! - The exit of the command's own process ends a command, not the end of its output: everything it wrote is
//!   delivered first, and a background child that holds the pipes holds nobody.
//! - Output is bytes, in bounded queues; a caller that does not read stalls its own command and nobody else.
//! - A command that cannot be started fails with the exact reason ([`StartErrorKind`]), never with an exit code.
//!
//! The host must not change SIGPIPE from "ignored", which is what Rust programs start with.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use sandbox_process::{Command, Ending, Event, Limits, ProcessSet};
//!
//! let set = ProcessSet::new();
//! let mut process = set.spawn(Command::new(["echo", "hi"]), Limits::new()).await?;
//! while let Some(event) = process.next_event().await {
//!     match event {
//!         Event::Stdout(bytes) => assert_eq!(&bytes[..], b"hi\n"),
//!         Event::Exit(exit) => assert_eq!(exit.ending, Ending::Exited(0)),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(example()).unwrap();
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("sandbox-process needs Linux: pidfds, child subreapers and /proc");

mod accepted;
mod blob;
mod command;
mod control;
mod credentials;
mod error;
mod event;
mod fork;
mod launch;
mod limits;
mod messages;
mod nursery;
mod output;
mod prepare;
mod process;
mod procfs;
mod pump;
mod raw;
mod restrictions;
mod set;
mod shed;
mod shell;
mod signals;
mod spare;
mod spawn;
mod supervisor;
mod sys;
mod terminal;
mod tree;
mod user;
mod wire;

pub use command::{Command, ResourceLimit, Stdin};
pub use error::{ControlError, ControlErrorKind, StartError, StartErrorKind};
pub use event::{Ending, Event, Exit};
pub use limits::{DRAIN_GRACE_DEFAULT, Limits};
pub use output::CHUNK_BYTES;
pub use process::{Controller, Process};
pub use restrictions::Restrictions;
pub use set::ProcessSet;
pub use signals::settle_signals;
pub use spawn::EVENT_QUEUE;
pub use terminal::TerminalSize;
pub use user::{User, UserError, UserErrorKind};
pub use wire::Stage;
