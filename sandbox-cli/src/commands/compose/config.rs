//! `sandboxctl compose config`.

use clap::Args;

use super::document::DocumentArgs;
use crate::{app::App, failure::Failure, output};

#[derive(Args)]
pub(crate) struct ConfigArgs {
    /// Only the names of the services
    #[arg(long)]
    services: bool,
    /// Only check it
    #[arg(long, conflicts_with = "services")]
    check: bool,
}

pub(super) fn run(app: &App, document: &DocumentArgs, args: &ConfigArgs) -> Result<u8, Failure> {
    let project = document.load(app, &[])?;
    if args.check {
        return Ok(0);
    }
    if args.services {
        let names: String = project.services.keys().map(|name| format!("{name}\n")).collect();
        return output::data(&names).map(|()| 0);
    }
    let resolved = project.resolved();
    if app.format.is_json() {
        output::json_line(&resolved)?;
    } else {
        // JSON is YAML: what is printed is a compose file.
        let text = serde_json::to_string_pretty(&resolved)
            .map_err(|error| Failure::infrastructure(format!("cannot write the document as JSON: {error}")))?;
        output::data(&format!("{text}\n"))?;
    }
    Ok(0)
}
