//! `sandboxctl compose renew`.

use clap::Args;
use sandbox_api::compose::AsyncSandboxCompose;
use serde_json::json;

use super::{document::DocumentArgs, state::Folder};
use crate::{
    app::App,
    exit,
    failure::Failure,
    output::{self, SCHEMA},
    providers, runtime, values,
};

#[derive(Args)]
pub(crate) struct RenewArgs {
    /// How long it lives from now on (90s, 5m)
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "1h")]
    ttl: f64,
}

pub(super) fn run(app: &App, document: &DocumentArgs, args: &RenewArgs) -> Result<u8, Failure> {
    let project = document.name(app)?;
    let running = Folder::of(&project)?.expect_running(&project)?;
    let Some(descriptor) = running.descriptor else {
        let message = format!("provider {:?} cannot find a sandbox of another process", running.provider);
        return Err(Failure::new(exit::USAGE, "unsupported", message));
    };
    let config = app.config()?;
    let host = providers::host(&config)?;
    let expires_at_ms = runtime::block_on_until_signal(async {
        let failed = |error: sandbox_core::SandboxError| Failure::of_command(&error);
        let provider = providers::create(&host, &config, &running.provider)?;
        let stack = AsyncSandboxCompose::connect(provider.clone(), descriptor).await.map_err(failed)?;
        let renewed = stack.renew(args.ttl).await;
        drop(stack);
        let ended = provider.aclose().await;
        let expires_at_ms = renewed.map_err(failed)?;
        ended.map_err(failed)?;
        Ok(expires_at_ms)
    })?;
    if app.format.is_json() {
        output::json_line(&json!({ "schema": SCHEMA, "project": project, "expires_at_ms": expires_at_ms }))?;
    }
    Ok(0)
}
