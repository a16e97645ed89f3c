//! The project's own commands. `cargo xtask` lists them.

#![forbid(unsafe_code)]

mod build;
mod check;
mod command;
mod conformance;
mod deps;
mod dist;
mod docs;
mod double;
mod engine;
mod lanes;
mod needs;
mod npm;
mod python;
mod run;
mod test;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build sandboxctl, the plugin of `local` and those of providers that the arguments name, and run sandboxctl with the
    /// arguments after `--`.
    Run {
        /// Build with optimisation.
        #[arg(long)]
        release: bool,
        /// What sandboxctl gets.
        #[arg(last = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Install what the tests use and is not here.
    Needs,
    /// Run every test: units, end to end, conformance (linked and loaded), documentation.
    Test,
    /// Do what CI does, step by step, or only the named steps.
    Check {
        /// The steps, in this order; see `--list`.
        steps: Vec<String>,
        /// Leave these steps out.
        #[arg(long)]
        skip: Vec<String>,
        /// List the steps.
        #[arg(long)]
        list: bool,
    },
    /// Build sandboxctl and every provider plugin, and put the plugins beside sandboxctl.
    BuildPlugins {
        /// Build with optimisation.
        #[arg(long)]
        release: bool,
    },
    /// Write the crate of a new third-party provider.
    NewPlugin {
        /// The provider's name.
        name: String,
        /// Where to put it. Default: a folder of that name in the current one.
        #[arg(long)]
        path: Option<PathBuf>,
    },
    /// Install sandboxctl, the plugins and what belongs to them below a prefix.
    Install {
        /// For example /usr/local, or $HOME/.local.
        #[arg(long)]
        prefix: PathBuf,
    },
    /// Make release archives for every target that this toolchain can build.
    Dist,
    /// Make, use and remove many sandboxes, leave many orphans, and count what is left.
    Soak {
        /// What: local.
        what: String,
        /// How many sandboxes, and how many orphaning commands.
        #[arg(long, default_value_t = 10_000)]
        count: u32,
    },
    /// Check the direction of the dependencies between the crates.
    Deps,
    /// Run the conformance suite on a provider of this repository, linked and loaded.
    Conformance {
        /// The provider's name; every provider without it.
        provider: Option<String>,
        /// Print the reports as JSON.
        #[arg(long, requires = "provider")]
        json: bool,
    },
    /// Run a command with the Docker Engine of the tests: `-- cargo nextest run -p sandbox-provider-docker`.
    Engine {
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Run the commands of the documentation.
    Docs,
    /// Load and plan every compose file of a folder, and print what became of them.
    ComposeCorpus {
        /// The folder.
        folder: PathBuf,
        /// Also print every error.
        #[arg(long)]
        verbose: bool,
    },
    /// Measure; prints tables of ratios against a peer in the same run.
    Bench {
        /// What to measure: `abi`, `docker`, `fargate`, `local`, `many` or `opensandbox`.
        what: String,
        /// Put the table into its page of the documentation.
        #[arg(long)]
        write: bool,
        /// Only the rows of `opensandbox` in whose names this is.
        #[arg(long, conflicts_with = "write")]
        only: Option<String>,
    },
}

fn build_plugins(release: bool) -> anyhow::Result<ExitCode> {
    let selection = build::Selection::needed(build::providers()?);
    build::plugins(build::Profile::of(release), &selection)?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Run { release, arguments } => run::run(release, &arguments),
        Task::Needs => test::needs(),
        Task::Test => test::test(),
        Task::Check { list: true, .. } => check::list(),
        Task::Check { steps, skip, .. } => check::check(&steps, &skip),
        Task::BuildPlugins { release } => build_plugins(release),
        Task::NewPlugin { name, path } => run::new_plugin(&name, path),
        Task::Install { prefix } => dist::install(&prefix),
        Task::Dist => dist::dist(),
        Task::Deps => deps::deps(),
        Task::Conformance { provider: Some(provider), json } => conformance::conformance(&provider, json),
        Task::Conformance { provider: None, .. } => lanes::all(),
        Task::Engine { command } => engine::with_engine(&command),
        Task::Docs => docs::docs(),
        Task::ComposeCorpus { folder, verbose } => run::compose_corpus(&folder, verbose),
        Task::Bench { what, write, only } => run::bench(&what, write, only.as_deref()),
        Task::Soak { what, count } => run::soak(&what, count, build::Profile::Release),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
