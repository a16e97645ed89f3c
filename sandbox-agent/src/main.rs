//! `sandbox-agent`: see the library.

use std::process::ExitCode;

const USAGE: &str = "usage: sandbox-agent launch [--config-fd N] [--status-fd N] [--socket-fd N] [--ahead] | serve | relay PATH | \
     probe";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("launch") => match sandbox_agent::Arguments::parse(arguments) {
            Ok(arguments) => code(sandbox_agent::run_launch(arguments)),
            Err(message) => usage(&message),
        },
        Some("serve") => serve(arguments.collect()),
        Some("relay") => match (arguments.next(), arguments.next()) {
            (Some(path), None) => relay(path.as_ref()),
            _ => usage(USAGE),
        },
        Some("probe") => probe(),
        _ => usage(USAGE),
    }
}

/// Serves clients. Without arguments it is PID 1 of a launch; one that was not told how to serve holds its socket.
fn serve(arguments: Vec<String>) -> ExitCode {
    let done = match sandbox_agent::Handover::from_environment() {
        Ok(Some(_)) if arguments.is_empty() && std::env::var_os(sandbox_agent::SERVE_VARIABLE).is_none() => {
            sandbox_agent::hold().map(|()| 0)
        }
        Ok(Some(handover)) if arguments.is_empty() => sandbox_agent::run_serve_inherited(&handover),
        _ => match sandbox_agent::ServeArguments::parse(arguments) {
            Ok(arguments) => sandbox_agent::run_serve(&arguments, |_| {}),
            Err(message) => return usage(&message),
        },
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
