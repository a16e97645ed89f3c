//! Finds, checks, loads and registers sandbox providers.
//!
//! [`PluginHost`] makes a provider from its name and settings. A name is looked up in this order:
//!
//! 1. **explicit**: registered by the program with [`PluginHost::register_provider`];
//! 2. **built-in**: a name that the host reserved, linked into the program or installed as a plugin file, and loaded on
//!    first use;
//! 3. **discovered**: a plugin file in `$SANDBOX_PLUGIN_PATH`, the user's data folder or the system's plugin folders.
//!
//! Loading a library runs its code, so nothing is loaded before [`inspect()`] has passed: it reads the file's bytes, and
//! runs none of them. What was inspected is what gets loaded, through the same open file; it is loaded once in a process
//! and never unloaded. A file that fails stops nothing else: it is listed with its reason, and asking for its provider
//! gives that reason.
//!
//! The trust anchor is who may write a file: root and the user. A plugin that passes runs with all the rights of the
//! program.
//!
//! Built without the feature `dynamic`, registered and linked providers work, and files are refused.
//!
//! ```
//! use plugin_host::{BuiltinSource, PluginHost, SearchScope};
//!
//! let host = PluginHost::builder()
//!     .builtin("local", BuiltinSource::Installed)
//!     .provider_dirs(["/opt/sandbox/providers"])
//!     .search(SearchScope::OnlyGiven)
//!     .build()?;
//! for listing in host.list_providers() {
//!     println!("{}: {:?}", listing.name, listing.state);
//! }
//! assert!(host.create_provider(&serde_json::json!({"loacl": {}})).is_err());
//! # Ok::<(), sandbox_core::SandboxError>(())
//! ```

#![deny(unsafe_code)]

mod discovery;
#[cfg(feature = "dynamic")]
mod dl;
mod environment;
mod files;
mod host;
#[cfg(feature = "dynamic")]
mod inspect;
#[cfg(feature = "dynamic")]
mod load;
#[cfg(feature = "dynamic")]
mod mismatch;
mod provider_config;
mod refusal;
mod step;
#[cfg(feature = "dynamic")]
mod trace;

pub use host::{
    BuiltinSource, Origin, Override, PluginHost, PluginHostBuilder, ProviderDescription, ProviderListing,
    ProviderState, SearchScope,
};
#[cfg(feature = "dynamic")]
pub use inspect::{Checksum, InspectedPlugin, Inspection, inspect, inspect_bytes};
#[cfg(feature = "dynamic")]
pub use load::{LoadedPlugin, Loading, load};
pub use step::LoadStep;
