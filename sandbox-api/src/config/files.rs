use std::path::{Path, PathBuf};

use sandbox_core::{Result, SandboxError};

use crate::Environment;

/// The name of a project's file.
const PROJECT_FILE: &str = "sandbox.toml";
/// The name of the user's file, in its folder.
const USER_FILE: &str = "config.toml";

/// How a file came to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigFileKind {
    /// It was named.
    Given,
    /// It was found in the working folder or above it. Whoever wrote that folder wrote it: it may say less.
    Found,
    /// It is the user's own.
    User,
}

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// How it came to be read.
    pub kind: ConfigFileKind,
}

impl ConfigFile {
    pub(super) fn new(path: PathBuf, kind: ConfigFileKind) -> Self {
        Self { path, kind }
    }
}

/// Where a configuration is looked for.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConfigSources {
    /// The one file to read: TOML, YAML or JSON, by its name. With it no other is read.
    pub given: Option<PathBuf>,
    /// A folder: the nearest `sandbox.toml` in it or above it counts.
    pub folder: Option<PathBuf>,
    /// The user's folder: `config.toml` in it counts, below the project's.
    pub user_folder: Option<PathBuf>,
    /// The variables: `SANDBOX_PROVIDER`, `SANDBOX_PROVIDER__<NAME>__<KEY>`, and those that values refer to.
    pub environment: Environment,
}

impl ConfigSources {
    /// The usual places: the working folder and what is above it, `$XDG_CONFIG_HOME/sandbox` (default
    /// `~/.config/sandbox`), and the variables of this process.
    ///
    /// # Errors
    /// `NotFound` when the working folder is gone.
    pub fn usual() -> Result<Self> {
        let environment = Environment::process();
        let folder = std::env::current_dir().map_err(|error| {
            SandboxError::io("the working folder cannot be read", error).with_help("cd to a folder that exists")
        })?;
        let user_folder = environment.config_home();
        Ok(Self { given: None, folder: Some(folder), user_folder, environment })
    }

    /// Reads this file and no other.
    #[must_use]
    pub fn with_file(mut self, path: Option<&Path>) -> Self {
        self.given = path.map(Path::to_owned);
        self
    }

    /// The files that count, the one that wins first. The user's file is among them whether or not it exists.
    pub(super) fn files(&self) -> Vec<ConfigFile> {
        if let Some(path) = &self.given {
            return vec![ConfigFile::new(path.clone(), ConfigFileKind::Given)];
        }
        let above = self.folder.iter().flat_map(|folder| folder.ancestors());
        let found = above.map(|folder| folder.join(PROJECT_FILE)).find(|path| path.is_file());
        let user = self.user_folder.as_ref().map(|folder| folder.join(USER_FILE));
        let found = found.map(|path| ConfigFile::new(path, ConfigFileKind::Found));
        found.into_iter().chain(user.map(|path| ConfigFile::new(path, ConfigFileKind::User))).collect()
    }
}
