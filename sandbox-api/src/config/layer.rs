use std::{collections::BTreeMap, path::PathBuf};

use sandbox_core::{ErrorKind, Result, SandboxError, from_json};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ConfigFile, ConfigFileKind, blocks, read_config_file, trust};

/// The keys of our own files.
const OWN_KEYS: [&str; 4] = ["provider", "providers", "plugins", "blocks"];

/// One file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Layer {
    /// The provider or block of commands that name none.
    pub(super) provider: Option<String>,
    /// The settings of each provider; that provider checks them.
    pub(super) providers: BTreeMap<String, Map<String, Value>>,
    /// Plugins.
    pub(super) plugins: Plugins,
    /// Provider blocks, as in the model: a name, one provider with its settings, and `default_metadata`.
    pub(super) blocks: Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Plugins {
    /// Folders and files, absolute, that are looked at before the usual ones.
    pub(super) path: Vec<PathBuf>,
}

/// Reads a file. None for the user's file if there is none.
pub(super) fn read(file: &ConfigFile) -> Result<Option<Layer>> {
    let value = match read_config_file(&file.path) {
        Ok(value) => value,
        Err(error) if error.kind() == ErrorKind::NotFound && file.kind == ConfigFileKind::User => return Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(error.with_field("config")),
        Err(error) => return Err(error),
    };
    trust::check(file, &value)?;
    let shown = file.path.display();
    if is_the_models(file, &value) {
        let Value::Object(blocks) = value else { return Ok(Some(Layer::default())) };
        if !blocks.values().any(blocks::is_candidate) {
            return Err(SandboxError::invalid_input(
                "config",
                format!("the config file {shown} has no provider block and none of the keys {}", OWN_KEYS.join(", ")),
            ));
        }
        return Ok(Some(Layer { blocks, ..Layer::default() }));
    }
    from_json(value, &format!("config file {shown}")).map(Some)
}

/// A file of the model holds blocks at its top level, among much that is not ours. Only YAML and JSON can be one.
fn is_the_models(file: &ConfigFile, value: &Value) -> bool {
    let extension = file.path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yaml" | "yml" | "json"))
        && value.as_object().is_some_and(|map| !map.is_empty() && !OWN_KEYS.iter().any(|key| map.contains_key(*key)))
}
