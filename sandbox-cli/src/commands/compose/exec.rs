//! `sandboxctl compose exec`.

use std::{ffi::OsString, io::Write};

use clap::Args;
use sandbox_api::{AsyncSandbox, ExecOptions, Ownership};
use sandbox_core::{ExecEvent, ExecRequest};

use super::{document::DocumentArgs, state::Folder};
use crate::{app::App, exit, failure::Failure, output, providers, runtime, values};

#[derive(Args)]
pub(crate) struct ExecArgs {
    /// Kill the command after this long, exit 124
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<f64>,
    /// Set a variable
    #[arg(short = 'e', long = "env", value_name = "KEY=VALUE", value_parser = values::pair)]
    env: Vec<(String, String)>,
    /// Working directory of the command
    #[arg(short = 'w', long, value_name = "DIR")]
    workdir: Option<String>,
    /// User of the command
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Which sandbox of the service, from 1
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    index: u32,
    /// The service
    service: String,
    /// The program and its arguments, run without a shell
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub(super) fn run(app: &App, document: &DocumentArgs, args: ExecArgs) -> Result<u8, Failure> {
    let mut request = ExecRequest::argv(args.command);
    for (name, value) in args.env {
        request = request.with_env(name, value);
    }
    request.timeout_s = args.timeout;
    request.cwd = args.workdir.map(Into::into);
    request.user = args.user;
    with_sandbox(app, document, &args.service, args.index, async |sandbox| {
        let broken = |error: sandbox_core::SandboxError| Failure::of_broken_run(&error);
        let options = ExecOptions::new().without_timeout();
        let mut stream = sandbox.exec_stream_with(request, options).await.map_err(|error| Failure::of_run(&error))?;
        loop {
            match stream.next().await.map_err(broken)? {
                Some(ExecEvent::Stdout(bytes)) => std::io::stdout()
                    .lock()
                    .write_all(&bytes)
                    .and_then(|()| std::io::stdout().flush())
                    .map_err(|error| output::write_failure(&error))?,
                Some(ExecEvent::Stderr(bytes)) => {
                    // There is nobody to tell when that fails.
                    let _ = std::io::stderr().lock().write_all(&bytes);
                }
                Some(ExecEvent::Exit(end)) => {
                    return Ok(match end.outcome {
                        sandbox_core::ExecOutcome::TimedOut { .. } => exit::TIMED_OUT,
                        sandbox_core::ExecOutcome::StartFailed { message, reason } => {
                            return Err(Failure::new(exit::low_bits(reason.code()), "exec.start_failed", message));
                        }
                        outcome => exit::low_bits(outcome.return_code()),
                    });
                }
                Some(_) => {}
                None => return Err(Failure::infrastructure("the command's end was not told")),
            }
        }
    })
}

/// Does something with a sandbox of a running stack.
pub(super) fn with_sandbox<T>(
    app: &App,
    document: &DocumentArgs,
    service: &str,
    replica: u32,
    work: impl AsyncFnOnce(&AsyncSandbox) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let project = document.name(app)?;
    let folder = Folder::of(&project)?;
    let running = folder.expect_running(&project)?;
    let Some(descriptor) = &running.descriptor else {
        let message = format!("provider {:?} cannot find a sandbox of another process", running.provider);
        return Err(Failure::new(exit::USAGE, "unsupported", message));
    };
    let key = if replica == 1 { service.to_owned() } else { format!("{service}#{replica}") };
    let Some(one) = descriptor["services"].get(&key).cloned() else {
        let names = descriptor["services"].as_object().map(|map| map.keys().cloned().collect::<Vec<_>>().join(", "));
        let message = format!("there is no running service {key:?}; there is: {}", names.unwrap_or_default());
        return Err(Failure::failed("not_found", message).with_field("SERVICE"));
    };
    let config = app.config()?;
    let host = providers::host(&config)?;
    runtime::block_on_until_signal(async {
        let provider = providers::create(&host, &config, &running.provider)?;
        let sandbox =
            AsyncSandbox::connect(provider.clone(), one).await.map_err(|error| Failure::of_command(&error))?;
        let sandbox = sandbox.with_ownership(Ownership::Shared);
        let result = work(&sandbox).await;
        let ended = sandbox.disconnect().await.and(provider.aclose().await);
        let result = result?;
        ended.map_err(|error| Failure::of_command(&error))?;
        Ok(result)
    })
}
