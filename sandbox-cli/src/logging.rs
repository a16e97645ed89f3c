//! Log events, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::{environment, failure::Failure};

const DEFAULT: &str = "warn";

/// Installs the subscriber. `flag` beats `SANDBOX_LOG`.
///
/// # Errors
/// Usage, for something that is neither a level nor a filter.
pub(crate) fn install(flag: Option<&str>, colour: bool) -> Result<(), Failure> {
    let from_environment = environment::text("SANDBOX_LOG");
    let filter = flag.or(from_environment.as_deref()).unwrap_or(DEFAULT);
    let filter = EnvFilter::try_new(filter).map_err(|_| {
        let source = if flag.is_some() { "--log" } else { "SANDBOX_LOG" };
        Failure::usage(format!("{source}: {filter:?} is no log level"))
            .with_field(source)
            .with_help("use one of: off, error, warn, info, debug, trace")
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour && std::io::stderr().is_terminal())
        .finish();
    // Fails only if one is there already, which is then somebody's choice.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}
