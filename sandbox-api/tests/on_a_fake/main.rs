//! The facade on a provider that is scripted.

mod access;
mod admission;
mod blocking;
mod drop;
mod exec;
mod fake;
mod files;
mod flush;
mod pty_refusals;
mod registry;
mod sidecars;
mod start;
mod state;
mod telemetry;
