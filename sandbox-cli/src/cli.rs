//! The command line as a whole.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::{
    commands::{self, sandbox},
    output::Format,
};

/// Run commands in sandboxes, on any provider.
#[derive(Parser)]
#[command(name = "sandboxctl", version, disable_help_subcommand = true, propagate_version = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const GLOBAL: &str = "Options of every command";

/// What every command takes.
#[derive(Args)]
pub(crate) struct Global {
    /// Log events up to this level on standard error: off, error, warn, info, debug, trace [env: SANDBOX_LOG]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
    /// Read this configuration file and no other
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How results are written [env: SANDBOX_OUTPUT]
    #[arg(short = 'o', long, global = true, help_heading = GLOBAL, value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<Format>,
    /// No notes and warnings; lists show names alone
    #[arg(short = 'q', long, global = true, help_heading = GLOBAL)]
    pub(crate) quiet: bool,
    /// No colour [env: NO_COLOR]
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) no_color: bool,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a sandbox, run a command in it, remove it
    Run(Box<commands::run::RunArgs>),
    /// Make a sandbox that outlives this program, and print its name
    Create(Box<sandbox::create::CreateArgs>),
    /// Run a command in a sandbox
    Exec(Box<sandbox::exec::ExecArgs>),
    /// Open a terminal in a sandbox
    Shell(Box<sandbox::shell::ShellArgs>),
    /// List sandboxes
    Ls(sandbox::ls::LsArgs),
    /// Show the state of a sandbox
    Status(sandbox::lifecycle::StatusArgs),
    /// Remove sandboxes
    #[command(alias = "rm")]
    Stop(sandbox::stop::StopArgs),
    /// Copy files and folders into a sandbox or out of it
    Cp(sandbox::cp::CpArgs),
    /// Show the output of a job
    Logs(sandbox::jobs::LogsArgs),
    /// Wait for the end of a job or a sandbox
    Wait(sandbox::jobs::WaitArgs),
    /// Signal a job
    Kill(sandbox::jobs::KillArgs),
    /// Freeze a sandbox
    Pause(sandbox::lifecycle::PauseArgs),
    /// Thaw a sandbox
    Resume(sandbox::lifecycle::PauseArgs),
    /// Move the end of a sandbox's life
    Renew(sandbox::lifecycle::RenewArgs),
    /// Show what sandboxes use
    Stats(sandbox::stats::StatsArgs),
    /// Keep states of sandboxes
    #[command(subcommand)]
    Snapshot(commands::snapshot::SnapshotCommand),
    /// Remove what was left behind
    Gc(sandbox::gc::GcArgs),
    /// Look at the providers
    #[command(subcommand)]
    Providers(commands::providers::ProvidersCommand),
    /// Install, check and write plugins
    #[command(subcommand)]
    Plugin(commands::plugin::PluginCommand),
    /// Show what each provider would honour, emulate or refuse
    Explain(Box<commands::explain::ExplainArgs>),
    /// Run stacks of sandboxes that a compose file describes
    Compose(Box<commands::compose::ComposeArgs>),
    /// Look at the configuration
    #[command(subcommand, after_help = commands::config::FORM)]
    Config(commands::config::ConfigCommand),
    /// Write a completion script for a shell
    Completion(commands::completion::CompletionArgs),
    /// Show the version of this program and of the contract
    Version,
}
