//! Looking for plugin files, without loading any.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use sandbox_core::{Result, SandboxError};

use crate::{
    files::{self, Digest, EXTENSION, Known, Peek, Pins},
    refusal::Refusal,
};

/// A folder with more libraries than this is no plugin folder.
const MAX_FILES_PER_FOLDER: usize = 1_000;

/// What was found, in the order of the places and by file name.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    pub(crate) candidates: Vec<Candidate>,
    /// Folders that could not be read, or not wholly.
    pub(crate) problems: Vec<String>,
}

/// A file that may be a plugin.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// Where it was found, links not resolved.
    pub(crate) path: PathBuf,
    pub(crate) peek: Peek,
}

impl Candidate {
    /// The provider's name, after the manifest or, if that could not be read, after the file.
    pub(crate) fn name(&self) -> String {
        self.peek.name.clone().unwrap_or_else(|| files::name_from_file(&self.path))
    }

    pub(crate) fn known(&self) -> Option<&Known> {
        self.peek.outcome.as_ref().ok()
    }

    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.peek.outcome.as_ref().err()
    }
}

impl Discovery {
    /// Looks at every plugin file in these folders, and at these files. A file that is there twice, through links, counts
    /// once. A file that fails is kept with its reason.
    pub(crate) fn scan(places: &[PathBuf], pins: &Pins) -> Self {
        let mut discovery = Self::default();
        let mut seen = BTreeSet::new();
        for place in places {
            for path in discovery.files_at(place) {
                let is_new = match fs::metadata(&path) {
                    Ok(found) => seen.insert((found.dev(), found.ino())),
                    // A link to nowhere: the inspection will say so.
                    Err(_) => true,
                };
                if is_new {
                    let peek = files::peek(&path, pins, Digest::IfPinned);
                    discovery.candidates.push(Candidate { path, peek });
                }
            }
        }
        discovery
    }

    fn files_at(&mut self, place: &Path) -> Vec<PathBuf> {
        match fs::metadata(place) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return vec![place.to_owned()],
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                self.problem(place, &error.to_string());
                return Vec::new();
            }
        }
        let mut paths = match fs::read_dir(place) {
            Ok(entries) => entries
                .filter_map(|entry| entry.ok().map(|entry| entry.path()))
                .filter(|path| is_library(path))
                .collect::<Vec<_>>(),
            Err(error) => {
                self.problem(place, &error.to_string());
                Vec::new()
            }
        };
        paths.sort();
        if paths.len() > MAX_FILES_PER_FOLDER {
            self.problem(place, &format!("{} libraries; the first {MAX_FILES_PER_FOLDER} are looked at", paths.len()));
            paths.truncate(MAX_FILES_PER_FOLDER);
        }
        paths
    }

    fn problem(&mut self, place: &Path, what: &str) {
        tracing::warn!(path = %place.display(), what, "plugin folder");
        self.problems.push(format!("{}: {what}", place.display()));
    }

    /// The one usable file of a provider; nothing if there is no file of it at all.
    ///
    /// # Errors
    /// `AlreadyExists` for two files of one name; otherwise why the only file was refused.
    pub(crate) fn find(&self, name: &str) -> Result<Option<&Candidate>> {
        let usable = self.usable(name);
        match usable.as_slice() {
            [one] => return Ok(Some(one)),
            [] => {}
            several => return Err(duplicate(name, several)),
        }
        let refused = || self.candidates.iter().filter(|candidate| candidate.refusal().is_some());
        let by_manifest = refused().find(|candidate| candidate.peek.name.as_deref() == Some(name));
        let by_file = || refused().find(|candidate| files::name_from_file(&candidate.path) == name.replace('_', "-"));
        match by_manifest.or_else(by_file).and_then(Candidate::refusal) {
            Some(refusal) => Err(refusal.error()),
            None => Ok(None),
        }
    }

    /// The usable files that call themselves so.
    pub(crate) fn usable(&self, name: &str) -> Vec<&Candidate> {
        let is_named = |candidate: &&Candidate| candidate.known().is_some_and(|known| known.manifest.name == name);
        self.candidates.iter().filter(is_named).collect()
    }
}

/// `lib*.so` and `*.so`. A hidden file is one that is being written.
fn is_library(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// Two files of one provider: which one is meant is not for the host to guess.
pub(crate) fn duplicate(name: &str, candidates: &[&Candidate]) -> SandboxError {
    let paths: Vec<String> = candidates.iter().map(|candidate| candidate.path.display().to_string()).collect();
    SandboxError::already_exists(format!("{} plugin files provide {name:?}: {}", paths.len(), paths.join(", ")))
        .with_provider(name)
        .with_help("remove all of them but one")
}
