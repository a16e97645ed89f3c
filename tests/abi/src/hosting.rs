//! What every test does with a plugin.

use std::{path::Path, sync::Arc};

use plugin_host::{Checksum, PluginHost, SearchScope, load};
use sandbox_core::{
    CaptureLimits, ExecRequest, Result, SandboxExecResult, SandboxHandle, SandboxProvider, SandboxSpec,
    abi::{HostInfo, PluginEntry},
};
use serde_json::Value;

/// Loads a plugin file.
///
/// # Errors
/// Why it was refused.
pub fn entry(path: &Path) -> Result<PluginEntry> {
    load(path, &Checksum::Compute, &HostInfo::new()).outcome.map(|plugin| plugin.entry)
}

/// A host that finds these files and nothing else.
///
/// # Panics
/// When a path is relative.
pub fn host(files: &[&Path]) -> PluginHost {
    let builder = PluginHost::builder().plugin_path(files.iter().copied()).search(SearchScope::OnlyGiven);
    builder.build().expect("the paths are absolute")
}

/// A provider of a plugin file, by name.
///
/// # Errors
/// Whatever the host says.
pub fn provider(path: &Path, name: &str, settings: &Value) -> Result<Arc<dyn SandboxProvider>> {
    host(&[path]).create(name, settings)
}

/// A sandbox without wishes.
///
/// # Errors
/// What the provider says.
pub async fn create(provider: &dyn SandboxProvider) -> Result<SandboxHandle> {
    provider.create(SandboxSpec::default()).await
}

/// Runs a command to its end.
///
/// # Errors
/// What the provider says.
pub async fn run(
    provider: &dyn SandboxProvider,
    handle: &SandboxHandle,
    request: ExecRequest,
) -> Result<SandboxExecResult> {
    provider.exec(handle, request).await?.collect(CaptureLimits::default()).await
}
