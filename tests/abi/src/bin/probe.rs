//! Does one thing to one plugin file, in a process of its own: what goes wrong may end it.
//!
//! `probe inspect FILE` · `probe load FILE [SHA256]` · `probe exec FILE NAME SETTINGS` ·
//! `probe leave FILE`
//!
//! Exit code 0: done. 3: refused, with a typed error on stdout as `refused KIND at STEP: MESSAGE`. Everything else is a bug.

use std::{path::Path, process::ExitCode};

use plugin_host::{Checksum, inspect, load};
use sandbox_abi_tests::hosting;
use sandbox_core::{ExecRequest, Result, SandboxError, abi::HostInfo};

/// The exit code for a typed refusal.
const REFUSED: u8 = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["inspect", file] => inspect_file(file),
        ["load", file] => load_file(file, &Checksum::Compute),
        ["load", file, sha256] => load_file(file, &Checksum::Expect(sha256)),
        ["exec", file, name, settings] => exec(file, name, settings).map_err(|error| ("exec", error)),
        ["leave", file] => leave(file).map_err(|error| ("leave", error)),
        _ => return ExitCode::from(2),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err((step, error)) => {
            println!("refused {} at {step}: {error}", error.kind());
            for cause in error.chain() {
                println!("cause: {cause}");
            }
            ExitCode::from(REFUSED)
        }
    }
}

fn inspect_file(file: &str) -> Result<(), (&'static str, SandboxError)> {
    let inspection = inspect(Path::new(file), &Checksum::Compute);
    let step = inspection.steps.last().map_or("start", |step| step.name);
    inspection.outcome.map(|plugin| println!("sound {}", plugin.manifest.name)).map_err(|error| (step, error))
}

fn load_file(file: &str, checksum: &Checksum<'_>) -> Result<(), (&'static str, SandboxError)> {
    let loading = load(Path::new(file), checksum, &HostInfo::new());
    let step = loading.steps.last().map_or("start", |step| step.name);
    let plugin = loading.outcome.map_err(|error| (step, error))?;
    let provider = plugin.entry.new_provider(&serde_json::Value::Null).map_err(|error| ("new_provider", error))?;
    println!("loaded {} {}", provider.name(), provider.full_info().isolation);
    Ok(())
}

fn exec(file: &str, name: &str, settings: &str) -> Result<()> {
    let settings =
        serde_json::from_str(settings).map_err(|error| SandboxError::invalid_input("SETTINGS", error.to_string()))?;
    let provider = hosting::provider(Path::new(file), name, &settings)?;
    runtime()?.block_on(async {
        let handle = hosting::create(&*provider).await?;
        let result = hosting::run(&*provider, &handle, ExecRequest::shell("true")).await?;
        println!("code {}", result.return_code());
        provider.close(&handle).await
    })
}

/// Ends while the plugin's threads work and a stream of it is open, without saying goodbye.
fn leave(file: &str) -> Result<()> {
    let provider = hosting::provider(Path::new(file), "misbehaving", &serde_json::json!({"fault": "endless_stream"}))?;
    let runtime = runtime()?;
    let stream = runtime.block_on(async {
        let handle = hosting::create(&*provider).await?;
        let mut stream = provider.exec(&handle, ExecRequest::shell("x")).await?;
        stream.next().await?;
        Ok::<_, SandboxError>(stream)
    })?;
    std::mem::forget((provider, runtime, stream));
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().build().map_err(|error| SandboxError::io("runtime", error))
}
