//! `sandboxctl exec`: run a command in a sandbox that is there.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use sandbox_core::StdinSource;
use serde_json::json;

use super::{Finder, SandboxArg};
use crate::{
    app::App,
    failure::Failure,
    output::{self, SCHEMA},
    run::{self, Input, Place, Plan, ResultFile},
    runtime,
    spec_args::{CommandArgs, EnvArgs},
};

/// Exit codes as those of `run`.
#[derive(Args)]
#[command(override_usage = "sandboxctl exec [OPTIONS] SANDBOX -- CMD [ARGS]")]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    sandbox: SandboxArg,
    /// Let it run on in the background and print its job id; see logs, wait and kill
    #[arg(short = 'd', long, conflicts_with_all = ["stdin", "interactive", "result"])]
    detach: bool,
    #[command(flatten)]
    env: EnvArgs,
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
    /// The program and its arguments, run without a shell
    #[arg(last = true, value_name = "CMD", required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(app: &App, args: ExecArgs) -> Result<u8, Failure> {
    let program = args.command[0].clone();
    let mut request = args.limits.request(args.command)?;
    args.env.fill(&mut request.env)?;
    request.validate().map_err(|error| Failure::of_command(&error))?;
    let finder = Finder::new(app)?;
    if args.detach {
        let job = runtime::block_on_until_signal(async {
            let (_, sandbox) = finder.find(&args.sandbox.sandbox).await?;
            sandbox.start_job(request).await.map_err(|error| Failure::of_run(&error))
        })?;
        if app.format.is_json() {
            output::json_line(&json!({ "schema": SCHEMA, "job": job }))?;
        } else {
            output::data(&format!("{}\n", job.job_id))?;
        }
        return Ok(0);
    }
    let input = Input::choose(args.stdin.as_deref(), args.interactive)?;
    if !matches!(input, Input::Null) {
        request.stdin = StdinSource::Stream;
    }
    let result = args.result.as_deref().map(ResultFile::open).transpose()?;
    runtime::block_on(async {
        let (saved, sandbox) = finder.find(&args.sandbox.sandbox).await?;
        let info = sandbox.info().clone();
        let place = Place::Existing(Box::new(sandbox), saved.name);
        run::run(Plan { app, place, info, request, program, input, image: None }, result).await
    })
}
