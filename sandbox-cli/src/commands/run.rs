//! `sandboxctl run`: make a sandbox, run a command in it, remove it.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use sandbox_core::StdinSource;

use crate::{
    app::App,
    failure::Failure,
    providers,
    run::{self, Input, Place, Plan, ResultFile},
    runtime,
    spec_args::{CommandArgs, SpecArgs},
    usage,
};

const EXIT_CODES: &str = "\
Exit codes:
  the command's own, 128+N when signal N ended it
  2    a wrong line, spec or configuration; a provider that is not there
  4    credentials are missing or were refused
  124  --timeout or --idle-timeout was hit
  125  the system around the command failed, also: no such directory or user
  126  the program is not executable
  127  the program was not found
  130  interrupted (129 hangup, 143 terminated); nothing is left then
  141  the reader of our output went away
124 to 127 can also be the command's own: --result tells them apart.";

#[derive(Args)]
#[command(override_usage = "sandboxctl run [OPTIONS] [IMAGE] -- CMD [ARGS]", after_help = EXIT_CODES)]
pub(crate) struct RunArgs {
    /// Where to run it [env: SANDBOX_PROVIDER] [default: docker for an image, else local]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    limits: CommandArgs,
    /// Give the command this file as its input
    #[arg(long, value_name = "FILE", conflicts_with = "interactive")]
    stdin: Option<PathBuf>,
    /// Give the command our input even when that is a terminal
    #[arg(short = 'i', long)]
    interactive: bool,
    /// Write how it ended as JSON to a file or an open descriptor
    #[arg(long, value_name = "FILE|fd:N")]
    result: Option<String>,
    /// Image reference
    #[arg(value_name = "IMAGE")]
    words: Vec<OsString>,
    /// The program and its arguments, run without a shell
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl RunArgs {
    /// True if there is a word that is no option.
    pub(crate) fn has_words(&self) -> bool {
        !self.words.is_empty()
    }
}

/// Runs it.
pub(crate) fn run(app: &App, args: RunArgs) -> Result<u8, Failure> {
    let image = image(&args)?;
    let mut spec = args.spec.spec(image.as_deref())?;
    let program = args.command[0].clone();
    let input = Input::choose(args.stdin.as_deref(), args.interactive)?;
    let mut request = args.limits.request(args.command)?;
    if !matches!(input, Input::Null) {
        request.stdin = StdinSource::Stream;
    }
    let result = args.result.as_deref().map(ResultFile::open).transpose()?;
    let config = app.config()?;
    let name = config.provider(args.provider.as_deref(), spec.image.is_some());
    tracing::debug!(provider = %name.value, source = %name.source, "provider chosen");
    let host = providers::host(&config)?;
    runtime::block_on(async {
        let chosen = |failure: Failure| match args.provider {
            Some(_) => failure,
            None => failure.because(format!("provider {:?} was chosen by: {}", name.value, name.source)),
        };
        let resolved = providers::resolve(&config, &name.value).map_err(chosen)?;
        let provider = providers::create_resolved(&host, &resolved).map_err(chosen)?;
        for (key, value) in resolved.metadata {
            spec.metadata.entry(key).or_insert(value);
        }
        let info = provider.full_info();
        app.warn_of_isolation(&info);
        let place = Place::New(provider, Box::new(spec));
        let plan = Plan { app, place, info, request, program, input, image };
        run::run(plan, result).await
    })
}

/// The image, if there is one. Refuses a command that does not stand behind `--`.
fn image(args: &RunArgs) -> Result<Option<String>, Failure> {
    if args.command.is_empty() {
        return Err(usage::missing_separator(&args.words, &std::env::args_os().collect::<Vec<_>>()));
    }
    match args.words.as_slice() {
        [] => Ok(None),
        [image] => match image.to_str() {
            Some(image) => Ok(Some(image.to_owned())),
            None => Err(Failure::usage("the image reference is not UTF-8").with_field("IMAGE")),
        },
        _ => Err(Failure::usage("there is more than an image before \"--\"")
            .with_field("IMAGE")
            .with_help("write options before the image: sandboxctl run [OPTIONS] [IMAGE] -- CMD [ARGS]")),
    }
}
