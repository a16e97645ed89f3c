//! `sandboxctl pause`, `resume`, `renew` and `status`.

use clap::Args;
use sandbox_api::AsyncSandbox;
use sandbox_core::SandboxStatus;
use serde_json::json;

use super::{Finder, SandboxArg};
use crate::{
    app::App,
    failure::Failure,
    output::{self, SCHEMA},
    runtime,
    state::now_ms,
    values::{self, show_seconds},
};

/// Exit code 1 if it is not running.
#[derive(Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    sandbox: SandboxArg,
}

/// Its time to live does not run inside while it is paused.
#[derive(Args)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    sandbox: SandboxArg,
}

#[derive(Args)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    sandbox: SandboxArg,
    /// How long it is to live from now on
    #[arg(value_name = "DURATION", value_parser = values::duration)]
    ttl: f64,
}

pub(crate) fn status(app: &App, args: &StatusArgs) -> Result<u8, Failure> {
    let finder = Finder::new(app)?;
    let saved = finder.store.find(&args.sandbox.sandbox)?;
    let (status, isolation) = runtime::block_on_until_signal(async {
        match finder.connect(&saved).await {
            Ok(sandbox) => {
                let status = sandbox.status().await.map_err(|error| Failure::of_command(&error))?;
                Ok((status, sandbox.info().isolation.clone()))
            }
            // Where it was there is nothing any more.
            Err(failure) if failure.code() == "not_found" => Ok((SandboxStatus::Stopped, String::new())),
            Err(failure) => Err(failure),
        }
    })?;
    if app.format.is_json() {
        output::json_line(&json!({
            "schema": SCHEMA, "name": saved.name, "id": saved.id, "provider": saved.provider, "image": saved.image,
            "state": status, "isolation": isolation, "created_at_ms": saved.created_at_ms,
            "expires_at_ms": saved.descriptor.get("expires_at_ms"),
        }))?;
    } else {
        let mut table = output::Table::headless();
        table.row(["name", &saved.name]);
        table.row(["id", &saved.id]);
        table.row(["provider", &saved.provider]);
        table.row(["isolation", &isolation]);
        table.row(["image", saved.image.as_deref().unwrap_or("-")]);
        table.row(["state", status.as_str()]);
        table.row(["age", &show_seconds((now_ms().saturating_sub(saved.created_at_ms) / 1000) as f64)]);
        table.row(["ttl", &saved.left_s().map_or_else(|| "-".to_owned(), |left| show_seconds(left.round()))]);
        output::data(&table.to_string())?;
    }
    Ok(crate::app::success_if(status == SandboxStatus::Running))
}

pub(crate) fn pause(app: &App, args: &PauseArgs) -> Result<u8, Failure> {
    change(app, &args.sandbox, async |sandbox| sandbox.pause().await)
}

pub(crate) fn resume(app: &App, args: &PauseArgs) -> Result<u8, Failure> {
    change(app, &args.sandbox, async |sandbox| sandbox.resume().await)
}

pub(crate) fn renew(app: &App, args: &RenewArgs) -> Result<u8, Failure> {
    change(app, &args.sandbox, async |sandbox| sandbox.renew(args.ttl).await.map(drop))
}

/// Does it, and keeps what changed: a resume may give another handle, a renewal another expiry.
fn change(
    app: &App,
    sandbox: &SandboxArg,
    work: impl AsyncFnOnce(&AsyncSandbox) -> sandbox_core::Result<()>,
) -> Result<u8, Failure> {
    let finder = Finder::new(app)?;
    runtime::block_on_until_signal(async {
        let (mut saved, sandbox) = finder.find(&sandbox.sandbox).await?;
        work(&sandbox).await.map_err(|error| Failure::of_command(&error))?;
        saved.descriptor = sandbox.serialize(None).await.map_err(|error| Failure::of_command(&error))?;
        finder.store.save(&saved)
    })?;
    Ok(0)
}
