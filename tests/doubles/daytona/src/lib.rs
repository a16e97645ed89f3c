//! A stand-in for the Daytona service: its control plane and its toolbox, over HTTP on loopback.
//!
//! Sandboxes are real: each has a root folder, mounts and processes of its own, made with util-linux (`unshare`,
//! `nsenter`), so the double needs root. What it answers was written from the wire's description; that it answers well is
//! shown by the service's official client, which the tests run against it.
//!
//! Faults are scripted ([`Fault`]), and every request is kept ([`Recorded`]).

#![forbid(unsafe_code)]

mod access;
mod change;
mod control;
mod events;
mod fault;
mod files;
mod ports;
mod process;
mod pty;
mod record;
mod sandboxes;
mod search;
mod server;
mod sessions;
mod settings;
mod world;

pub use access::sign_file;
pub use fault::Fault;
pub use record::Recorded;
pub use server::{Double, JWT, KEY};
