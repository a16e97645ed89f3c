//! `sandbox-agent serve`: runs commands, terminals and transfers for clients, as PID 1 or as an ordinary process.
//!
//! One thread serves everything; file work that can hang in a file system runs on a few short-lived others. What a
//! command writes goes through a bounded log, from which a client that lost its connection goes on to the byte.
//! Commands reach nothing of this: they inherit no descriptor, and the process is not dumpable.

mod agent;
mod archive;
mod arguments;
mod attachment;
mod config;
mod connections;
mod descriptors;
mod early;
mod entrypoint;
mod exec;
mod files;
mod hosts;
mod http;
mod init;
mod input;
mod job;
mod jobs;
mod launched;
mod lifetime;
mod listen;
mod local;
mod log;
mod logs;
mod memory;
mod metrics;
mod objects;
mod pack;
mod paths;
mod port;
mod remove;
mod run;
mod signals;
mod surroundings;
mod sys;
mod terminal;
mod transfer;
mod unpack;

pub use arguments::{ConfigSource, Endpoint, ServeArguments, TokenSource};
pub use config::{CommandLimits, ConfigError as ServeConfigError, Entrypoint, ServeConfig};
pub(crate) use early::Early;
pub(crate) use launched::run_launched;
pub use local::LocalAgent;
pub use run::{run, run_behind};
pub(crate) use sys::release_unused;
