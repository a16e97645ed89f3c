//! `sandboxctl`: the command line of the sandbox system.
//!
//! Standard output carries data and nothing else; notes, warnings and errors go to standard error. Every command is a
//! module of `commands`; everything that a command can fail with is a [`failure::Failure`], whose exit code is one of
//! [`exit`].

#![forbid(unsafe_code)]

mod app;
mod cli;
mod commands;
mod config;
mod environment;
mod exit;
mod failure;
mod logging;
mod output;
mod panic;
mod providers;
mod run;
mod runtime;
mod spec_args;
mod state;
mod usage;
mod values;

fn main() {
    panic::install();
    let code = std::panic::catch_unwind(app::main).unwrap_or(exit::INFRASTRUCTURE);
    // Not a return: a thread that still waits for our standard input must not hold the process.
    std::process::exit(code.into());
}
