//! The program, driven as its clients do.

mod commands;
mod files;
mod native;
mod program;
mod proxies;
mod support;
mod terminals;
