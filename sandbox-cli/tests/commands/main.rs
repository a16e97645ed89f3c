//! The program as it is used: every command of it.

#[path = "../common/mod.rs"]
mod common;
mod compose;
mod compose_background;
mod configuration;
mod exit_codes;
mod machine;
mod plugins;
mod sandboxes;
mod signals;
mod streams;
