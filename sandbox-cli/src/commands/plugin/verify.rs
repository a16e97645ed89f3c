use std::path::{Path, PathBuf};

use clap::Args;
use plugin_host::{Checksum, LoadedPlugin, load};
use sandbox_core::{ErrorKind, abi::HostInfo};
use serde_json::{Value, json};

use super::trace;
use crate::{
    app::{App, success_if},
    exit,
    failure::Failure,
    output::{self, SCHEMA},
    providers,
};

#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// The plugin file
    file: PathBuf,
    /// Settings of the provider, as JSON or as @FILE [default: those of the configuration]
    #[arg(long, value_name = "JSON|@FILE")]
    settings: Option<String>,
    /// Only load it
    #[arg(long, conflicts_with = "filter")]
    no_suite: bool,
    /// Run only the case of this name, or those whose name holds the text; may be repeated
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// The image of the suite's sandboxes, for a provider that needs one
    #[arg(long)]
    image: Option<String>,
}

/// Loads the file step by step and runs the suite on it. Exit code 1 unless it passes both.
pub(super) fn run(app: &App, args: &VerifyArgs) -> Result<u8, Failure> {
    let path = absolute(&args.file)?;
    let given = args.settings.as_deref().map(settings).transpose()?;
    let config = app.config()?;
    let loading = load(&path, &Checksum::Compute, &HostInfo::new());
    if !app.format.is_json() {
        output::data(&trace::table(&loading.steps).to_string())?;
    }
    let plugin = match loading.outcome {
        Ok(plugin) => plugin,
        Err(error) => {
            if app.format.is_json() {
                output::json_line(&json!({ "schema": SCHEMA, "load": loading.steps, "conformant": false }))?;
            }
            return Err(refused(&error));
        }
    };
    let settings = match given {
        Some(given) => given,
        None => providers::resolve(&config, &plugin.manifest.name)?.settings,
    };
    let mut result = json!({ "schema": SCHEMA, "load": loading.steps, "manifest": plugin.manifest });
    let is_conformant = if args.no_suite { true } else { suite(app, args, plugin, settings, &mut result)? };
    if app.format.is_json() {
        result["conformant"] = if args.no_suite { Value::Null } else { json!(is_conformant) };
        output::json_line(&result)?;
    }
    Ok(success_if(is_conformant))
}

/// The refusal of a file.
pub(super) fn refused(error: &sandbox_core::SandboxError) -> Failure {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::InvalidInput => Failure::of_command(error),
        _ => Failure::of_command(error).with_exit(exit::FAILED),
    }
}

/// A path as the host takes it.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::usage("the path of the plugin is wrong").because(error))
}

/// Reads `--settings`. Errors never show the text: it may hold secrets.
fn settings(text: &str) -> Result<Value, Failure> {
    let bad = |message: String| Failure::usage(message).with_field("--settings");
    let read;
    let json = match text.strip_prefix('@') {
        Some(path) => {
            read = std::fs::read_to_string(path).map_err(|error| bad(format!("cannot read {path}")).because(error))?;
            &read
        }
        None => text,
    };
    let value: Value = serde_json::from_str(json)
        .map_err(|error| bad(format!("--settings: no JSON at line {}, column {}", error.line(), error.column())))?;
    if value.is_object() { Ok(value) } else { Err(bad("--settings: expected a JSON object".to_owned())) }
}

#[cfg(feature = "verify")]
fn suite(
    app: &App,
    args: &VerifyArgs,
    plugin: LoadedPlugin,
    settings: Value,
    result: &mut Value,
) -> Result<bool, Failure> {
    use sandbox_conformance::{Suite, factory};
    use sandbox_core::SandboxSpec;

    let entry = plugin.entry;
    let spec = args.image.as_deref().map_or_else(SandboxSpec::default, SandboxSpec::image);
    let factory = factory(move || {
        let (entry, settings) = (entry.clone(), settings.clone());
        async move { entry.new_provider(&settings) }
    })
    .with_spec(spec);
    let suite = args.filter.iter().fold(Suite::new(factory), |suite, filter| suite.with_filter(filter));
    if suite.cases().is_empty() {
        return Err(Failure::usage("--filter: no case has such a name").with_field("--filter"));
    }
    let report = crate::runtime::block_on_until_signal(async {
        suite.run().await.map_err(|error| Failure::of_provider(&error))
    })?;
    if app.format.is_json() {
        result["report"] = report.to_json();
    } else {
        output::data(&report.to_string())?;
    }
    Ok(report.is_conformant())
}

#[cfg(not(feature = "verify"))]
fn suite(_: &App, _: &VerifyArgs, _: LoadedPlugin, _: Value, _: &mut Value) -> Result<bool, Failure> {
    Err(Failure::failed("unsupported", "this build has no conformance suite: its feature \"verify\" is off")
        .with_help("use --no-suite, or a build with the feature"))
}
