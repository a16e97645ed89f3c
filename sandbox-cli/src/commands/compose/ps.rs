//! `sandboxctl compose ps` and `port`.

use clap::Args;
use serde_json::Value;

use super::{document::DocumentArgs, found, state::Folder};
use crate::{
    app::App,
    failure::Failure,
    output::{self, List, Table},
};

#[derive(Args)]
pub(crate) struct PortArgs {
    /// The service
    service: String,
    /// The port inside
    port: u16,
}

fn status(app: &App, document: &DocumentArgs) -> Result<Value, Failure> {
    let project = document.name(app)?;
    let folder = Folder::of(&project)?;
    let running = folder.expect_running(&project)?;
    let mut status: Value = folder.read("status.json").unwrap_or_default();
    if !running.is_owned() {
        app.warn(
            "the process that looked after the stack is gone: nobody checks its health or starts its programs again; \
             remove it with: sandboxctl compose down",
        );
        let now = found::with_stack(app, &running, async |stack| {
            stack.status().map_err(|error| Failure::of_command(&error))
        })?;
        if let Some(now) = now {
            status["services"] = serde_json::to_value(now).unwrap_or_default();
        }
    }
    Ok(status)
}

pub(super) fn run(app: &App, document: &DocumentArgs) -> Result<u8, Failure> {
    let status = status(app, document)?;
    let entries: Vec<Value> = status["services"].as_array().cloned().unwrap_or_default();
    let mut table = Table::new(["SERVICE", "REPLICA", "STATE", "HEALTH", "RESTARTS", "SANDBOX"]);
    let mut names = Vec::new();
    for entry in &entries {
        let text = |key: &str| entry[key].as_str().map_or_else(|| entry[key].to_string(), str::to_owned);
        let phase = match &entry["phase"] {
            Value::Object(phase) => phase.iter().map(|(name, value)| format!("{name}({value})")).collect(),
            phase => phase.as_str().unwrap_or_default().to_owned(),
        };
        table.row([text("service"), text("replica"), phase, text("health"), text("restarts"), text("sandbox_id")]);
        names.push(format!("{}-{}", text("service"), text("replica")));
    }
    List { key: "services", entries, names, table }.print(app.list_format())?;
    Ok(0)
}

pub(super) fn port(app: &App, document: &DocumentArgs, args: &PortArgs) -> Result<u8, Failure> {
    let status = status(app, document)?;
    let ports = status["ports"].as_array().cloned().unwrap_or_default();
    let is_it = |port: &&Value| port["service"] == args.service.as_str() && port["target"] == args.port;
    let found = ports.iter().find(is_it).ok_or_else(|| {
        Failure::failed("not_found", format!("port {} of service {:?} is not published", args.port, args.service))
    })?;
    match found["endpoint"].as_str() {
        _ if app.format.is_json() => output::json_line(found)?,
        Some(endpoint) => output::data(&format!("{endpoint}\n"))?,
        None => return Err(Failure::failed("not_found", "the provider does not say where the port is reached")),
    }
    Ok(0)
}
