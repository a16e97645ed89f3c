//! The configuration of this program: where it is looked for, and how its failures are told.

use std::path::Path;

pub(crate) use sandbox_api::{Config, ConfigFileKind};
use sandbox_api::{ConfigSources, ErrorKind, Result, SandboxError};

use crate::{exit, failure::Failure};

/// Reads variables and files. `given` is `--config`.
///
/// # Errors
/// Usage: a file that was given and is not there; a file that cannot be read as what its name says, has unknown keys,
/// or says what a file that was only found may not say.
pub(crate) fn load(given: Option<&Path>) -> Result<Config, Failure> {
    let sources = match given {
        // The working folder does not matter then.
        Some(_) => {
            let mut sources = ConfigSources::default();
            sources.environment = sandbox_api::Environment::process();
            sources
        }
        None => ConfigSources::usual().map_err(|error| failure(&error))?,
    };
    Config::load(&sources.with_file(given)).map_err(|error| failure(&error))
}

fn failure(error: &SandboxError) -> Failure {
    let code = match error.kind() {
        ErrorKind::PermissionDenied => "config.untrusted",
        _ => "config.invalid",
    };
    Failure::of_command(error).with_code(code).with_exit(exit::USAGE)
}

/// How a file came to be read, for people.
pub(crate) fn label(kind: ConfigFileKind) -> &'static str {
    match kind {
        ConfigFileKind::Given => "--config",
        ConfigFileKind::Found => "project",
        _ => "user",
    }
}
