use std::{collections::BTreeMap, fmt, path::PathBuf};

use sandbox_core::{Result, SandboxError};
use serde_json::{Map, Value};

use super::{
    ConfigFile, ConfigSources,
    blocks::{metadata_in, provider_in},
    layer::{self, Layer},
    values::resolve_config_values,
};
use crate::{Environment, environment};

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// A flag, a variable, a file, or why it is the default.
    pub source: String,
}

impl<T> Sourced<T> {
    fn new(value: T, source: impl Into<String>) -> Self {
        Self { value, source: source.into() }
    }
}

/// A provider with its settings, everything filled in.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ResolvedProvider {
    /// Its name.
    pub name: String,
    /// Its settings, as [`create_provider`](crate::create_provider) takes them.
    pub settings: Value,
    /// Labels for every sandbox; those of a spec win over them.
    pub metadata: BTreeMap<String, String>,
}

impl ResolvedProvider {
    /// As [`create_provider`](crate::create_provider) takes it: an object of one key.
    pub fn config(&self) -> Value {
        Value::Object(Map::from_iter([(self.name.clone(), self.settings.clone())]))
    }
}

impl fmt::Debug for ResolvedProvider {
    // Settings may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResolvedProvider").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Everything that flags, variables and files say. A flag beats a variable, a variable beats a file, the nearer file
/// beats the other one, key by key.
#[derive(Default)]
pub struct Config {
    files: Vec<ConfigFile>,
    environment: Environment,
    provider: Option<Sourced<String>>,
    settings: BTreeMap<String, BTreeMap<String, Sourced<Value>>>,
    blocks: BTreeMap<String, Sourced<Map<String, Value>>>,
    plugin_path: Option<Sourced<Vec<PathBuf>>>,
}

impl Config {
    /// Reads variables and files.
    ///
    /// # Errors
    /// `NotFound` for a named file that is not there; `InvalidInput` for one that cannot be read as what its name says,
    /// or that has unknown keys; `PermissionDenied` for what a file that was only found may not say.
    pub fn load(sources: &ConfigSources) -> Result<Self> {
        let mut config = Self { environment: sources.environment.clone(), ..Self::default() };
        config.take_variables();
        for file in sources.files() {
            if let Some(layer) = layer::read(&file)? {
                config.lay_under(layer, &file);
                config.files.push(file);
            }
        }
        Ok(config)
    }

    /// `SANDBOX_PROVIDER`, and `SANDBOX_PROVIDER__<NAME>__<KEY>` for a setting: JSON where it is some, else text.
    fn take_variables(&mut self) {
        if let Some(name) = self.environment.first(&[environment::PROVIDER]) {
            self.provider = Some(Sourced::new(name.to_owned(), environment::PROVIDER));
        }
        for (variable, name, key, text) in self.environment.provider_settings() {
            let value = match serde_json::from_str(&text) {
                Ok(value) if !matches!(value, Value::String(_)) => value,
                _ => Value::String(text),
            };
            self.settings.entry(name).or_default().insert(key, Sourced::new(value, variable));
        }
    }

    /// Fills in what is not said yet.
    fn lay_under(&mut self, layer: Layer, file: &ConfigFile) {
        let source = file.path.display().to_string();
        if self.provider.is_none() {
            self.provider = layer.provider.map(|value| Sourced::new(value, &source));
        }
        if self.plugin_path.is_none() && !layer.plugins.path.is_empty() {
            self.plugin_path = Some(Sourced::new(layer.plugins.path, &source));
        }
        for (name, settings) in layer.providers {
            let block = self.settings.entry(name).or_default();
            for (key, value) in settings {
                block.entry(key).or_insert_with(|| Sourced::new(value, &source));
            }
        }
        for (name, block) in layer.blocks {
            if let Value::Object(block) = block {
                self.blocks.entry(name).or_insert_with(|| Sourced::new(block, &source));
            }
        }
    }

    /// Sets one setting of a provider, over everything that was said before. For flags.
    pub fn set(&mut self, provider: &str, key: &str, value: Value, source: impl Into<String>) {
        self.settings.entry(provider.to_owned()).or_default().insert(key.to_owned(), Sourced::new(value, source));
    }

    /// The files that were read, the one that wins first.
    pub fn files(&self) -> &[ConfigFile] {
        &self.files
    }

    /// Which provider or block is meant: the flag, `SANDBOX_PROVIDER`, the files, else `docker` for an image and
    /// `local` without.
    pub fn provider(&self, flag: Option<&str>, has_image: bool) -> Sourced<String> {
        match (flag, &self.provider, has_image) {
            (Some(name), ..) => Sourced::new(name.to_owned(), "--provider"),
            (None, Some(provider), _) => provider.clone(),
            (None, None, true) => Sourced::new("docker".to_owned(), "default, since an image is given"),
            (None, None, false) => Sourced::new("local".to_owned(), "default, since no image is given"),
        }
    }

    /// The provider that a name means, with its settings and labels: the block of that name, else the provider itself.
    /// Settings that flags, variables or `[providers.<name>]` give are laid over those of a block.
    ///
    /// # Errors
    /// `InvalidInput` for a block without exactly one provider, and for a value that stands nowhere.
    pub fn resolve(&self, name: &str) -> Result<ResolvedProvider> {
        let (name, mut settings, metadata) = match self.blocks.get(name) {
            None => (name.to_owned(), Map::new(), BTreeMap::new()),
            Some(block) => {
                let source = format!("provider block {name:?}");
                let (provider, settings) = provider_in(&block.value, &source)?;
                let settings = match settings {
                    Value::Object(settings) => settings.clone(),
                    Value::Null => Map::new(),
                    _ => {
                        let message = format!("of provider {provider:?} in {source} must be an object");
                        return Err(SandboxError::invalid_input("settings", message));
                    }
                };
                (provider.to_owned(), settings, metadata_in(&block.value, &source, &self.environment)?)
            }
        };
        for (key, sourced) in self.settings.get(&name).into_iter().flatten() {
            settings.insert(key.clone(), sourced.value.clone());
        }
        let settings = resolve_config_values(&Value::Object(settings), &self.environment)
            .map_err(|error| error.context(format!("provider {name:?}")))?;
        Ok(ResolvedProvider { name, settings, metadata })
    }

    /// Every setting of every provider as it was written: provider, key, value and where it came from.
    pub fn all_settings(&self) -> impl Iterator<Item = (&str, &str, &Sourced<Value>)> {
        self.settings
            .iter()
            .flat_map(|(name, block)| block.iter().map(move |(key, sourced)| (name.as_str(), key.as_str(), sourced)))
    }

    /// The names of the provider blocks and where each came from.
    pub fn blocks(&self) -> impl Iterator<Item = (&str, &str)> {
        self.blocks.iter().map(|(name, block)| (name.as_str(), block.source.as_str()))
    }

    /// Where plugins are looked for besides the usual places.
    pub fn plugin_path(&self) -> Option<&Sourced<Vec<PathBuf>>> {
        self.plugin_path.as_ref()
    }
}

impl fmt::Debug for Config {
    // Settings may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("files", &self.files).field("provider", &self.provider).finish_non_exhaustive()
    }
}
