//! Where sandboxes are written down that outlive the program that made them: one private folder each.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use sandbox_core::{Result, SandboxError};

use crate::{config::LocalConfig, workspace::check_private};

/// What is known of the sandbox.
pub(crate) const DESCRIPTOR: &str = "descriptor.json";

/// The folder that holds the folders of sandboxes; none where this user has no home.
#[derive(Clone, Debug)]
pub(crate) struct State(Option<PathBuf>);

impl State {
    pub(crate) fn new(config: &LocalConfig) -> Self {
        Self(config.state_root())
    }

    /// The folder of one sandbox, which has the form of an id.
    pub(crate) fn folder(&self, id: &str) -> Option<PathBuf> {
        self.0.as_ref().map(|root| root.join(id))
    }

    /// Makes the folder of one sandbox, for this user alone.
    ///
    /// # Errors
    /// `InvalidInput` when there is no place for it; `PermissionDenied` when others could write there.
    pub(crate) fn make(&self, id: &str) -> Result<PathBuf> {
        let Some(root) = &self.0 else {
            return Err(SandboxError::invalid_input("state_root", "is not set, and neither is XDG_STATE_HOME or HOME")
                .with_help("set state_root: a sandbox that outlives this program is written down there"));
        };
        let failed = |path: &Path, error: io::Error| SandboxError::io(path.display(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(|error| failed(root, error))?;
        self.check()?;
        let folder = root.join(id);
        DirBuilder::new().mode(0o700).create(&folder).map_err(|error| failed(&folder, error))?;
        Ok(folder)
    }

    /// Makes sure that what is read here was written by this user.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.0 {
            Some(root) => check_private(root, "state_root"),
            None => Ok(()),
        }
    }

    /// The names in the folder.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let Some(root) = &self.0 else { return Ok(Vec::new()) };
        let entries = match std::fs::read_dir(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| SandboxError::io(root.display(), error))?,
        };
        self.check()?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }

    /// Removes the folder of one sandbox. One that is gone already is fine. `unfinished` is its name meanwhile: a folder
    /// that has lost its descriptor would be nobody's if this process died.
    pub(crate) fn remove(&self, id: &str, unfinished: &str) -> Result<()> {
        let (Some(folder), Some(doomed)) = (self.folder(id), self.folder(unfinished)) else { return Ok(()) };
        let gone_is_fine = |done: io::Result<()>| match done {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(SandboxError::io(folder.display(), error)),
            _ => Ok(()),
        };
        gone_is_fine(std::fs::rename(&folder, &doomed))?;
        gone_is_fine(std::fs::remove_dir_all(&doomed))
    }
}
