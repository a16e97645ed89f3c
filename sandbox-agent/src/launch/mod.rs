//! `sandbox-agent launch`: from an ordinary process to PID 1 of a sandbox.
//!
//! A launcher is one process for each provider: it forks another one for each sandbox, so that none has to be executed.
//! With privileges it keeps roots of system folders that are made once.
//! Two processes share the work then. The outer half opens what only the host's side may open, makes the namespaces by
//! forking into them, writes the id maps and reports. The inner half builds the root, and is PID 1 in the end: it serves,
//! or executes the program that is to. Each ends when the other does.

mod dev;
mod etc;
mod host;
mod ids;
mod inner;
mod keeper;
mod mapped;
mod message;
mod mounts;
mod network;
mod outer;
mod overlay;
mod proc;
mod program;
mod protect;
mod root;
mod sources;
mod template;

pub use host::run;
pub(crate) use message::Line;
