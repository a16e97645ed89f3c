//! The agent as a server inside of a sandbox.
#![allow(missing_docs, reason = "tests are sentences")]

mod descriptors;
mod entrypoint;
mod exec;
mod files;
mod forward;
mod jobs;
mod life;
mod objects;
mod pty;
mod size;
mod support;
mod tcp;
