//! `sandboxctl ls`: the sandboxes that outlive this program.

use std::collections::BTreeMap;

use clap::Args;
use sandbox_core::{ListFilter, SandboxRecord, SandboxStatus};
use serde_json::{Value, json};

use super::Finder;
use crate::{
    app::App,
    failure::Failure,
    output::{List, Table},
    providers, runtime,
    state::{Saved, now_ms},
    values::{self, show_seconds},
};

/// What this user made with `create`, and with --all what else the providers know of this system.
#[derive(Args)]
pub(crate) struct LsArgs {
    /// Also those that were not made by `create`, and those that have ended
    #[arg(short = 'a', long)]
    all: bool,
    /// Only with this label; may be repeated
    #[arg(short = 'l', long, value_name = "KEY=VALUE", value_parser = values::pair)]
    label: Vec<(String, String)>,
    /// Only of this provider
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
}

struct Row {
    name: String,
    id: String,
    provider: String,
    image: Option<String>,
    status: SandboxStatus,
    created_at_ms: Option<u64>,
    left_s: Option<f64>,
    labels: BTreeMap<String, String>,
}

pub(crate) fn run(app: &App, args: &LsArgs) -> Result<u8, Failure> {
    let finder = Finder::new(app)?;
    let saved: Vec<Saved> = finder.store.all()?;
    let is_wanted = |name: &str| args.provider.as_deref().is_none_or(|wanted| wanted == name);
    let mut names: Vec<String> =
        saved.iter().map(|saved| saved.provider.clone()).filter(|name| is_wanted(name)).collect();
    if args.all {
        names.push(finder.config.provider(args.provider.as_deref(), false).value);
    }
    names.sort();
    names.dedup();
    let rows = runtime::block_on_until_signal(async {
        let mut rows = Vec::new();
        for name in names {
            let of_provider: Vec<&Saved> = saved.iter().filter(|saved| saved.provider == name).collect();
            rows.extend(of_one(app, &finder, args, &name, &of_provider).await);
        }
        Ok(rows)
    })?;
    let mut table = Table::new(["NAME", "PROVIDER", "IMAGE", "STATE", "AGE", "TTL", "LABELS"]);
    let rows: Vec<Row> = rows.into_iter().filter(|row| args.all || row.status != SandboxStatus::Stopped).collect();
    for row in &rows {
        let age = row.created_at_ms.map(|at| (now_ms().saturating_sub(at) / 1000) as f64);
        let labels: Vec<String> = row.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let or_dash = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
        table.row([
            row.name.clone(),
            row.provider.clone(),
            or_dash(row.image.clone()),
            row.status.to_string(),
            or_dash(age.map(show_seconds)),
            or_dash(row.left_s.map(|left| show_seconds(left.round()))),
            or_dash(Some(labels.join(","))),
        ]);
    }
    let list = List {
        key: "sandboxes",
        names: rows.iter().map(|row| row.name.clone()).collect(),
        entries: rows.iter().map(to_json).collect(),
        table,
    };
    list.print(app.list_format())?;
    Ok(0)
}

fn to_json(row: &Row) -> Value {
    json!({
        "name": row.name, "id": row.id, "provider": row.provider, "image": row.image, "state": row.status,
        "created_at_ms": row.created_at_ms, "ttl_s": row.left_s, "labels": row.labels,
    })
}

/// What one provider has. One that cannot be reached is told, and what is known of its sandboxes is shown all the same.
async fn of_one(app: &App, finder: &Finder, args: &LsArgs, name: &str, saved: &[&Saved]) -> Vec<Row> {
    let asked = ask(finder, args, name).await;
    let records = match asked {
        Ok(records) => Some(records),
        Err(failure) => {
            app.warn(&format!("provider {name} could not be asked: {}", failure.message()));
            None
        }
    };
    let mut rows = Vec::new();
    for saved in saved {
        let record = records.iter().flatten().find(|record| record.handle.sandbox_id == saved.id);
        let labels = record.map(|record| record.metadata.clone()).unwrap_or_default();
        if !args.label.is_empty() && record.is_none() {
            continue;
        }
        let status = match (&records, record) {
            (_, Some(record)) => record.status,
            // Whoever lists everything and does not list this one has it no more.
            (Some(_), None) => SandboxStatus::Stopped,
            (None, None) => SandboxStatus::Unknown,
        };
        rows.push(Row {
            name: saved.name.clone(),
            id: saved.id.clone(),
            provider: saved.provider.clone(),
            image: saved.image.clone(),
            status,
            created_at_ms: Some(saved.created_at_ms),
            left_s: saved.left_s(),
            labels,
        });
    }
    if args.all {
        let others = records.into_iter().flatten();
        rows.extend(others.filter(|record| !saved.iter().any(|saved| saved.id == record.handle.sandbox_id)).map(other));
    }
    rows
}

async fn ask(finder: &Finder, args: &LsArgs, name: &str) -> Result<Vec<SandboxRecord>, Failure> {
    let provider = providers::create(&finder.host, &finder.config, name)?;
    let Some(list) = provider.as_list_sweep() else {
        return Err(Failure::failed("unsupported", "it cannot list its sandboxes"));
    };
    let filter = ListFilter { metadata: args.label.iter().cloned().collect(), ..ListFilter::default() };
    let records = list.list(filter).await.map_err(|error| Failure::of_command(&error));
    let _ = provider.aclose().await;
    records
}

fn other(record: SandboxRecord) -> Row {
    let identity = record.identity.as_ref();
    Row {
        name: record.name.clone().unwrap_or_else(|| record.handle.sandbox_id.clone()),
        id: record.handle.sandbox_id.clone(),
        provider: record.handle.provider_name.clone(),
        image: record.image.clone(),
        status: record.status,
        created_at_ms: identity.map(|identity| identity.created_at_ms),
        left_s: identity
            .and_then(|identity| identity.expires_at_ms)
            .map(|at| at.saturating_sub(now_ms()) as f64 / 1000.0),
        labels: record.metadata,
    }
}
