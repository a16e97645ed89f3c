//! `sandboxctl create`: make a sandbox that outlives this program.

use clap::Args;
use sandbox_api::{AsyncSandbox, new_identity};
use sandbox_core::{Capability, Owner};
use serde_json::json;

use super::Finder;
use crate::{
    app::App,
    failure::Failure,
    output::{self, SCHEMA},
    providers, runtime,
    spec_args::SpecArgs,
    state::Saved,
};

/// The life of a sandbox that was given none.
pub(in crate::commands) const DEFAULT_TTL_S: f64 = 3600.0;

/// Its name is printed. It ends with `stop`, or when its time to live is over: after an hour unless --ttl says otherwise,
/// and `renew` moves that.
#[derive(Args)]
#[command(override_usage = "sandboxctl create [OPTIONS] [IMAGE]")]
pub(crate) struct CreateArgs {
    /// Where to make it [env: SANDBOX_PROVIDER] [default: docker for an image, else local]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    #[command(flatten)]
    spec: SpecArgs,
    /// Working directory of commands that name none
    #[arg(short = 'w', long, value_name = "DIR")]
    workdir: Option<String>,
    /// User of commands that name none: NAME, UID, UID:GID or NAME:GROUP
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Image reference
    #[arg(value_name = "IMAGE")]
    image: Option<String>,
}

pub(crate) fn run(app: &App, args: &CreateArgs) -> Result<u8, Failure> {
    let mut spec = args.spec.spec(args.image.as_deref())?;
    spec.workdir = args.workdir.clone().or(spec.workdir);
    spec.user = args.user.clone().or(spec.user);
    let ttl_s = *spec.ttl_s.get_or_insert(DEFAULT_TTL_S);
    spec.validate().map_err(|error| Failure::of_command(&error))?;
    let finder = Finder::new(app)?;
    let name = finder.config.provider(args.provider.as_deref(), spec.image.is_some()).value;
    let reserved = finder.store.reserve(spec.name.as_deref(), &name)?;
    spec.name = Some(reserved.name.clone());
    spec.identity = Some(new_identity(Owner::Lease, Some(ttl_s)));
    let saved = runtime::block_on_until_signal(async {
        let provider = providers::create(&finder.host, &finder.config, &name)?;
        let info = provider.full_info();
        app.warn_of_isolation(&info);
        if provider.as_connect().is_none() {
            return Err(Failure::usage(format!("a sandbox of provider {name} cannot outlive this program"))
                .because(format!("it does not have the capability {}", Capability::Connect))
                .with_help("run a single command with: sandboxctl run"));
        }
        let image = spec.image.clone();
        let sandbox = AsyncSandbox::new(provider);
        sandbox.start(Some(spec)).await.map_err(|error| Failure::of_run(&error))?;
        let kept = keep(&sandbox, &reserved.name, &name, image).await;
        if kept.is_err() {
            // Nothing half-made stays behind; what cannot be removed now is queued by the drop.
            let _ = sandbox.stop().await;
        }
        kept
    })?;
    let (name, id) = (saved.name.clone(), saved.id.clone());
    reserved.save(&saved)?;
    if app.format.is_json() {
        output::json_line(&json!({
            "schema": SCHEMA, "name": name, "id": id, "provider": saved.provider,
            "expires_at_ms": saved.descriptor.get("expires_at_ms"),
        }))?;
    } else {
        output::data(&format!("{name}\n"))?;
    }
    Ok(0)
}

async fn keep(sandbox: &AsyncSandbox, name: &str, provider: &str, image: Option<String>) -> Result<Saved, Failure> {
    let keep = async {
        let descriptor = sandbox.serialize(None).await?;
        let handle = sandbox.handle()?;
        let saved = Saved::new(name, provider, &handle.sandbox_id, image, descriptor);
        sandbox.leave().await?;
        Ok(saved)
    };
    keep.await.map_err(|error: sandbox_core::SandboxError| Failure::of_run(&error))
}
