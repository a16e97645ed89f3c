//! `sandboxctl providers`: what is there, what it can do, whether it works.

mod doctor;
pub(crate) mod info;
pub(crate) mod ls;

use clap::Subcommand;

use crate::{app::App, failure::Failure};

#[derive(Subcommand)]
pub(crate) enum ProvidersCommand {
    /// List the providers, without loading any
    #[command(visible_alias = "list")]
    Ls,
    /// Show what a provider can do with its configuration
    Info {
        /// The provider
        name: String,
    },
    /// Check that providers work: find, load, create, run, remove
    Doctor(doctor::DoctorArgs),
}

/// Runs one of them.
pub(crate) fn run(app: &App, command: ProvidersCommand) -> Result<u8, Failure> {
    match command {
        ProvidersCommand::Ls => ls::run(app).map(|()| 0),
        ProvidersCommand::Info { name } => info::run(app, &name).map(|()| 0),
        ProvidersCommand::Doctor(args) => doctor::run(app, &args),
    }
}
