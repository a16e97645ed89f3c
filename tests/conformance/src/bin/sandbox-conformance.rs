//! Runs the conformance suite on a plugin file: `sandbox-conformance FILE [--config JSON] [--spec JSON] [--filter TEXT]
//! [--minimum N] [--retries N] [--json]`.

use std::{path::PathBuf, process::ExitCode};

use plugin_host::{Checksum, load};
use sandbox_conformance::{Suite, factory, run_cli};
use sandbox_core::{SandboxSpec, abi::HostInfo};
use serde_json::Value;

const USAGE: &str = "usage: sandbox-conformance FILE [--config JSON] [--spec JSON] [--filter TEXT] [--minimum N] \
                     [--retries N] [--json]";

struct Arguments {
    file: PathBuf,
    config: Value,
    spec: SandboxSpec,
    filter: Option<String>,
    minimum: usize,
    retries: u32,
    json: bool,
}

fn arguments() -> Result<Arguments, String> {
    let mut given = std::env::args().skip(1);
    let mut file = None;
    let mut parsed = Arguments {
        file: PathBuf::new(),
        config: Value::Null,
        spec: SandboxSpec::default(),
        filter: None,
        minimum: 0,
        retries: 0,
        json: false,
    };
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{argument} needs a value"));
        let json = |text: String| serde_json::from_str(&text).map_err(|error| format!("{argument}: {error}"));
        match argument.as_str() {
            "--config" => parsed.config = json(value()?)?,
            "--spec" => parsed.spec = SandboxSpec::from_json(json(value()?)?).map_err(|error| error.to_string())?,
            "--filter" => parsed.filter = Some(value()?),
            "--minimum" => parsed.minimum = value()?.parse().map_err(|_| "--minimum needs a number".to_owned())?,
            "--retries" => parsed.retries = value()?.parse().map_err(|_| "--retries needs a number".to_owned())?,
            "--json" => parsed.json = true,
            flag if flag.starts_with('-') => return Err(format!("unknown flag {flag}")),
            _ if file.is_none() => file = Some(argument),
            _ => return Err("one FILE only".to_owned()),
        }
    }
    let file = file.ok_or("no FILE given")?;
    parsed.file = std::path::absolute(&file).map_err(|error| format!("{file}: {error}"))?;
    Ok(parsed)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("error: {problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let loaded = match load(&arguments.file, &Checksum::Compute, &HostInfo::new()).outcome {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let config = arguments.config;
    let new = move || {
        let provider = loaded.entry.new_provider(&config);
        async move { provider }
    };
    let mut suite = Suite::new(factory(new).with_spec(arguments.spec))
        .with_minimum_run(arguments.minimum)
        .with_retries(arguments.retries);
    if let Some(filter) = arguments.filter {
        suite = suite.with_filter(filter);
    }
    match run_cli(suite, arguments.json, std::io::stdout()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
