//! `sandboxctl compose cp`.

use std::path::Path;

use clap::Args;

use super::{document::DocumentArgs, exec::with_sandbox};
use crate::{app::App, failure::Failure};

#[derive(Args)]
pub(crate) struct CopyArgs {
    /// Which sandbox of the service, from 1
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    index: u32,
    /// SERVICE:PATH, or a path of this machine
    source: String,
    /// The other of the two
    target: String,
}

pub(super) fn run(app: &App, document: &DocumentArgs, args: &CopyArgs) -> Result<u8, Failure> {
    let inside = |text: &str| {
        // A path of this machine that has a colon is written as ./a:b.
        let (service, path) = text.split_once(':')?;
        (!service.contains('/') && !service.is_empty()).then(|| (service.to_owned(), path.to_owned()))
    };
    let failed = |error: sandbox_core::SandboxError| Failure::of_command(&error);
    match (inside(&args.source), inside(&args.target)) {
        (None, Some((service, path))) => {
            let local = Path::new(&args.source);
            with_sandbox(app, document, &service, args.index, async |sandbox| match local.is_dir() {
                true => sandbox.upload_dir(local, path.as_str()).await.map_err(failed),
                false => sandbox.upload(local, path.as_str()).await.map_err(failed),
            })?;
        }
        (Some((service, path)), None) => {
            let local = Path::new(&args.target);
            let name = Path::new(&path).file_name().unwrap_or_default();
            let local = if local.is_dir() { local.join(name) } else { local.to_owned() };
            with_sandbox(app, document, &service, args.index, async |sandbox| {
                sandbox.download(path.as_str(), &local).await.map_err(failed)
            })?;
        }
        _ => return Err(Failure::usage("exactly one of both must be SERVICE:PATH").with_field("SOURCE")),
    }
    Ok(0)
}
