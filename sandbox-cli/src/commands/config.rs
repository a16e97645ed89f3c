//! `sandboxctl config`: what is configured, and where it comes from.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::{
    app::App,
    config::{self, Config},
    environment,
    failure::Failure,
    output::{List, Table},
};

/// Shown below the help of `config`.
pub(crate) const FORM: &str = "\
Variables, before any file:
  SANDBOX_PROVIDER                           the provider of commands that name none
  SANDBOX_PROVIDER__LOCAL__WORKSPACE_ROOT    a setting of a provider

Files, the one that wins first, key by key:
  --config FILE                              TOML, YAML or JSON by its name; then no other is read
  sandbox.toml                               in the working folder or the nearest one above it
  $XDG_CONFIG_HOME/sandbox/config.toml

Keys:
  provider = \"local\"                         of commands that name none
  [providers.local]                          settings; the provider checks them
  workspace_root = \"/var/tmp/boxes\"
  [blocks.fast]                              a provider block: --provider fast
  local = { isolation = \"none\" }
  default_metadata = { team = \"blue\" }      labels of its sandboxes
  [plugins]
  path = [\"/opt/acme/plugins\"]              looked at first; not taken from a sandbox.toml that was only found

Values of settings may stand elsewhere, but not in a sandbox.toml that was only found:
  \"${oc.env:NAME}\" or \"${oc.env:NAME,default}\", { from_env = \"NAME\" }, { from_file = \"/absolute/path\" }";

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show every value that is set; values of provider settings are shown as ***
    Show {
        /// Show where each value comes from
        #[arg(long)]
        origin: bool,
    },
    /// List the files that are read, the one that wins first
    Path,
}

/// Runs one of them.
pub(crate) fn run(app: &App, command: &ConfigCommand) -> Result<u8, Failure> {
    let config = app.config()?;
    match command {
        ConfigCommand::Show { origin } => show(app, &config, *origin),
        ConfigCommand::Path => path(app, &config),
    }
    .map(|()| 0)
}

struct Entry {
    key: String,
    value: Value,
    origin: String,
}

fn entries(config: &Config) -> Vec<Entry> {
    let provider = config.provider(None, false);
    let mut entries = vec![Entry { key: "provider".to_owned(), value: json!(provider.value), origin: provider.source }];
    let blocks = config.blocks().map(|(name, source)| Entry {
        key: format!("blocks.{name}"),
        value: json!("***"),
        origin: source.to_owned(),
    });
    entries.extend(blocks);
    if let Some(path) = config.plugin_path() {
        entries.push(Entry { key: "plugins.path".to_owned(), value: json!(path.value), origin: path.source.clone() });
    }
    entries.extend(config.all_settings().map(|(name, key, sourced)| Entry {
        key: format!("providers.{name}.{key}"),
        // Only the provider knows which of its settings are secret.
        value: match &sourced.value {
            value @ (Value::Bool(_) | Value::Number(_)) => value.clone(),
            _ => json!("***"),
        },
        origin: sourced.source.clone(),
    }));
    entries
}

fn show(app: &App, config: &Config, with_origin: bool) -> Result<(), Failure> {
    let entries = entries(config);
    let mut table = Table::new(["KEY", "VALUE"].into_iter().chain(with_origin.then_some("ORIGIN")));
    for entry in &entries {
        let value = entry.value.as_str().map_or_else(|| entry.value.to_string(), str::to_owned);
        let origin = with_origin.then(|| entry.origin.clone());
        table.row([entry.key.clone(), value].into_iter().chain(origin));
    }
    let json = |entry: &Entry| match with_origin {
        true => json!({ "key": entry.key, "value": entry.value, "origin": entry.origin }),
        false => json!({ "key": entry.key, "value": entry.value }),
    };
    let names = entries.iter().map(|entry| entry.key.clone()).collect();
    List { key: "config", entries: entries.iter().map(json).collect(), names, table }.print(app.list_format())
}

fn path(app: &App, config: &Config) -> Result<(), Failure> {
    let user = environment::config_home().map(|home| home.join("config.toml"));
    let mut files: Vec<(String, &str, bool)> =
        config.files().iter().map(|file| (file.path.display().to_string(), config::label(file.kind), true)).collect();
    // Where the user's own would go is shown also when it is not there.
    if let Some(user) = user.map(|user| user.display().to_string())
        && !files.iter().any(|(path, ..)| *path == user)
    {
        files.push((user, "user", false));
    }
    let mut table = Table::new(["PATH", "KIND", "READ"]);
    for (path, kind, is_read) in &files {
        table.row([path.as_str(), kind, if *is_read { "yes" } else { "no" }]);
    }
    let entries =
        files.iter().map(|(path, kind, is_read)| json!({ "path": path, "kind": kind, "read": is_read })).collect();
    let names = files.iter().map(|(path, ..)| path.clone()).collect();
    List { key: "files", entries, names, table }.print(app.list_format())
}
