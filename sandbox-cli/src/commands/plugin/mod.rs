//! `sandboxctl plugin`: providers as files.

mod install;
mod ls;
mod new;
mod rm;
mod trace;
mod verify;

use clap::Subcommand;

use crate::{app::App, failure::Failure};

#[derive(Subcommand)]
pub(crate) enum PluginCommand {
    /// Check a plugin file: load it step by step, then run the conformance suite on it
    Verify(verify::VerifyArgs),
    /// Check a plugin file and put it where it is found
    Install(install::InstallArgs),
    /// List the plugin files that were found
    #[command(visible_alias = "list")]
    Ls,
    /// Remove an installed plugin
    Rm {
        /// The provider's name
        name: String,
    },
    /// Write the crate of a new provider
    New(new::NewArgs),
}

/// Runs one of them.
pub(crate) fn run(app: &App, command: PluginCommand) -> Result<u8, Failure> {
    match command {
        PluginCommand::Verify(args) => verify::run(app, &args),
        PluginCommand::Install(args) => install::run(app, &args).map(|()| 0),
        PluginCommand::Ls => ls::run(app).map(|()| 0),
        PluginCommand::Rm { name } => rm::run(app, &name).map(|()| 0),
        PluginCommand::New(args) => new::run(app, &args).map(|()| 0),
    }
}
