//! The daemon of OpenSandbox (`execd`) in front of our agent: one static program for the inside of a sandbox.
//!
//! It answers the HTTP API of execd on the commands, terminals and files of the agent in this same process, so that a
//! client of either protocol sees the same sandbox. The agent's own protocol goes through a WebSocket of the same port
//! ([`native`]); a header of `GET /ping` tells that it is there.
//!
//! Called `bootstrap.sh` it is the first process of a container: it runs the command that it is given beside the daemon,
//! passes signals on to it, and ends with its exit code. In an image for `opensandbox-server` it is both `/execd` and
//! `/bootstrap.sh`.

#![forbid(unsafe_code)]

mod arguments;
mod command;
mod env_file;
mod environment;
mod execd;
mod files;
mod http;
mod image;
mod metrics;
mod native;
mod output;
mod proxy;
mod pty;
mod server;
mod session;
mod websocket;

use std::{net::TcpListener, process::ExitCode};

use arguments::Arguments;

/// What a program ends with that was called in a wrong way.
const USAGE_CODE: u8 = 64;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args()) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("execd: {problem}");
            return ExitCode::from(USAGE_CODE);
        }
    };
    if arguments.is_image {
        return match image::write() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("execd: writing the image: {error}");
                ExitCode::FAILURE
            }
        };
    }
    match run(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            eprintln!("execd: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until the sandbox is over. Returns the code of the command that it is the first process of, else 0.
fn run(arguments: Arguments) -> Result<u8, String> {
    let failed = |error: std::io::Error| format!("listening on {}: {error}", arguments.listen);
    let listener = TcpListener::bind(arguments.listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    if let Some(file) = &arguments.port_file {
        arguments::tell_port(file, port).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let config = environment::config(&arguments.command);
    let settings = execd::Settings { port, token: arguments.token, envs_file: environment::envs_file() };
    let has_main = !arguments.command.is_empty();
    sandbox_agent::run_behind(config, move |agent| server::run(listener, agent, settings, has_main))
}
