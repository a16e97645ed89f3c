//! Plugin files as the registry sees them; in a build without the feature `dynamic`, there are none.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use sandbox_core::{
    ProviderManifest, Result,
    abi::{HostInfo, PluginEntry},
};

use crate::{LoadStep, refusal::Refusal};

/// Provider name → SHA-256 in lower-case hex.
pub(crate) type Pins = BTreeMap<String, String>;

/// What was seen of a file without loading it.
#[derive(Debug)]
pub(crate) struct Peek {
    pub(crate) steps: Vec<LoadStep>,
    pub(crate) name: Option<String>,
    pub(crate) outcome: Result<Known, Refusal>,
}

/// A file that may be loaded.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) path: PathBuf,
    pub(crate) manifest: ProviderManifest,
    pub(crate) sha256: Option<String>,
}

/// Whether the checksum of a file is wanted that is not pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Digest {
    IfPinned,
    Always,
}

pub(crate) const EXTENSION: &str = if cfg!(target_os = "macos") { "dylib" } else { "so" };

/// The file of a built-in provider.
pub(crate) fn builtin_file_name(name: &str) -> String {
    format!("libsandbox_provider_{}.{EXTENSION}", name.replace('-', "_"))
}

/// The provider's name as its file's name suggests it: `libsandbox_provider_acme.so` and `libacme.so` are `acme`.
pub(crate) fn name_from_file(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let stem = stem.strip_prefix("lib").unwrap_or(&stem);
    stem.strip_prefix("sandbox_provider_").unwrap_or(stem).replace('_', "-")
}

#[cfg(feature = "dynamic")]
pub(crate) fn peek(path: &Path, pins: &Pins, digest: Digest) -> Peek {
    use crate::inspect::{Checksum, inspect};

    let mut inspection = inspect(path, &Checksum::IfPinned(pins));
    let pinned = inspection.outcome.as_ref().is_ok_and(|plugin| plugin.sha256.is_some());
    if digest == Digest::Always && inspection.outcome.is_ok() && !pinned {
        inspection = inspect(path, &Checksum::Compute);
    }
    let outcome = match inspection.outcome {
        Ok(plugin) => Ok(Known { path: plugin.path, manifest: plugin.manifest, sha256: plugin.sha256 }),
        Err(error) => Err(Refusal::from(&error)),
    };
    Peek { steps: inspection.steps, name: inspection.name, outcome }
}

#[cfg(feature = "dynamic")]
pub(crate) fn load(path: &Path, expected: &str, pins: &Pins, host: &HostInfo) -> (Vec<LoadStep>, Result<PluginEntry>) {
    let loading = crate::load::load_named(path, Some(expected), &crate::inspect::Checksum::IfPinned(pins), host);
    (loading.steps, loading.outcome.map(|plugin| plugin.entry))
}

#[cfg(not(feature = "dynamic"))]
pub(crate) fn peek(path: &Path, _: &Pins, _: Digest) -> Peek {
    Peek { steps: Vec::new(), name: None, outcome: Err(Refusal::from(&cannot_load(path))) }
}

#[cfg(not(feature = "dynamic"))]
pub(crate) fn load(path: &Path, _: &str, _: &Pins, _: &HostInfo) -> (Vec<LoadStep>, Result<PluginEntry>) {
    (Vec::new(), Err(cannot_load(path)))
}

#[cfg(not(feature = "dynamic"))]
fn cannot_load(path: &Path) -> sandbox_core::SandboxError {
    sandbox_core::SandboxError::plugin(format!("{}: {CANNOT_LOAD}", path.display())).with_help(CANNOT_LOAD_HELP)
}

#[cfg(not(feature = "dynamic"))]
pub(crate) const CANNOT_LOAD: &str = "this build cannot load plugins: its feature \"dynamic\" is off";

#[cfg(not(feature = "dynamic"))]
pub(crate) const CANNOT_LOAD_HELP: &str =
    "use a build of this program with the feature \"dynamic\", or one that links the provider";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{builtin_file_name, name_from_file};

    #[test]
    fn file_names_and_provider_names_lead_to_each_other() {
        assert!(builtin_file_name("my-cloud").starts_with("libsandbox_provider_my_cloud."));
        for name in ["docker", "my-cloud", "x1"] {
            assert_eq!(name_from_file(Path::new(&builtin_file_name(name))), name);
        }
        assert_eq!(name_from_file(Path::new("/a/libacme_x.so")), "acme-x");
        assert_eq!(name_from_file(Path::new("/")), "");
    }
}
