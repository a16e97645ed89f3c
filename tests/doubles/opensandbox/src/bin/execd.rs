//! The daemon inside a container. Called `bootstrap.sh` it is also the container's first process: it runs the command that
//! it is given beside the daemon, and ends with it.

use std::{env, net::SocketAddr, process::ExitCode};

use opensandbox_double::{Execd, ExecdOptions, OutputDialect, serve};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

/// Where execd listens.
const ADDRESS: &str = "0.0.0.0:44772";

/// Where clients add variables for later commands, unless the container says otherwise.
const ENV_FILE: (&str, &str) = ("EXECD_ENVS", "/opt/opensandbox/.env");

struct Arguments {
    address: SocketAddr,
    port_file: Option<String>,
    options: ExecdOptions,
    command: Vec<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut given = env::args();
    let is_bootstrap = given.next().is_some_and(|name| name.ends_with("bootstrap.sh"));
    // What the container was given is for its commands, too.
    let environment =
        env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut options = ExecdOptions { env: environment.collect(), ..ExecdOptions::default() };
    options.env.entry(ENV_FILE.0.to_owned()).or_insert_with(|| ENV_FILE.1.to_owned());
    let address = ADDRESS.parse().map_err(|_| "the address is wrong".to_owned())?;
    let mut parsed = Arguments { address, port_file: None, options, command: Vec::new() };
    if is_bootstrap {
        parsed.command = given.collect();
        return Ok(parsed);
    }
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--listen" => parsed.address = value()?.parse().map_err(|_| "--listen needs an address".to_owned())?,
            "--port-file" => parsed.port_file = Some(value()?),
            "--token" => parsed.options.token = Some(value()?),
            "--lines" => parsed.options.dialect = OutputDialect::Lines,
            "--standard-events" => parsed.options.standard_events = true,
            "--no-argv" => parsed.options.argv = false,
            "--no-extensions" => parsed.options.extensions = false,
            // A server that tries the image out gives it a command.
            _ => break,
        }
    }
    Ok(parsed)
}

async fn run(arguments: Arguments) -> std::io::Result<ExitCode> {
    let listener = TcpListener::bind(arguments.address).await?;
    let port = listener.local_addr()?.port();
    let _server = serve(Execd::new(arguments.options), listener)?;
    if let Some(file) = arguments.port_file {
        let unfinished = format!("{file}.new");
        std::fs::write(&unfinished, port.to_string())?;
        std::fs::rename(unfinished, file)?;
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let Some((program, rest)) = arguments.command.split_first() else {
        terminate.recv().await;
        return Ok(ExitCode::SUCCESS);
    };
    let mut child = tokio::process::Command::new(program).args(rest).spawn()?;
    tokio::select! {
        status = child.wait() => Ok(ExitCode::from(u8::try_from(status?.code().unwrap_or(137)).unwrap_or(1))),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let result = match arguments() {
        Ok(arguments) => run(arguments).await.map_err(|error| error.to_string()),
        Err(problem) => Err(problem),
    };
    result.unwrap_or_else(|problem| {
        eprintln!("error: {problem}");
        ExitCode::FAILURE
    })
}
