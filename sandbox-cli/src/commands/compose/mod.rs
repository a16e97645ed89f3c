//! `sandboxctl compose`: stacks of sandboxes that a compose file describes.

mod config;
mod copy;
mod document;
mod down;
mod exec;
mod explain;
mod follow;
mod found;
mod ps;
mod renew;
mod state;
mod up;

use clap::{Args, Subcommand};

use self::document::DocumentArgs;
use crate::{app::App, failure::Failure};

#[derive(Args)]
pub(crate) struct ComposeArgs {
    #[command(flatten)]
    document: DocumentArgs,
    #[command(subcommand)]
    command: ComposeCommand,
}

#[derive(Subcommand)]
enum ComposeCommand {
    /// Start the stack; until it is interrupted, or in the background with -d
    Up(up::UpArgs),
    /// Stop the stack and remove everything that belongs to it
    Down(down::DownArgs),
    /// List the sandboxes of the stack
    Ps,
    /// Show what services wrote
    Logs(follow::LogsArgs),
    /// Run a command in a service
    Exec(exec::ExecArgs),
    /// Copy a file into a service or out of it
    Cp(copy::CopyArgs),
    /// Show where a port of a service is reached
    Port(ps::PortArgs),
    /// Let a stack in the background live for longer
    Renew(renew::RenewArgs),
    /// Print the document with everything resolved
    Config(config::ConfigArgs),
    /// Show what happens to the stack
    Events(follow::EventsArgs),
    /// Show what providers would refuse or do differently
    Explain(explain::ExplainArgs),
}

/// Runs it.
pub(crate) fn run(app: &App, args: ComposeArgs) -> Result<u8, Failure> {
    let document = &args.document;
    match args.command {
        ComposeCommand::Up(args) => up::run(app, document, &args),
        ComposeCommand::Down(args) => down::run(app, document, &args),
        ComposeCommand::Ps => ps::run(app, document),
        ComposeCommand::Logs(args) => follow::logs(app, document, &args),
        ComposeCommand::Exec(args) => exec::run(app, document, args),
        ComposeCommand::Cp(args) => copy::run(app, document, &args),
        ComposeCommand::Port(args) => ps::port(app, document, &args),
        ComposeCommand::Renew(args) => renew::run(app, document, &args),
        ComposeCommand::Config(args) => config::run(app, document, &args),
        ComposeCommand::Events(args) => follow::events(app, document, &args),
        ComposeCommand::Explain(args) => explain::run(app, document, &args),
    }
}
