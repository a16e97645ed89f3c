//! `sandboxctl explain`: what each provider would do with each field of a spec and a command.

use clap::Args;
use sandbox_core::{Field, FieldSupport, ProviderInfo};
use serde_json::json;

use super::providers::info::show_support;
use crate::{
    app::{App, success_if},
    failure::Failure,
    output::{self, SCHEMA, Table},
    providers, runtime,
    spec_args::{CommandArgs, SpecArgs},
};

/// Exit code 1 if anything would be refused.
#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// A provider, or several with commas; may be repeated [default: the one that `run` would take]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    provider: Vec<String>,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    limits: CommandArgs,
    /// Image reference
    #[arg(value_name = "IMAGE")]
    image: Option<String>,
}

/// Shows it.
pub(crate) fn run(app: &App, args: &ExplainArgs) -> Result<u8, Failure> {
    let spec = args.spec.spec(args.image.as_deref())?;
    let request = args.limits.request(["true"])?;
    let used: Vec<Field> = spec.used_fields().into_iter().chain(request.used_fields()).collect();
    let config = app.config()?;
    let host = providers::host(&config)?;
    let mut names = args.provider.clone();
    if names.is_empty() {
        names.push(config.provider(None, spec.image.is_some()).value);
    }
    let infos = runtime::block_on_until_signal(async {
        let mut infos = Vec::new();
        for name in &names {
            let provider = providers::create(&host, &config, name)?;
            infos.push(provider.full_info());
            provider.aclose().await.map_err(|error| Failure::of_command(&error))?;
        }
        Ok(infos)
    })?;
    let is_refused = |info: &ProviderInfo, field: &Field| matches!(info.support(*field), FieldSupport::Refused(_));
    let is_all_taken = !infos.iter().any(|info| used.iter().any(|field| is_refused(info, field)));
    if app.format.is_json() {
        let providers: serde_json::Map<_, _> = infos
            .iter()
            .map(|info| {
                let fields: serde_json::Map<_, _> =
                    used.iter().map(|field| (field.as_str().to_owned(), json!(info.support(*field)))).collect();
                (info.name.clone(), json!({ "isolation": info.isolation, "fields": fields }))
            })
            .collect();
        output::json_line(&json!({ "schema": SCHEMA, "accepted": is_all_taken, "providers": providers }))?;
    } else {
        let mut table = Table::new(["FIELD".to_owned()].into_iter().chain(infos.iter().map(|info| info.name.clone())));
        let isolation = infos.iter().map(|info| info.isolation.clone());
        table.row(["(isolation)".to_owned()].into_iter().chain(isolation));
        for field in &used {
            let support = infos.iter().map(|info| show_support(&info.support(*field)));
            table.row([field.as_str().to_owned()].into_iter().chain(support));
        }
        output::data(&table.to_string())?;
    }
    Ok(success_if(is_all_taken))
}
