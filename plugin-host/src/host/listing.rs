//! What there is, without loading any of it.

use std::path::PathBuf;

use sandbox_core::{CapabilitySet, ContractVersion, ProviderManifest, Result, SandboxError};
use serde::{Serialize, Serializer};

use super::{Builtin, PluginHost, resolve};
use crate::{
    discovery::{self, Discovery},
    files::{self, Digest, Known, Peek},
};

/// How a provider came to be known. The order is the order of resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Origin {
    /// It was registered by the program.
    Explicit,
    /// The host reserved its name.
    BuiltIn,
    /// Its file was found.
    Discovered,
}

/// Whether a provider can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProviderState {
    /// It can, as far as that is known without loading it.
    Ready,
    /// Its file was refused; the text says why.
    Refused(String),
    /// Another one of its name comes first.
    Shadowed {
        /// How that one came to be known.
        by: Origin,
    },
    /// A built-in without a file.
    NotInstalled {
        /// Every path that was tried.
        tried: Vec<PathBuf>,
    },
}

/// One provider, or one file that would be one.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ProviderListing {
    /// Its name; that of a refused file whose manifest cannot be read is taken from the file's name.
    pub name: String,
    /// How it came to be known.
    pub origin: Origin,
    /// Its file, if it has one.
    pub path: Option<PathBuf>,
    /// The version of its package; unknown for a registered provider.
    pub version: Option<String>,
    /// The contract that it was built against; unknown for a registered provider.
    #[serde(serialize_with = "as_text")]
    pub contract: Option<ContractVersion>,
    /// What its manifest says that it may have.
    pub capabilities: CapabilitySet,
    /// Whether it can be used.
    pub state: ProviderState,
}

fn as_text<S: Serializer>(version: &Option<ContractVersion>, serializer: S) -> Result<S::Ok, S::Error> {
    version.map(|version| version.to_string()).serialize(serializer)
}

/// Everything that can be said of a provider without loading it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ProviderDescription {
    /// Its name.
    pub name: String,
    /// How it came to be known.
    pub origin: Origin,
    /// Its file, symbolic links resolved, if it has one.
    pub path: Option<PathBuf>,
    /// The SHA-256 of its file, in lower-case hex.
    pub sha256: Option<String>,
    /// Its manifest; none for a registered provider.
    pub manifest: Option<ProviderManifest>,
}

impl ProviderListing {
    fn new(name: impl Into<String>, origin: Origin, state: ProviderState) -> Self {
        Self {
            name: name.into(),
            origin,
            path: None,
            version: None,
            contract: None,
            capabilities: CapabilitySet::default(),
            state,
        }
    }

    fn with_manifest(mut self, manifest: &ProviderManifest) -> Self {
        self.version = Some(manifest.version.clone());
        self.contract = Some(manifest.contract);
        self.capabilities = manifest.capabilities.clone();
        self
    }

    fn with_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }
}

impl PluginHost {
    /// Every provider and every file that would be one, sorted by name and then by what comes first. Looks at files, but
    /// loads nothing. What cannot be used is there too, with the reason.
    pub fn list_providers(&self) -> Vec<ProviderListing> {
        let explicit: Vec<String> = self.state().explicit.keys().cloned().collect();
        let mut listings: Vec<ProviderListing> =
            explicit.iter().map(|name| ProviderListing::new(name, Origin::Explicit, ProviderState::Ready)).collect();
        for (name, builtin) in &self.0.builtins {
            let mut listing = self.list_builtin(name, builtin);
            if explicit.contains(name) {
                listing.state = ProviderState::Shadowed { by: Origin::Explicit };
            }
            listings.push(listing);
        }
        listings.extend(self.list_discovered(&self.discovery(), &explicit));
        listings.sort_by(|left, right| {
            (&left.name, left.origin, &left.path).cmp(&(&right.name, right.origin, &right.path))
        });
        listings
    }

    fn list_builtin(&self, name: &str, builtin: &Builtin) -> ProviderListing {
        let listing = |state| ProviderListing::new(name, Origin::BuiltIn, state);
        let refused = |error: &SandboxError| listing(ProviderState::Refused(error.to_string()));
        if let Some(linked) = builtin.linked {
            return match resolve::linked_manifest(name, &linked()) {
                Ok(manifest) => listing(ProviderState::Ready).with_manifest(&manifest),
                Err(error) => refused(&error),
            };
        }
        let path = match self.installed_file(name) {
            Ok(path) => path,
            Err(error) if error.kind() == sandbox_core::ErrorKind::NotFound => {
                return listing(ProviderState::NotInstalled { tried: self.installed_paths(name) });
            }
            Err(error) => return refused(&error),
        };
        match self.peek_builtin(name, &path, Digest::IfPinned) {
            Ok(known) => listing(ProviderState::Ready).with_manifest(&known.manifest).with_path(path),
            Err(error) => refused(&error).with_path(path),
        }
    }

    fn list_discovered(&self, discovery: &Discovery, explicit: &[String]) -> Vec<ProviderListing> {
        let mut listings = Vec::new();
        for candidate in &discovery.candidates {
            let name = candidate.name();
            let listing = |state| ProviderListing::new(&name, Origin::Discovered, state).with_path(&candidate.path);
            listings.push(match (candidate.known(), candidate.refusal()) {
                (_, Some(refusal)) => listing(ProviderState::Refused(refusal.message().to_owned())),
                (None, None) => continue,
                (Some(known), None) => {
                    let usable = discovery.usable(&name);
                    let state = if explicit.contains(&name) {
                        ProviderState::Shadowed { by: Origin::Explicit }
                    } else if self.0.builtins.contains_key(&name) {
                        ProviderState::Shadowed { by: Origin::BuiltIn }
                    } else if usable.len() > 1 {
                        ProviderState::Refused(discovery::duplicate(&name, &usable).to_string())
                    } else {
                        ProviderState::Ready
                    };
                    listing(state).with_manifest(&known.manifest)
                }
            });
        }
        listings
    }

    /// Says everything about a provider that can be said without loading it.
    ///
    /// # Errors
    /// What [`create`](Self::create) would say of its name and file.
    pub fn describe(&self, name: &str) -> Result<ProviderDescription> {
        let describe = |origin, manifest| ProviderDescription {
            name: name.to_owned(),
            origin,
            path: None,
            sha256: None,
            manifest,
        };
        if self.state().explicit.contains_key(name) {
            return Ok(describe(Origin::Explicit, None));
        }
        let (origin, known) = match self.0.builtins.get(name) {
            Some(Builtin { linked: Some(linked), .. }) => {
                return Ok(describe(Origin::BuiltIn, Some(resolve::linked_manifest(name, &linked())?)));
            }
            Some(_) => {
                let path = self.installed_file(name)?;
                (Origin::BuiltIn, self.peek_builtin(name, &path, Digest::Always)?)
            }
            None => {
                let discovery = self.discovery();
                let found = discovery.find(name).map_err(|error| error.with_provider(name))?;
                let candidate = found.ok_or_else(|| self.unknown(name, &discovery))?;
                let peek = files::peek(&candidate.path, &self.0.pins, Digest::Always);
                (Origin::Discovered, self.note(name, peek)?)
            }
        };
        let mut description = describe(origin, Some(known.manifest));
        description.path = Some(known.path);
        description.sha256 = known.sha256;
        Ok(description)
    }

    fn peek_builtin(&self, name: &str, path: &std::path::Path, digest: Digest) -> Result<Known> {
        let known = self.note(name, files::peek(path, &self.0.pins, digest))?;
        if known.manifest.name == name {
            return Ok(known);
        }
        Err(SandboxError::plugin(format!(
            "{}: name: expected the provider {name:?}, found {:?}",
            path.display(),
            known.manifest.name
        ))
        .with_provider(name))
    }

    /// Keeps the steps of a look at a provider's file, unless those of its being loaded are there.
    fn note(&self, name: &str, peek: Peek) -> Result<Known> {
        let mut state = self.state();
        if !state.loaded.contains_key(name) {
            state.traces.insert(name.to_owned(), peek.steps);
        }
        drop(state);
        peek.outcome.map_err(|refusal| refusal.error().with_provider(name))
    }
}
