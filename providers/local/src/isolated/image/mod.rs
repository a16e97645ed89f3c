//! What a sandbox runs on beside this machine's own system: a folder, or a tar file, which is unpacked once.

mod cache;
mod reader;
#[cfg(test)]
mod tests;
mod unpack;

use std::path::{Path, PathBuf};

use sandbox_core::{Result, SandboxError, SandboxSpec};

use crate::{config::LocalConfig, error::NAME, isolated::plan::plain, records::Records, workspace::Root};

use cache::Held;
pub(crate) use cache::Images;

/// How the images begin that this provider takes.
const ROOTFS: &str = "rootfs:";
const TAR: &str = "tar:";

/// What unpacked images may take in all when nothing is set, in MiB.
const CACHE_DEFAULT_MIB: u64 = 16_384;

/// The lower folder of a sandbox.
pub(crate) struct Image {
    pub(crate) lower: PathBuf,
    /// Of an unpacked tar file: keeps it until the sandbox has a record that names it.
    held: Option<Held>,
}

impl Image {
    /// The folder that the spec names, or the settings. Unpacks a tar file if need be, and blocks so long.
    pub(crate) fn find(
        config: &LocalConfig,
        root: &Root,
        records: &Records,
        spec: &SandboxSpec,
    ) -> Result<Option<Self>> {
        let folder = |lower| Some(Self { lower, held: None });
        let Some(image) = &spec.image else { return Ok(config.rootfs.clone().and_then(folder)) };
        let absolute = |prefix| image.strip_prefix(prefix).filter(|path| path.starts_with('/'));
        if let Some(path) = absolute(ROOTFS) {
            return Ok(folder(plain(path)));
        }
        if let Some(path) = absolute(TAR) {
            let held = images(config, root, records).take(Path::new(path))?;
            // Links above it are the user's own; the launcher follows none.
            let lower = held.folder().canonicalize().map_err(|error| SandboxError::io("an unpacked image", error))?;
            return Ok(Some(Self { lower, held: Some(held) }));
        }
        let why = "local runs on this machine's own files, or on rootfs:/absolute/folder or tar:/absolute/file.tar";
        Err(SandboxError::unsupported_field(NAME, "image", why)
            .with_help("export the image into a tar file, and name that file"))
    }

    /// What the record of its sandbox has to name, so that it stays.
    pub(crate) fn key(&self) -> Option<String> {
        self.held.as_ref().map(|held| held.key().to_owned())
    }
}

/// The unpacked images below a root.
pub(crate) fn images(config: &LocalConfig, root: &Root, records: &Records) -> Images {
    Images::new(root, records.clone(), config.image_cache_mib.unwrap_or(CACHE_DEFAULT_MIB) << 20)
}
