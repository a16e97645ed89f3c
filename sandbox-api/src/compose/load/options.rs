//! Which document is loaded, and how.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{Node, files::Variables, volumes::lexical};
use crate::compose::report::{FindingClass, Log};

/// The names that a document is looked for under, best first.
pub const COMPOSE_FILE_NAMES: [&str; 4] = ["compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"];

/// Which document is loaded, and how.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct ComposeOptions {
    /// The files, each laid over the ones before it. Empty: `COMPOSE_FILE`, else the first of
    /// [`COMPOSE_FILE_NAMES`] that is there, and its override.
    pub files: Vec<PathBuf>,
    /// What relative paths are relative to. Default: the folder of the first file.
    pub project_directory: Option<PathBuf>,
    /// Files of variables, in place of `.env`. The environment wins over them.
    pub env_files: Vec<PathBuf>,
    /// The environment: where variables come from first.
    pub environment: BTreeMap<String, String>,
    /// Profiles that are active, beside those of `COMPOSE_PROFILES`. `*` is all.
    pub profiles: Vec<String>,
    /// The project's name. Default: `COMPOSE_PROJECT_NAME`, the document's `name`, the folder's name.
    pub project_name: Option<String>,
    /// Only these services and what they need. Empty: all that are active.
    pub services: Vec<String>,
    /// What relative paths of these options are relative to. Default: the working folder of this process.
    pub working_directory: Option<PathBuf>,
}

impl std::fmt::Debug for ComposeOptions {
    // The environment may hold credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComposeOptions")
            .field("files", &self.files)
            .field("profiles", &self.profiles)
            .field("services", &self.services)
            .field("environment", &self.environment.len())
            .finish_non_exhaustive()
    }
}

impl ComposeOptions {
    /// This file, with the environment of this process.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { files: vec![path.into()], ..Self::process() }
    }

    /// What the environment of this process says.
    pub fn process() -> Self {
        Self { environment: crate::Environment::process().into_variables(), ..Self::default() }
    }

    pub(super) fn here(&self) -> PathBuf {
        let process = || std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let folder = self.working_directory.clone().unwrap_or_else(process);
        if folder.is_absolute() { lexical(&folder) } else { lexical(&process().join(folder)) }
    }

    /// The files to read, absolute.
    pub(super) fn paths(&self, variables: &Variables, here: &Path, folder: &Path) -> Vec<PathBuf> {
        if !self.files.is_empty() {
            return self.files.iter().map(|file| lexical(&here.join(file))).collect();
        }
        if let Some(files) = variables.get("COMPOSE_FILE").filter(|files| !files.is_empty()) {
            let separator = variables.get("COMPOSE_PATH_SEPARATOR").map_or(":", String::as_str);
            return files
                .split(separator)
                .filter(|file| !file.is_empty())
                .map(|file| lexical(&here.join(file)))
                .collect();
        }
        let Some(main) = COMPOSE_FILE_NAMES.iter().map(|name| folder.join(name)).find(|path| path.is_file()) else {
            return Vec::new();
        };
        let mut paths = vec![main];
        let overrides = COMPOSE_FILE_NAMES.iter().map(|name| {
            let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
            folder.join(format!("{stem}.override.{extension}"))
        });
        paths.extend(overrides.into_iter().find(|path| path.is_file()));
        paths
    }

    /// The variables with the project's name among them, as far as it is known before the document is read.
    pub(super) fn with_project_name(&self, mut variables: Variables, base: &Path) -> Variables {
        let known = self.project_name.clone().or_else(|| variables.get("COMPOSE_PROJECT_NAME").cloned());
        let name = known.filter(|name| !name.is_empty()).unwrap_or_else(|| folder_name(base));
        variables.insert("COMPOSE_PROJECT_NAME".to_owned(), sanitise(&name));
        variables
    }

    /// The project's name: options, environment, document, folder.
    pub(super) fn name(&self, document: &Node, variables: &Variables, base: &Path, log: &mut Log) -> String {
        let written = document.get("name");
        let own = written.and_then(Node::as_text).filter(|name| !name.is_empty());
        if let (Some(name), Some(node)) = (own, written)
            && sanitise(name) != name
        {
            let message = "must be lower-case letters, digits, - and _, starting with a letter or digit";
            log.error(node.place, FindingClass::Invalid, "name", message);
        }
        let given = self.project_name.as_deref().filter(|name| !name.is_empty());
        let environment = self.environment.get("COMPOSE_PROJECT_NAME").map(String::as_str);
        // What stands among the variables now may be only the folder's name.
        let from_file = variables.get("COMPOSE_PROJECT_NAME").map(String::as_str);
        let from_file = from_file.filter(|name| **name != sanitise(&folder_name(base)));
        let name = given.or(environment.filter(|name| !name.is_empty())).or(from_file).or(own);
        sanitise(name.map_or_else(|| folder_name(base), str::to_owned).as_str())
    }
}

fn folder_name(folder: &Path) -> String {
    folder.file_name().map_or_else(|| "compose".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A name as projects may have: capitals and dots of a folder's name are no problem.
pub(crate) fn sanitise(name: &str) -> String {
    let clean: String = name
        .to_lowercase()
        .chars()
        .filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_'))
        .collect();
    let clean = clean.trim_start_matches(['-', '_']);
    let clean: String = clean.chars().take(40).collect();
    if clean.is_empty() { "compose".to_owned() } else { clean }
}

#[cfg(test)]
mod tests {
    use super::sanitise;

    #[test]
    fn h09_every_folder_name_gives_a_project_name() {
        for (name, expected) in
            [("My.App", "myapp"), ("a-b_c1", "a-b_c1"), ("__x", "x"), ("日本", "compose"), ("", "compose")]
        {
            assert_eq!(sanitise(name), expected, "{name}");
        }
    }
}
