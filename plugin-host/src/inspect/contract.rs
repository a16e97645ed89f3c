//! Whether what a manifest promises fits this host.

use sandbox_core::{ContractVersion, ProviderManifest};

use crate::mismatch::Mismatch;

/// Same major works together, whatever the minors are.
pub(crate) fn check_version(manifest: &ProviderManifest) -> Result<String, Mismatch> {
    let (host, plugin) = (ContractVersion::current(), manifest.contract);
    if plugin.is_compatible_with(host) {
        return Ok(format!("plugin {plugin}, host {host}"));
    }
    let help = if plugin.major < host.major {
        "get a newer release of the plugin, or rebuild it against this contract"
    } else {
        "the plugin is newer than this program: update the program"
    };
    Err(Mismatch::new("contract", format!("{}.x (this host is {host})", host.major), plugin.to_string())
        .with_help(help))
}

/// With `panic = "abort"` every panic of the plugin would end the host.
pub(crate) fn check_panic(manifest: &ProviderManifest) -> Result<String, Mismatch> {
    match manifest.panic_strategy.as_str() {
        "unwind" => Ok("unwind".to_owned()),
        other => Err(Mismatch::new("panic", "the strategy \"unwind\"", format!("{other:?}"))
            .with_help("build the plugin without panic = \"abort\" in its profile")),
    }
}

/// Operating system and architecture.
pub(crate) fn check_target(manifest: &ProviderManifest) -> Result<String, Mismatch> {
    let host = ProviderManifest::host_target();
    if manifest.target == host {
        return Ok(host);
    }
    Err(Mismatch::new("target", host, format!("{:?}", manifest.target)).with_help("build the plugin for this machine"))
}
