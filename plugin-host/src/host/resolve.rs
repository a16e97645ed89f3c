//! From a name to an entry point.

use std::{path::PathBuf, sync::Arc};

use sandbox_core::{ProviderManifest, Result, SandboxError, abi::PluginEntry, near_match};

use super::{Builtin, PluginHost};
use crate::{discovery::Discovery, files};

impl PluginHost {
    /// The entry point of a built-in or discovered provider, loaded if it is not yet.
    pub(super) fn entry(&self, name: &str) -> Result<PluginEntry> {
        if name.is_empty() {
            return Err(SandboxError::invalid_input("provider name", "is empty"));
        }
        let loaded = self.state().loaded.get(name).cloned();
        if let Some(entry) = loaded {
            return Ok(entry);
        }
        let entry = match self.0.builtins.get(name) {
            Some(builtin) => self.builtin_entry(name, builtin)?,
            None => self.discovered_entry(name)?,
        };
        // Only success is kept: a file that gets installed or repaired is found the next time.
        self.state().loaded.insert(name.to_owned(), entry.clone());
        Ok(entry)
    }

    fn builtin_entry(&self, name: &str, builtin: &Builtin) -> Result<PluginEntry> {
        let Some(linked) = builtin.linked else {
            let path = self.installed_file(name)?;
            return self.load_file(name, path);
        };
        let entry = linked();
        let manifest = linked_manifest(name, &entry)?;
        if manifest.name != name {
            return Err(SandboxError::plugin(format!(
                "the linked provider {name:?}: expected that name in its manifest, found {:?}",
                manifest.name
            ))
            .with_provider(name)
            .with_help("give the builder the plugin_entry of the right crate"));
        }
        entry.init(&self.0.host_info).map_err(|error| error.with_provider(name))?;
        Ok(entry)
    }

    fn discovered_entry(&self, name: &str) -> Result<PluginEntry> {
        let discovery = self.discovery();
        let found = discovery.find(name).map_err(|error| error.with_provider(name))?;
        let candidate = found.ok_or_else(|| self.unknown(name, &discovery))?;
        self.load_file(name, candidate.path.clone())
    }

    fn load_file(&self, name: &str, path: PathBuf) -> Result<PluginEntry> {
        let (steps, outcome) = files::load(&path, name, &self.0.pins, &self.0.host_info);
        self.state().traces.insert(name.to_owned(), steps);
        outcome.map_err(|error| error.with_provider(name))
    }

    /// Every path at which the file of a built-in may be, in order.
    pub(super) fn installed_paths(&self, name: &str) -> Vec<PathBuf> {
        let file = files::builtin_file_name(name);
        self.0.places.provider_dirs.iter().map(|folder| folder.join(&file)).collect()
    }

    /// The first of these paths where there is something. A file that is refused is an error, not a reason to go on: the
    /// next one may be an old release.
    #[cfg(feature = "dynamic")]
    pub(super) fn installed_file(&self, name: &str) -> Result<PathBuf> {
        let paths = self.installed_paths(name);
        if let Some(path) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
            return Ok(path.clone());
        }
        let tried: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let tried = if tried.is_empty() { "no folder was given".to_owned() } else { tried.join(", ") };
        Err(SandboxError::not_found(format!("the built-in provider {name:?} is not installed; looked for: {tried}"))
            .with_provider(name)
            .with_help("in a checkout run: cargo xtask build-plugins; otherwise install this program again"))
    }

    #[cfg(not(feature = "dynamic"))]
    pub(super) fn installed_file(&self, name: &str) -> Result<PathBuf> {
        Err(SandboxError::plugin(format!("the built-in provider {name:?} is a plugin; {}", files::CANNOT_LOAD))
            .with_provider(name)
            .with_help(files::CANNOT_LOAD_HELP))
    }

    /// What is there to be discovered; looked for once.
    pub(super) fn discovery(&self) -> Arc<Discovery> {
        let known = self.state().discovery.clone();
        if let Some(discovery) = known {
            return discovery;
        }
        // Two threads may scan at the same time; the first result is kept.
        let scanned = Arc::new(Discovery::scan(&self.0.places.plugin_paths, &self.0.pins));
        let mut state = self.state();
        let discovery = state.discovery.get_or_insert(scanned).clone();
        for candidate in &discovery.candidates {
            let name = candidate.name();
            if !state.loaded.contains_key(&name) && !self.0.builtins.contains_key(&name) {
                state.traces.insert(name, candidate.peek.steps.clone());
            }
        }
        drop(state);
        self.tell_shadowed(&discovery);
        discovery
    }

    /// Logs, once for each file, that a discovered plugin is not used because its name is taken.
    pub(super) fn tell_shadowed(&self, discovery: &Discovery) {
        let mut state = self.state();
        for candidate in &discovery.candidates {
            let Some(known) = candidate.known() else { continue };
            let name = &known.manifest.name;
            let by = if state.explicit.contains_key(name) {
                "registered"
            } else if self.0.builtins.contains_key(name) {
                "built-in"
            } else {
                continue;
            };
            if state.told.insert(candidate.path.clone()) {
                tracing::warn!(
                    provider = %name,
                    path = %candidate.path.display(),
                    "a plugin file is not used: the {by} provider of that name comes first"
                );
            }
        }
    }

    /// A name that nobody has: which ones there are, what was probably meant, and where it was looked for.
    pub(super) fn unknown(&self, name: &str, discovery: &Discovery) -> SandboxError {
        let mut available: Vec<String> = self.state().explicit.keys().cloned().collect();
        available.extend(self.0.builtins.keys().cloned());
        let usable = discovery.candidates.iter().filter_map(|candidate| candidate.known());
        available.extend(usable.map(|known| known.manifest.name.clone()));
        available.sort();
        available.dedup();
        let places = &self.0.places.plugin_paths;
        let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let list = |texts: &[String]| if texts.is_empty() { "none".to_owned() } else { texts.join(", ") };
        let mut message = format!(
            "there is no provider {name:?}; available: {}; looked for plugins in: {}",
            list(&available),
            list(&tried)
        );
        let refused: Vec<String> = discovery
            .candidates
            .iter()
            .filter(|candidate| candidate.refusal().is_some())
            .map(|candidate| candidate.path.display().to_string())
            .chain(discovery.problems.iter().cloned())
            .collect();
        if !refused.is_empty() {
            message.push_str(&format!("; refused there: {}", refused.join(", ")));
        }
        let error = SandboxError::not_found(message).with_provider(name);
        match near_match(name, available.iter().map(String::as_str)) {
            Some(near) => error.with_help(format!("did you mean {near:?}?")),
            None => error.with_help(UNKNOWN_HELP),
        }
    }
}

#[cfg(feature = "dynamic")]
const UNKNOWN_HELP: &str = "put its plugin into one of these folders, or name its folder in SANDBOX_PLUGIN_PATH";
#[cfg(not(feature = "dynamic"))]
const UNKNOWN_HELP: &str = files::CANNOT_LOAD_HELP;

/// What a linked provider says of itself.
pub(super) fn linked_manifest(name: &str, entry: &PluginEntry) -> Result<ProviderManifest> {
    ProviderManifest::parse(&entry.manifest_bytes())
        .map_err(|error| error.context(format!("the linked provider {name:?}")).with_provider(name))
}
