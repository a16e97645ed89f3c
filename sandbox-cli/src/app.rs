//! From the arguments to the exit code.

use std::{ffi::OsString, io::IsTerminal};

use clap::Parser;
use sandbox_core::ProviderInfo;

use crate::{
    cli::{Cli, Command, Global},
    commands::{self, sandbox},
    config::{self, Config},
    environment, exit,
    failure::Failure,
    logging,
    output::{self, Format},
    usage,
};

/// What a command works with.
pub(crate) struct App {
    /// How results are written.
    pub(crate) format: Format,
    /// No notes and warnings.
    pub(crate) is_quiet: bool,
    /// Whether standard error is coloured.
    pub(crate) colour: bool,
    config_file: Option<std::path::PathBuf>,
}

impl App {
    fn new(global: &Global) -> Result<Self, Failure> {
        let format = match (global.output, environment::text("SANDBOX_OUTPUT")) {
            (Some(format), _) => format,
            (None, Some(text)) => usage::format(&text)?,
            (None, None) => Format::default(),
        };
        Ok(Self {
            format,
            is_quiet: global.quiet,
            colour: wants_colour(global.no_color),
            config_file: global.config.clone(),
        })
    }

    /// The format of a list: names alone with `--quiet`.
    pub(crate) fn list_format(&self) -> Format {
        match (self.is_quiet, self.format) {
            (true, Format::Table | Format::Wide) => Format::Name,
            (_, format) => format,
        }
    }

    /// Reads the configuration.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        config::load(self.config_file.as_deref())
    }

    /// A warning, unless warnings are unwanted.
    pub(crate) fn warn(&self, text: &str) {
        if self.is_quiet {
            return;
        }
        if self.format.is_json() {
            output::note(&serde_json::json!({ "warning": text }).to_string());
        } else {
            output::note(&format!("{} {text}", output::paint("warning:", output::YELLOW, self.colour)));
        }
    }
}

impl App {
    /// Says that a provider does not isolate, unless that is known.
    pub(crate) fn warn_of_isolation(&self, info: &ProviderInfo) {
        if info.isolation == "none" && !environment::is_on("SANDBOX_NO_ISOLATION_WARNING") {
            self.warn(&format!(
                "provider {} runs commands on this machine without isolation (silence with --quiet or \
                 SANDBOX_NO_ISOLATION_WARNING=1)",
                info.name
            ));
        }
    }
}

fn wants_colour(is_unwanted: bool) -> bool {
    !is_unwanted && (environment::forces_colour() || (environment::allows_colour() && std::io::stderr().is_terminal()))
}

/// Runs the program and gives its exit code. Reports every failure.
pub(crate) fn main() -> u8 {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error, &arguments),
    };
    let colour = wants_colour(cli.global.no_color);
    let format = cli.global.output;
    let app = match App::new(&cli.global) {
        Ok(app) => app,
        Err(failure) => return finish(Err(failure), format.unwrap_or_default(), colour),
    };
    let result = logging::install(cli.global.log.as_deref(), colour).and_then(|()| dispatch(&app, cli.command));
    finish(result, app.format, colour)
}

fn finish(result: Result<u8, Failure>, format: Format, colour: bool) -> u8 {
    match result {
        Ok(code) => code,
        Err(failure) => {
            failure.report(format, colour);
            failure.exit()
        }
    }
}

fn dispatch(app: &App, command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(args) => commands::run::run(app, *args),
        Command::Create(args) => sandbox::create::run(app, &args),
        Command::Exec(args) => sandbox::exec::run(app, *args),
        Command::Shell(args) => sandbox::shell::run(app, &args),
        Command::Ls(args) => sandbox::ls::run(app, &args),
        Command::Status(args) => sandbox::lifecycle::status(app, &args),
        Command::Stop(args) => sandbox::stop::run(app, &args),
        Command::Cp(args) => sandbox::cp::run(app, &args),
        Command::Logs(args) => sandbox::jobs::logs(app, &args),
        Command::Wait(args) => sandbox::jobs::wait(app, &args),
        Command::Kill(args) => sandbox::jobs::kill(app, &args),
        Command::Pause(args) => sandbox::lifecycle::pause(app, &args),
        Command::Resume(args) => sandbox::lifecycle::resume(app, &args),
        Command::Renew(args) => sandbox::lifecycle::renew(app, &args),
        Command::Stats(args) => sandbox::stats::run(app, &args),
        Command::Snapshot(command) => commands::snapshot::run(app, &command),
        Command::Gc(args) => sandbox::gc::run(app, &args),
        Command::Providers(command) => commands::providers::run(app, command),
        Command::Plugin(command) => commands::plugin::run(app, command),
        Command::Explain(args) => commands::explain::run(app, &args),
        Command::Compose(args) => commands::compose::run(app, *args),
        Command::Config(command) => commands::config::run(app, &command),
        Command::Completion(args) => commands::completion::run(&args).map(|()| 0),
        Command::Version => commands::version::run(app).map(|()| 0),
    }
}

/// The exit code of one of our own commands.
pub(crate) fn success_if(is_success: bool) -> u8 {
    if is_success { 0 } else { exit::FAILED }
}
