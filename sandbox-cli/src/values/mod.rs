//! Values as people write them on a command line.

mod duration;
mod environment;
mod pairs;
mod signal;
mod size;
mod volume;

pub(crate) use duration::{duration, show_seconds};
pub(crate) use environment::{EnvArgument, read_env_file};
pub(crate) use pairs::{option_value, pair};
pub(crate) use signal::signal;
pub(crate) use size::mebibytes;
pub(crate) use volume::volume;
