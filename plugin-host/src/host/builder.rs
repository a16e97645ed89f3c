//! Putting a host together.

use std::{collections::BTreeMap, path::PathBuf};

use sandbox_core::{
    ProviderManifest, Result, SandboxError,
    abi::{HostInfo, PluginEntry},
};

use super::{Builtin, PluginHost};
use crate::{
    environment::{self, Places},
    files::Pins,
};

/// Where a built-in provider comes from.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum BuiltinSource {
    /// The program links it. This is its crate's `plugin_entry`.
    Linked(fn() -> PluginEntry),
    /// A plugin file in one of the provider folders: `libsandbox_provider_NAME.so`, with `_` for `-`.
    Installed,
}

/// Which places are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SearchScope {
    /// Those given to the builder, then those that the environment and the installation name.
    #[default]
    Standard,
    /// Only those given to the builder; the environment is not read.
    OnlyGiven,
}

/// Builds a [`PluginHost`].
#[derive(Clone, Debug)]
pub struct PluginHostBuilder {
    builtins: Vec<(String, BuiltinSource)>,
    provider_dirs: Vec<PathBuf>,
    plugin_path: Vec<PathBuf>,
    pins: Vec<(String, String)>,
    scope: SearchScope,
    host_info: HostInfo,
}

impl PluginHostBuilder {
    pub(super) fn new() -> Self {
        Self {
            builtins: Vec::new(),
            provider_dirs: Vec::new(),
            plugin_path: Vec::new(),
            pins: Vec::new(),
            scope: SearchScope::Standard,
            host_info: HostInfo::new(),
        }
    }

    /// Reserves the name of a built-in provider. Nothing is loaded before its first use. Given both as linked and as
    /// installed, the linked one is used.
    #[must_use]
    pub fn builtin(mut self, name: impl Into<String>, source: BuiltinSource) -> Self {
        self.builtins.push((name.into(), source));
        self
    }

    /// Adds folders of built-in providers, before `$SANDBOX_PROVIDER_DIR` and those of the installation.
    #[must_use]
    pub fn provider_dirs(mut self, folders: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.provider_dirs.extend(folders.into_iter().map(Into::into));
        self
    }

    /// Adds folders and files of discovered plugins, before `$SANDBOX_PLUGIN_PATH`.
    #[must_use]
    pub fn plugin_path(mut self, places: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.plugin_path.extend(places.into_iter().map(Into::into));
        self
    }

    /// Refuses every plugin file of this provider but the one with this SHA-256 (64 hex digits). A registered or linked
    /// provider has no file, so a pin says nothing about it.
    #[must_use]
    pub fn pin(mut self, name: impl Into<String>, sha256: impl Into<String>) -> Self {
        self.pins.push((name.into(), sha256.into()));
        self
    }

    /// Says which places are looked at.
    #[must_use]
    pub fn search(mut self, scope: SearchScope) -> Self {
        self.scope = scope;
        self
    }

    /// What plugins are told about this program; [`HostInfo::new`] if it is not said.
    #[must_use]
    pub fn host_info(mut self, info: HostInfo) -> Self {
        self.host_info = info;
        self
    }

    /// The host. Reads the environment, and no file.
    ///
    /// # Errors
    /// `InvalidInput` for the name of a built-in that is none, a relative path (also one in the environment), and a pin
    /// that is not 64 hex digits; `AlreadyExists` for a name pinned twice.
    pub fn build(self) -> Result<PluginHost> {
        let mut builtins: BTreeMap<String, Builtin> = BTreeMap::new();
        for (name, source) in self.builtins {
            ProviderManifest::check_name(&name)?;
            let builtin = builtins.entry(name).or_default();
            match source {
                BuiltinSource::Linked(entry) => builtin.linked = Some(entry),
                BuiltinSource::Installed => builtin.installed = true,
            }
        }
        let mut places = Places::default();
        for folder in self.provider_dirs {
            places.provider_dirs.push(environment::absolute(folder, "provider_dirs")?);
        }
        for place in self.plugin_path {
            places.plugin_paths.push(environment::absolute(place, "plugin_path")?);
        }
        if self.scope == SearchScope::Standard {
            let standard = environment::places()?;
            places.provider_dirs.extend(standard.provider_dirs);
            places.plugin_paths.extend(standard.plugin_paths);
        }
        let pins = check_pins(self.pins)?;
        Ok(PluginHost::new(builtins, places, pins, self.host_info))
    }
}

fn check_pins(given: Vec<(String, String)>) -> Result<Pins> {
    let mut pins = Pins::new();
    for (name, sha256) in given {
        ProviderManifest::check_name(&name)?;
        if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(SandboxError::invalid_input(format!("pin.{name}"), "must be a SHA-256: 64 hex digits")
                .with_help("take it from: sandboxctl plugin verify FILE"));
        }
        if pins.insert(name.clone(), sha256.to_ascii_lowercase()).is_some() {
            return Err(SandboxError::already_exists(format!("provider {name:?} is pinned twice")));
        }
    }
    Ok(pins)
}
