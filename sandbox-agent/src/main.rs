//! `sandbox-agent`: see the library.

use std::process::ExitCode;

const USAGE: &str = "usage: sandbox-agent launch | serve ... | relay PATH | probe";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("launch") => code(sandbox_agent::run_launch(arguments)),
        Some("serve") => serve(arguments.collect()),
        Some("relay") => match (arguments.next(), arguments.next()) {
            (Some(path), None) => relay(path.as_ref()),
            _ => usage(USAGE),
        },
        Some("probe") => probe(),
        _ => usage(USAGE),
    }
}

/// Serves clients.
fn serve(arguments: Vec<String>) -> ExitCode {
    let done = match sandbox_agent::ServeArguments::parse(arguments) {
        Ok(arguments) => sandbox_agent::run_serve(&arguments),
        Err(message) => return usage(&message),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("sandbox-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Connects standard input and output with a unix socket.
fn relay(path: &std::path::Path) -> ExitCode {
    match sandbox_agent::relay(path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox-agent: {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

/// Says which limits cgroups can honour here, and whether abstract sockets can be fenced.
fn probe() -> ExitCode {
    let found = serde_json::json!({ "cgroup": sandbox_agent::probe(), "landlock_abi": sandbox_agent::landlock_abi() });
    println!("{found}");
    ExitCode::SUCCESS
}

fn usage(message: &str) -> ExitCode {
    eprintln!("sandbox-agent: {message}");
    ExitCode::from(64)
}

fn code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
