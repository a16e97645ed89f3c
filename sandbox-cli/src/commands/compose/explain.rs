//! `sandboxctl compose explain`: what providers would refuse or do differently.

use clap::Args;
use sandbox_api::compose::{ComposePlan, Severity};
use serde_json::json;

use super::document::{DocumentArgs, tell};
use crate::{
    app::{App, success_if},
    failure::Failure,
    output::{self, SCHEMA, Table},
    providers, runtime,
};

/// Exit code 1 if a provider would refuse it.
#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// Only these services and what they need
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
}

pub(super) fn run(app: &App, document: &DocumentArgs, args: &ExplainArgs) -> Result<u8, Failure> {
    let project = document.load(app, &args.services)?;
    let config = app.config()?;
    let host = providers::host(&config)?;
    let names = match document.provider.is_empty() {
        true => vec![config.provider(None, true).value],
        false => document.provider.clone(),
    };
    let infos = runtime::block_on_until_signal(async {
        let mut infos = Vec::new();
        for name in &names {
            let provider = providers::create(&host, &config, name)?;
            infos.push(provider.full_info());
            provider.aclose().await.map_err(|error| Failure::of_command(&error))?;
        }
        Ok(infos)
    })?;
    let options = document.plan_options();
    let planned: Vec<_> = infos.iter().map(|info| (info, project.plan(info, &options))).collect();
    let is_taken = planned.iter().all(|(_, planned)| planned.report.is_ok());
    if app.format.is_json() {
        let providers: serde_json::Map<_, _> = planned
            .iter()
            .map(|(info, planned)| {
                let accepted = planned.report.is_ok();
                (info.name.clone(), json!({ "accepted": accepted, "findings": planned.report }))
            })
            .collect();
        output::json_line(&json!({ "schema": SCHEMA, "accepted": is_taken, "providers": providers }))?;
        return Ok(success_if(is_taken));
    }
    let mut table = Table::new(["PROVIDER", "RUNS IT", "ERRORS", "WARNINGS", "NOTES"]);
    for (info, planned) in &planned {
        let runs = if planned.report.is_ok() { "yes" } else { "no" };
        let count = |severity| planned.report.count(severity).to_string();
        table.row([
            info.name.clone(),
            runs.to_owned(),
            count(Severity::Error),
            count(Severity::Warning),
            count(Severity::Note),
        ]);
        tell(app, &planned.report);
    }
    output::data(&table.to_string())?;
    Ok(success_if(is_taken))
}

/// Prints a plan.
pub(super) fn print(app: &App, plan: &ComposePlan) -> Result<(), Failure> {
    let services: Vec<_> = plan
        .services
        .iter()
        .map(|service| {
            let needs: Vec<_> = service.depends_on.keys().collect();
            json!({
                "name": service.name,
                "replicas": service.replicas,
                "image": service.spec.image,
                "builds": service.build.is_some(),
                "depends_on": needs,
                "ports": service.ports,
            })
        })
        .collect();
    if app.format.is_json() {
        return output::json_line(&json!({
            "schema": SCHEMA,
            "project": plan.project,
            "provider": plan.provider,
            "networking": plan.networking,
            "networks": plan.networks,
            "volumes": plan.volumes,
            "services": services,
        }));
    }
    let mut table = Table::new(["ORDER", "SERVICE", "REPLICAS", "IMAGE", "NEEDS"]);
    for (index, service) in plan.services.iter().enumerate() {
        let needs: Vec<_> = service.depends_on.keys().cloned().collect();
        let image =
            service.spec.image.clone().unwrap_or_else(|| if service.build.is_some() { "(built)" } else { "-" }.into());
        table.row([
            (index + 1).to_string(),
            service.name.clone(),
            service.replicas.to_string(),
            image,
            needs.join(", "),
        ]);
    }
    output::data(&table.to_string())
}
