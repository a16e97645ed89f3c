//! An OpenSandbox server and its in-sandbox daemon, ours, for tests.
//!
//! * [`Execd`] answers the API of `execd` for the processes and files of the machine that it runs on: this one, or the
//!   inside of a container, where the binary `opensandbox-execd` takes the place of the real daemon.
//! * [`Control`] answers the lifecycle API. Its sandboxes are small containers of namespaces ([`Container`]) with such a
//!   daemon inside, or no more than a record where a test needs the API only.
//! * [`RealServer`] is the real one, of PyPI, on a Docker engine of its own, with our daemon inside.
//! * [`Fault`]s make either of them fail in a scripted way: refuse, stall, cut, answer with somebody else's page.
//!
//! Nothing of it is for production: paths are trusted, and there is no limit on clients.

#![forbid(unsafe_code)]

mod container;
mod control;
mod execd;
mod fault;
mod http;
mod program;
mod proxy;
mod real;

pub use container::Container;
pub use control::{Control, ControlOptions, Seen};
pub use execd::{Execd, ExecdOptions, OutputDialect};
pub use fault::{Fault, Faults};
pub use http::{Server, serve};
pub use program::execd_program;
pub use real::{BASE_IMAGE, RealServer};
