//! The host of the providers, and one provider out of it.

use std::sync::Arc;

use plugin_host::PluginHost;
use sandbox_api::ResolvedProvider;
use sandbox_core::SandboxProvider;

use crate::{config::Config, failure::Failure};

/// The host, with the plugin folders of the configuration. Loads nothing.
///
/// # Errors
/// Usage, for a relative path in the configuration or the environment.
pub(crate) fn host(config: &Config) -> Result<PluginHost, Failure> {
    let places = config.plugin_path().map(|path| path.value.clone()).unwrap_or_default();
    sandbox_api::host_builder().plugin_path(places).build().map_err(|error| Failure::of_command(&error))
}

/// What a name means: a provider block of the configuration, else the provider itself, with its settings.
///
/// # Errors
/// Exit code 2 for a block that cannot be used, and for a value that stands nowhere.
pub(crate) fn resolve(config: &Config, name: &str) -> Result<ResolvedProvider, Failure> {
    config.resolve(name).map_err(|error| Failure::of_provider(&error))
}

/// Makes the provider with the settings of the configuration. Loads its plugin.
///
/// # Errors
/// Exit code 2 for one that is not there or not to be reached; never another one instead.
pub(crate) fn create(host: &PluginHost, config: &Config, name: &str) -> Result<Arc<dyn SandboxProvider>, Failure> {
    create_resolved(host, &resolve(config, name)?)
}

/// The same for what was resolved already.
///
/// # Errors
/// As there.
pub(crate) fn create_resolved(
    host: &PluginHost,
    resolved: &ResolvedProvider,
) -> Result<Arc<dyn SandboxProvider>, Failure> {
    tracing::debug!(provider = resolved.name, "making the provider");
    host.create(&resolved.name, &resolved.settings).map_err(|error| Failure::of_provider(&error))
}
