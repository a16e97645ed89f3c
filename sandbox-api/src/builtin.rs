//! The providers that come with the system, and the host that knows them. No other file names one.

use std::sync::{Arc, OnceLock};

use plugin_host::{BuiltinSource, Override, PluginHost, PluginHostBuilder, ProviderDescription, ProviderListing};
use sandbox_core::{Result, SandboxProvider};
use serde_json::Value;

/// The names of the built-in providers. Linked ones are used as they are; the others are plugin files of the
/// installation.
pub const BUILTIN_PROVIDERS: &[&str] = &["daytona", "docker", "fargate", "local", "opensandbox"];

/// Built-in providers that this build links.
const LINKED: &[(&str, BuiltinSource)] = &[
    #[cfg(feature = "linked-daytona")]
    ("daytona", BuiltinSource::Linked(sandbox_provider_daytona::plugin_entry)),
    #[cfg(feature = "linked-docker")]
    ("docker", BuiltinSource::Linked(sandbox_provider_docker::plugin_entry)),
    #[cfg(feature = "linked-fargate")]
    ("fargate", BuiltinSource::Linked(sandbox_provider_fargate::plugin_entry)),
    #[cfg(feature = "linked-local")]
    ("local", BuiltinSource::Linked(sandbox_provider_local::plugin_entry)),
    #[cfg(feature = "linked-opensandbox")]
    ("opensandbox", BuiltinSource::Linked(sandbox_provider_opensandbox::plugin_entry)),
];

/// A host in the making that knows the built-in providers. For a program that wants a host of its own, with its own
/// folders or pins; every other one uses [`create_provider`] and its like.
pub fn host_builder() -> PluginHostBuilder {
    let installed = BUILTIN_PROVIDERS.iter().map(|name| (*name, BuiltinSource::Installed));
    let linked = LINKED.iter().copied();
    installed.chain(linked).fold(PluginHost::builder(), |builder, (name, source)| builder.builtin(name, source))
}

/// The host of this process, made when it is first asked for.
///
/// # Errors
/// `InvalidInput` when the environment names a place that is no absolute path.
pub fn default_host() -> Result<&'static PluginHost> {
    static HOST: OnceLock<PluginHost> = OnceLock::new();
    if let Some(host) = HOST.get() {
        return Ok(host);
    }
    let host = host_builder().build()?;
    // Where two threads get here at once, one of the hosts is dropped unused.
    Ok(HOST.get_or_init(|| host))
}

/// Makes a provider from its configuration: an object with one key, its name, whose value are its settings (null for
/// none), such as `{"local": {}}`. Loads the provider if this is its first use, and blocks for that long.
///
/// # Errors
/// Those of [`PluginHost::create_provider`] and [`default_host`].
pub fn create_provider(config: &Value) -> Result<Arc<dyn SandboxProvider>> {
    default_host()?.create_provider(config)
}

/// What is known of a provider without loading it: where it comes from, its version and capabilities.
///
/// # Errors
/// Those of [`PluginHost::describe`] and [`default_host`]: an unknown name is told with the known ones.
pub fn get_provider(name: &str) -> Result<ProviderDescription> {
    default_host()?.describe(name)
}

/// Every provider there is, registered, built in or found, without loading any. Those that cannot be used are there
/// too, with the reason.
///
/// # Errors
/// Those of [`default_host`].
pub fn list_providers() -> Result<Vec<ProviderListing>> {
    Ok(default_host()?.list_providers())
}

/// Registers a provider of the program itself. It is found before any other of its name and stays registered.
///
/// # Errors
/// Those of [`PluginHost::register_provider`] and [`default_host`]: an empty name; a taken one, unless `replace` is
/// [`Override::Yes`].
pub fn register_provider(
    name: &str,
    factory: impl Fn(Value) -> Result<Arc<dyn SandboxProvider>> + Send + Sync + 'static,
    replace: Override,
) -> Result<()> {
    default_host()?.register_provider(name, factory, replace)
}
