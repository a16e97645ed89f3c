//! Configuration: files, layers, provider blocks, and values that stand elsewhere.

mod blocks;
mod files;
mod layer;
mod layers;
mod read;
mod trust;
mod values;

pub use blocks::{resolve_provider_config, resolve_provider_metadata};
pub use files::{ConfigFile, ConfigFileKind, ConfigSources};
pub use layers::{Config, ResolvedProvider, Sourced};
pub use read::read_config_file;
pub use values::resolve_config_values;
