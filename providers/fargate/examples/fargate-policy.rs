//! Prints the rights and network rules that settings need: `fargate-policy SETTINGS.json [IMAGE…]`. Asks AWS nothing.

use std::process::ExitCode;

use sandbox_core::{Result, SandboxError, from_json};
use sandbox_provider_fargate::{FargateConfig, Needs, needs};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(file) = arguments.next() else {
        eprintln!("usage: fargate-policy SETTINGS.json [IMAGE...]");
        return ExitCode::from(64);
    };
    match read(&file, &arguments.collect::<Vec<_>>()) {
        Ok(needs) => {
            println!("{needs}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(help) = error.help() {
                eprintln!("help: {help}");
            }
            ExitCode::FAILURE
        }
    }
}

fn read(file: &str, images: &[String]) -> Result<Needs> {
    let text = std::fs::read(file).map_err(|error| SandboxError::io(file, error))?;
    let json = serde_json::from_slice(&text)
        .map_err(|error| SandboxError::invalid_input(file, format!("is no JSON: {error}")))?;
    needs(&from_json::<FargateConfig>(json, "settings")?, images)
}
