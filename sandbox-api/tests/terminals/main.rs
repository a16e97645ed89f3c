//! Terminal sessions: the real agent, real shells, real programs, on every provider that has them.

#[path = "../built/mod.rs"]
mod built;
#[path = "../local/mod.rs"]
mod local;
#[path = "../on/mod.rs"]
mod on;

mod blocking;
mod commands;
mod detached;
mod programs;
mod sessions;
mod supervised;
mod support;
mod two_processes;
