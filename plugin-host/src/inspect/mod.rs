//! Looking at a plugin file without running any of it.

mod checksum;
mod contract;
mod file;
mod group;
mod image;
mod structure;
mod trust;

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};

pub use checksum::Checksum;
pub(crate) use file::{FileStamp, check_unchanged};
use sandbox_core::{ProviderManifest, Result};

use crate::{LoadStep, mismatch::Mismatch, trace::Trace};

/// A plugin file that passed every check short of being loaded. It is kept open: what was checked is what gets loaded.
#[derive(Debug)]
#[non_exhaustive]
pub struct InspectedPlugin {
    /// The file, symbolic links resolved.
    pub path: PathBuf,
    /// What it says of itself.
    pub manifest: ProviderManifest,
    /// Its SHA-256 in lower-case hex, if it was asked for.
    pub sha256: Option<String>,
    /// Its size.
    pub bytes_len: u64,
    pub(crate) section: Vec<u8>,
    pub(crate) file: File,
    pub(crate) stamp: FileStamp,
}

/// What came of looking at a file.
#[derive(Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The checks in order. When one refused the file, it is the last.
    pub steps: Vec<LoadStep>,
    /// The provider's name, also of a file that was refused after its manifest could be read.
    pub name: Option<String>,
    /// The plugin, or why it was refused.
    pub outcome: Result<InspectedPlugin>,
}

/// Looks at a plugin file. None of its code runs, it is not mapped into memory, and nothing waits on it.
///
/// Checked are, in this order: every folder and link on the way and the file itself belong to root or the user and can be
/// written by nobody else; it is a regular file of at most 512 MiB; a whole shared library for this machine, with every
/// segment and section inside the file, of which the headers, the dynamic section, its tables and the relocations agree
/// with each other; its manifest section, contract major, panic strategy and target; its entry
/// symbol; its SHA-256.
///
/// The outcome's error is `InvalidInput` for a relative path, `NotFound` for a missing file, and `Plugin` for
/// everything else; it names the path, what was expected and what was found.
pub fn inspect(path: &Path, checksum: &Checksum<'_>) -> Inspection {
    let mut look = Look::new(path, checksum);
    let outcome = look.open().and_then(|open| look.contents(open));
    Inspection { steps: look.trace.into_steps(), name: look.name, outcome }
}

/// Looks at the bytes of a plugin file as [`inspect()`] does, and at nothing else: there is no path, and nothing to load.
/// Errors call the file `bytes`.
///
/// # Errors
/// `Plugin`: what was expected and what was found. Never a panic, whatever the bytes are.
pub fn inspect_bytes(bytes: &[u8]) -> Result<ProviderManifest> {
    let unpinned = BTreeMap::new();
    let checksum = Checksum::IfPinned(&unpinned);
    Look::new(Path::new("bytes"), &checksum).examine(bytes).map(|examined| examined.manifest)
}

/// What the bytes of a file say.
struct Examined {
    manifest: ProviderManifest,
    section: Vec<u8>,
    sha256: Option<String>,
}

/// One look at one file.
pub(crate) struct Look<'a> {
    path: &'a Path,
    checksum: &'a Checksum<'a>,
    pub(crate) trace: Trace,
    pub(crate) name: Option<String>,
}

/// A file that is open, and that nobody else may write.
pub(crate) struct OpenPlugin {
    resolved: PathBuf,
    file: File,
    pub(crate) stamp: FileStamp,
}

impl<'a> Look<'a> {
    pub(crate) fn new(path: &'a Path, checksum: &'a Checksum<'a>) -> Self {
        Self { path, checksum, trace: Trace::default(), name: None }
    }

    /// Finds and opens the file, and checks who may write it.
    pub(crate) fn open(&mut self) -> Result<OpenPlugin> {
        let path = self.path;
        let euid = rustix::process::geteuid().as_raw();
        let resolved = self.trace.step("permissions", || {
            let (resolved, folders) = trust::walk(path, euid)?;
            let detail = format!("root or the user alone may write {} and {folders} folders", resolved.display());
            Ok((resolved, detail))
        })?;
        self.trace.step("open", || {
            let (file, stamp) = file::open(&resolved, path, euid)?;
            Ok((OpenPlugin { resolved, file, stamp }, format!("regular file of {} bytes", stamp.bytes)))
        })
    }

    /// Checks what is in the file.
    pub(crate) fn contents(&mut self, open: OpenPlugin) -> Result<InspectedPlugin> {
        let OpenPlugin { resolved, file, stamp } = open;
        let path = self.path;
        let bytes = self.trace.step("read", || {
            let bytes = file::read(&file, &stamp, path)?;
            let detail = format!("{} bytes", bytes.len());
            Ok((bytes, detail))
        })?;
        let Examined { manifest, section, sha256 } = self.examine(&bytes)?;
        Ok(InspectedPlugin { path: resolved, manifest, sha256, bytes_len: stamp.bytes, section, file, stamp })
    }

    /// Checks the bytes, wherever they are from.
    fn examine(&mut self, bytes: &[u8]) -> Result<Examined> {
        let path = self.path;
        let image = self.check("format", || image::parse(bytes))?;
        self.check("bounds", || Ok(((), image::check_whole(&image, bytes)?)))?;
        self.check("structure", || Ok(((), structure::check(&image, bytes)?)))?;
        let section = self.check("section", || {
            let section = image::manifest_section(&image)?;
            Ok((section.to_vec(), format!("{} bytes", section.len())))
        })?;
        let manifest = self.trace.step("manifest", || {
            let manifest = ProviderManifest::parse(&section).map_err(|error| {
                error.context(path.display()).with_help("rebuild the plugin with this release of sandbox-core")
            })?;
            let detail = format!("{} {}", manifest.name, manifest.version);
            Ok((manifest, detail))
        })?;
        self.name = Some(manifest.name.clone());
        self.check("contract", || Ok(((), contract::check_version(&manifest)?)))?;
        self.check("panic", || Ok(((), contract::check_panic(&manifest)?)))?;
        self.check("target", || Ok(((), contract::check_target(&manifest)?)))?;
        self.check("entry-symbol", || Ok(((), image::check_entry(&image, &manifest.entry_symbol)?)))?;
        let checksum = self.checksum;
        let sha256 = self.check("checksum", || {
            let sha256 = checksum::check(&manifest.name, bytes, checksum)?;
            let detail = sha256.clone().unwrap_or_else(|| "not pinned".to_owned());
            Ok((sha256, detail))
        })?;
        Ok(Examined { manifest, section, sha256 })
    }

    fn check<T>(&mut self, name: &'static str, check: impl FnOnce() -> Result<(T, String), Mismatch>) -> Result<T> {
        let path = self.path;
        self.trace.step(name, || check().map_err(|mismatch| mismatch.at(path)))
    }
}
