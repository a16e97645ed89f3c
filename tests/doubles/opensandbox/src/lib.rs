//! An OpenSandbox server and its in-sandbox daemon, ours, for tests.
//!
//! * [`Execd`] is the product's daemon (`sandbox-execd`) in a process of this machine, behind what makes it fail or makes it
//!   like an execd of others.
//! * [`Control`] answers the lifecycle API. Its sandboxes are small containers of namespaces ([`Container`]) with the
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
mod image;
mod program;
mod proxy;
mod real;
mod time;

pub use container::Container;
pub use control::{Control, ControlOptions, Seen};
pub use execd::{Execd, ExecdOptions, OutputDialect};
pub use fault::{Fault, Faults};
pub use program::execd_program;
pub use real::{BASE_IMAGE, RealServer};
