//! The registry of providers.

mod builder;
mod listing;
mod resolve;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub use builder::{BuiltinSource, PluginHostBuilder, SearchScope};
pub use listing::{Origin, ProviderDescription, ProviderListing, ProviderState};
use sandbox_core::{
    ProviderManifest, Result, SandboxError, SandboxProvider,
    abi::{HostInfo, PluginEntry},
};
use serde_json::Value;

use crate::{LoadStep, discovery::Discovery, environment::Places, files::Pins, provider_config};

/// What makes a registered provider from its settings, which are an object.
type Factory = Arc<dyn Fn(Value) -> Result<Arc<dyn SandboxProvider>> + Send + Sync>;

/// Whether a registration may take a name that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Override {
    /// No: a taken name is refused.
    No,
    /// Yes: the new one is used from now on. Providers that were made before stay as they are.
    Yes,
}

/// Finds, checks, loads and makes providers by name: registered ones first, then built-in ones, then discovered ones.
///
/// Cheap to clone; clones share everything. Several hosts in one process share the libraries that they load. All methods
/// may be called from any thread; those that look at files or load one block for that long.
#[derive(Clone)]
pub struct PluginHost(Arc<Inner>);

struct Inner {
    builtins: BTreeMap<String, Builtin>,
    places: Places,
    pins: Pins,
    host_info: HostInfo,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    explicit: BTreeMap<String, Factory>,
    /// Built-in and discovered ones that were used.
    loaded: BTreeMap<String, PluginEntry>,
    discovery: Option<Arc<Discovery>>,
    /// Discovered files whose being shadowed was logged.
    told: BTreeSet<PathBuf>,
    traces: BTreeMap<String, Vec<LoadStep>>,
}

/// A reserved name.
#[derive(Clone, Debug, Default)]
struct Builtin {
    linked: Option<fn() -> PluginEntry>,
    installed: bool,
}

impl PluginHost {
    /// Starts to put a host together.
    pub fn builder() -> PluginHostBuilder {
        PluginHostBuilder::new()
    }

    fn new(builtins: BTreeMap<String, Builtin>, places: Places, pins: Pins, host_info: HostInfo) -> Self {
        Self(Arc::new(Inner { builtins, places, pins, host_info, state: Mutex::default() }))
    }

    /// Held only for a moment: no file is looked at and no foreign code runs under it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a provider. It is found before any built-in or discovered one of its name; there is no way to take it
    /// back. `factory` gets the settings as an object.
    ///
    /// # Errors
    /// `InvalidInput` for an empty name or one that is no provider name. `AlreadyExists` for a name that is registered or
    /// built in, unless `replace` says [`Override::Yes`].
    pub fn register_provider(
        &self,
        name: &str,
        factory: impl Fn(Value) -> Result<Arc<dyn SandboxProvider>> + Send + Sync + 'static,
        replace: Override,
    ) -> Result<()> {
        ProviderManifest::check_name(name)?;
        let mut state = self.state();
        let taken = match (state.explicit.contains_key(name), self.0.builtins.contains_key(name)) {
            (true, _) => Some("registered already"),
            (_, true) => Some("built in"),
            (false, false) => None,
        };
        match taken {
            Some(how) if replace == Override::No => {
                return Err(SandboxError::already_exists(format!("provider {name:?} is {how}"))
                    .with_provider(name)
                    .with_help("take another name, or register with Override::Yes"));
            }
            Some(how) => tracing::info!(provider = name, how, "replacing a provider"),
            None => {}
        }
        state.explicit.insert(name.to_owned(), Arc::new(factory));
        let discovery = state.discovery.clone();
        drop(state);
        if let Some(discovery) = discovery {
            self.tell_shadowed(&discovery);
        }
        Ok(())
    }

    /// Makes a provider from its configuration: an object with one key, the provider's name, whose value are its
    /// settings (null for none). Loads the provider if this is its first use.
    ///
    /// # Errors
    /// `InvalidInput` for another shape, and what [`create`](Self::create) says.
    pub fn create_provider(&self, config: &Value) -> Result<Arc<dyn SandboxProvider>> {
        let (name, settings) = provider_config::split(config)?;
        self.create(name, &settings)
    }

    /// Makes a provider from its name and settings (null for none). Loads the provider if this is its first use.
    ///
    /// # Errors
    /// `InvalidInput` for an empty name and for settings that are no object or that the provider refuses. `NotFound` for
    /// an unknown name, with the known ones and every path that was looked at, and for a built-in one whose file is
    /// missing. `AlreadyExists` when two discovered files have the name. `Plugin` when its file was refused. Anything else
    /// is the provider's own.
    pub fn create(&self, name: &str, settings: &Value) -> Result<Arc<dyn SandboxProvider>> {
        let settings = provider_config::check_settings(name, settings)?;
        let factory = self.state().explicit.get(name).cloned();
        if let Some(factory) = factory {
            return factory(settings).map_err(|error| error.with_provider(name));
        }
        let provider = self.entry(name)?.new_provider(&settings).map_err(|error| error.with_provider(name))?;
        if provider.name() == name {
            return Ok(provider);
        }
        Err(SandboxError::plugin(format!(
            "provider {name:?}: expected the name of its manifest, found that it calls itself {:?}",
            provider.name()
        ))
        .with_provider(name)
        .with_help("SandboxProvider::name must return the name in provider.toml"))
    }

    /// Forgets what was discovered; the next question looks again. What is loaded stays.
    pub fn rescan(&self) {
        self.state().discovery = None;
    }

    /// The steps that led to this provider's being loaded or refused, the last time it was looked at; none for one that
    /// was not looked at, or that has no file.
    pub fn load_trace(&self, name: &str) -> Vec<LoadStep> {
        self.state().traces.get(name).cloned().unwrap_or_default()
    }
}

impl fmt::Debug for PluginHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginHost")
            .field("builtins", &self.0.builtins.keys())
            .field("places", &self.0.places)
            .finish_non_exhaustive()
    }
}
