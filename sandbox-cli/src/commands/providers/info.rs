use sandbox_core::{Field, FieldSupport, ProviderInfo};
use serde_json::json;

use crate::{
    app::App,
    failure::Failure,
    output::{self, Format, SCHEMA, Table},
    providers, runtime,
};

/// Makes the provider with its configuration and shows what it says of itself.
pub(super) fn run(app: &App, name: &str) -> Result<(), Failure> {
    let config = app.config()?;
    let host = providers::host(&config)?;
    let info = runtime::block_on_until_signal(async {
        let provider = providers::create(&host, &config, name)?;
        let info = provider.full_info();
        provider.aclose().await.map_err(|error| Failure::of_command(&error))?;
        Ok(info)
    })?;
    match app.format {
        Format::Json | Format::Jsonl => output::json_line(&to_json(&info)),
        Format::Name => output::data(&format!("{}\n", info.name)),
        Format::Table | Format::Wide => output::data(&to_text(&info)),
    }
}

fn to_json(info: &ProviderInfo) -> serde_json::Value {
    let fields: serde_json::Map<_, _> =
        Field::ALL.iter().map(|field| (field.as_str().to_owned(), json!(info.support(*field)))).collect();
    json!({
        "schema": SCHEMA,
        "provider": {
            "name": info.name,
            "isolation": info.isolation,
            "capabilities": info.capabilities,
            "fields": fields,
            "details": info.details,
        }
    })
}

fn to_text(info: &ProviderInfo) -> String {
    let labels: Vec<&str> = info.capabilities.known().map(|capability| capability.label()).collect();
    let known: Vec<&str> = info.capabilities.known().map(|capability| capability.wire_name()).collect();
    let others = info.capabilities.names().filter(|name| !known.contains(name));
    let capabilities: Vec<&str> = labels.into_iter().chain(others).collect();
    let mut head = Table::headless();
    head.row(["name:", &info.name]);
    head.row(["isolation:", &info.isolation]);
    head.row([
        "capabilities:".to_owned(),
        if capabilities.is_empty() { "-".to_owned() } else { capabilities.join(", ") },
    ]);
    for (key, value) in &info.details {
        head.row([format!("{key}:"), value.clone()]);
    }
    let mut table = Table::new(["FIELD", "SUPPORT"]);
    for field in Field::ALL {
        table.row([field.as_str().to_owned(), show_support(&info.support(*field))]);
    }
    format!("{head}\n{table}")
}

/// A field's support, in a few words.
pub(crate) fn show_support(support: &FieldSupport) -> String {
    match support {
        FieldSupport::Honoured => "ok".to_owned(),
        FieldSupport::Emulated(how) => format!("emulated ({how})"),
        FieldSupport::Refused(why) => format!("refused ({why})"),
        _ => "unknown".to_owned(),
    }
}
