//! The commands, one module each.

pub(crate) mod completion;
pub(crate) mod compose;
pub(crate) mod config;
pub(crate) mod explain;
pub(crate) mod plugin;
pub(crate) mod providers;
pub(crate) mod run;
pub(crate) mod sandbox;
pub(crate) mod snapshot;
pub(crate) mod version;
