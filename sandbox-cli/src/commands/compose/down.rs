//! `sandboxctl compose down`.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::{document::DocumentArgs, found, state::Folder};
use crate::{
    app::App,
    failure::Failure,
    output::{self, SCHEMA},
    values,
};

#[derive(Args)]
pub(crate) struct DownArgs {
    /// How long stopping may take (90s, 5m)
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "120")]
    timeout: f64,
}

pub(super) fn run(app: &App, document: &DocumentArgs, args: &DownArgs) -> Result<u8, Failure> {
    let project = document.name(app)?;
    let folder = Folder::of(&project)?;
    let Some(running) = folder.running() else {
        // What is not running is down.
        return told(app, &project, false);
    };
    if running.is_owned() {
        folder.ask_to_stop()?;
        let until = Instant::now() + Duration::from_secs_f64(args.timeout);
        while folder.running().is_some() && running.is_owned() {
            if Instant::now() > until {
                let message = format!("project {project:?} did not stop within {} s", args.timeout);
                return Err(
                    Failure::failed("compose.timed_out", message).with_help("try again with a longer --timeout")
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if folder.running().is_none() {
            return told(app, &project, true);
        }
    }
    // Whoever ran it is gone: its sandboxes are found again and removed.
    found::with_stack(app, &running, async |stack| stack.stop().await.map_err(|error| Failure::of_command(&error)))?;
    if running.descriptor.is_none() {
        app.warn(
            "the process that ran the stack is gone, and its provider cannot find sandboxes again: \
             they go at their expiry",
        );
    }
    folder.remove()?;
    told(app, &project, true)
}

fn told(app: &App, project: &str, was_running: bool) -> Result<u8, Failure> {
    if app.format.is_json() {
        output::json_line(&json!({ "schema": SCHEMA, "project": project, "was_running": was_running }))?;
    } else if !was_running {
        app.warn(&format!("project {project:?} is not running"));
    }
    Ok(0)
}
