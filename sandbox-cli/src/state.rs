//! What is known of the sandboxes that outlive this program: one file for each, named after it, readable by its user
//! alone. It holds how to reach the sandbox and no secret. The provider's own state is elsewhere.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use sandbox_api::process_owner;
use sandbox_core::{Owner, near_match};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{environment, exit, failure::Failure, output};

/// The form of the files.
const SCHEMA: u32 = 1;
const EXTENSION: &str = "json";
/// The shortest beginning of a name or an id that stands for the whole.
const PREFIX_MIN: usize = 3;
/// A sandbox that outlives this program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Saved {
    schema: u32,
    /// What people call it.
    pub(crate) name: String,
    /// Whose it is: the name under which its provider was chosen, which may be that of a block of the configuration.
    pub(crate) provider: String,
    /// What its provider calls it.
    pub(crate) id: String,
    /// Made from this image.
    #[serde(default)]
    pub(crate) image: Option<String>,
    /// In milliseconds since the Unix epoch.
    pub(crate) created_at_ms: u64,
    /// From which its provider finds it again.
    pub(crate) descriptor: Value,
}

impl Saved {
    pub(crate) fn new(name: &str, provider: &str, id: &str, image: Option<String>, descriptor: Value) -> Self {
        let (name, provider, id) = (name.to_owned(), provider.to_owned(), id.to_owned());
        Self { schema: SCHEMA, name, provider, id, image, created_at_ms: now_ms(), descriptor }
    }

    /// Seconds until its time to live is over, if it has one.
    pub(crate) fn left_s(&self) -> Option<f64> {
        let expiry = self.descriptor.get("expires_at_ms")?.as_u64()?;
        Some(expiry.saturating_sub(now_ms()) as f64 / 1000.0)
    }
}

/// A name that was taken for a sandbox that is being made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reservation {
    pub(crate) name: String,
    /// Whose it is going to be.
    pub(crate) provider: String,
    /// Who makes it.
    reserved_by: Owner,
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The folder of the files.
pub(crate) struct Store(PathBuf);

impl Store {
    /// Opens it; makes it if it is not there.
    ///
    /// # Errors
    /// When there is no place for it, or the place cannot be written.
    pub(crate) fn open() -> Result<Self, Failure> {
        let folder = environment::state_home().ok_or_else(|| {
            Failure::usage("there is no place for what outlives this program")
                .with_help("set XDG_STATE_HOME or HOME to an absolute path")
        })?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| at(&folder, "make", &error))?;
        Ok(Self(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name).with_extension_added()
    }

    /// Takes a name for a sandbox that is going to be made; the spec has checked it.
    ///
    /// # Errors
    /// Exit code 2 for one that is taken.
    pub(crate) fn reserve(&self, name: Option<&str>, provider: &str) -> Result<Reserved<'_>, Failure> {
        loop {
            let tried = name.map_or_else(new_name, str::to_owned);
            let path = self.path(&tried);
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(mut file) => {
                    // First: whatever becomes of this process, the name is given back.
                    let reserved = Reserved { store: self, name: tried, is_kept: false };
                    let (name, provider) = (reserved.name.clone(), provider.to_owned());
                    let reservation = Reservation { name, provider, reserved_by: process_owner() };
                    let text = serde_json::to_vec(&reservation).unwrap_or_default();
                    file.write_all(&text).map_err(|error| at(&path, "write", &error))?;
                    return Ok(reserved);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if name.is_some() {
                        return Err(Failure::usage(format!("there is a sandbox {tried:?} already"))
                            .with_field("--name")
                            .with_help(format!("end it with: sandboxctl stop {tried}")));
                    }
                }
                Err(error) => return Err(at(&path, "write", &error)),
            }
        }
    }

    /// Writes what is known of a sandbox, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn save(&self, saved: &Saved) -> Result<(), Failure> {
        let path = self.path(&saved.name);
        let part = self.0.join(format!(".{}.{}", saved.name, std::process::id()));
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
            serde_json::to_writer(&mut file, saved)?;
            file.flush()?;
            fs::rename(&part, &path)
        };
        write().map_err(|error: io::Error| {
            let _ = fs::remove_file(&part);
            at(&path, "write", &error)
        })
    }

    /// Forgets a sandbox that is gone. One that is not known is fine.
    pub(crate) fn forget(&self, name: &str) {
        if let Err(error) = fs::remove_file(self.path(name)) {
            tracing::debug!(%error, "nothing to forget");
        }
    }

    /// Every sandbox that is known, by name. A file that cannot be read is told and left alone.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn all(&self) -> Result<Vec<Saved>, Failure> {
        let entries = fs::read_dir(&self.0).map_err(|error| at(&self.0, "read", &error))?;
        let mut all = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            if is_hidden || path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            match read(&path) {
                Ok(saved) => all.extend(saved),
                Err(why) => output::note(&format!("warning: {}: {why}", path.display())),
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// The sandbox of a name, an id, or the beginning of one that no other has.
    ///
    /// # Errors
    /// `sandbox.not_found` with the nearest name; `sandbox.ambiguous`.
    pub(crate) fn find(&self, word: &str) -> Result<Saved, Failure> {
        let all = self.all()?;
        if let Some(saved) = all.iter().find(|saved| saved.name == word || saved.id == word) {
            return Ok(saved.clone());
        }
        let fits =
            |saved: &&Saved| word.len() >= PREFIX_MIN && (saved.name.starts_with(word) || saved.id.starts_with(word));
        let fitting: Vec<&Saved> = all.iter().filter(fits).collect();
        match fitting.as_slice() {
            [saved] => Ok((*saved).clone()),
            [] => {
                let failure = Failure::new(exit::USAGE, "sandbox.not_found", format!("no sandbox {word:?}"));
                Err(match near_match(word, all.iter().map(|saved| saved.name.as_str())) {
                    Some(near) => failure.with_help(format!("did you mean {near:?}? list them with: sandboxctl ls")),
                    None => failure.with_help("list them with: sandboxctl ls"),
                })
            }
            several => {
                let names: Vec<&str> = several.iter().map(|saved| saved.name.as_str()).collect();
                let message = format!("{word:?} may be any of {}", names.join(", "));
                Err(Failure::new(exit::USAGE, "sandbox.ambiguous", message))
            }
        }
    }

    /// Names that were taken by a program that is gone: what it was making may be there, and nobody knows of it.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn abandoned(&self) -> Result<Vec<Reservation>, Failure> {
        let entries = fs::read_dir(&self.0).map_err(|error| at(&self.0, "read", &error))?;
        let texts = entries.flatten().filter_map(|entry| fs::read(entry.path()).ok());
        let all = texts.filter_map(|text| serde_json::from_slice::<Reservation>(&text).ok());
        Ok(all.filter(|reservation| !sandbox_api::may_live(&reservation.reserved_by)).collect())
    }
}

/// A name that nobody else can take. Given back when it is dropped, unless something was saved under it.
pub(crate) struct Reserved<'a> {
    store: &'a Store,
    pub(crate) name: String,
    is_kept: bool,
}

impl Reserved<'_> {
    /// Saves the sandbox under the name.
    ///
    /// # Errors
    /// As [`Store::save`].
    pub(crate) fn save(mut self, saved: &Saved) -> Result<(), Failure> {
        self.store.save(saved)?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.store.forget(&self.name);
        }
    }
}

trait WithExtension {
    /// A name may hold dots: the extension is added, not put in place of its end.
    fn with_extension_added(self) -> Self;
}

impl WithExtension for PathBuf {
    fn with_extension_added(self) -> Self {
        let mut whole = self.into_os_string();
        whole.push(".");
        whole.push(EXTENSION);
        whole.into()
    }
}

/// None for a name that is only reserved.
fn read(path: &Path) -> Result<Option<Saved>, String> {
    let text = fs::read(path).map_err(|error| error.to_string())?;
    // Empty: taken at this very moment.
    if text.is_empty() || serde_json::from_slice::<Reservation>(&text).is_ok() {
        return Ok(None);
    }
    let saved: Saved = serde_json::from_slice(&text).map_err(|_| "this is no record of a sandbox".to_owned())?;
    match saved.schema {
        SCHEMA => Ok(Some(saved)),
        newer => Err(format!("written by a newer sandboxctl (form {newer}, this one knows {SCHEMA})")),
    }
}

fn at(path: &Path, what: &str, error: &io::Error) -> Failure {
    Failure::failed("state", format!("cannot {what} {}", path.display())).because(error)
}

/// A name that is not in use, with all likelihood.
fn new_name() -> String {
    use std::hash::{BuildHasher, RandomState};
    // Keyed by the system's random numbers.
    let number = RandomState::new().hash_one(std::process::id());
    format!("sb-{:07x}", number & 0xfff_ffff)
}

#[cfg(test)]
mod tests {
    use super::{Saved, Store};

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store(folder.path().to_owned());
        (folder, store)
    }

    fn saved(name: &str, id: &str) -> Saved {
        Saved::new(name, "fake", id, None, serde_json::json!({}))
    }

    #[test]
    fn a_name_is_taken_once_and_given_back() {
        let (_folder, store) = store();
        let reserved = store.reserve(Some("a.b"), "fake").unwrap();
        assert!(store.reserve(Some("a.b"), "fake").is_err());
        assert!(store.all().unwrap().is_empty());
        assert!(store.abandoned().unwrap().is_empty(), "its maker lives");
        drop(reserved);
        store.reserve(Some("a.b"), "fake").unwrap().save(&saved("a.b", "1")).unwrap();
        assert!(store.reserve(Some("a.b"), "fake").is_err());
        assert_eq!(store.find("a.b").unwrap().id, "1");
        store.forget("a.b");
        assert!(store.find("a.b").is_err());
    }

    #[test]
    fn a_sandbox_is_found_by_name_id_or_a_beginning_that_is_its_own() {
        let (_folder, store) = store();
        for (name, id) in [("eval-1", "aaaa1"), ("eval-2", "aaab2"), ("other", "cccc")] {
            store.reserve(Some(name), "fake").unwrap().save(&saved(name, id)).unwrap();
        }
        assert_eq!(store.find("eval-2").unwrap().name, "eval-2");
        assert_eq!(store.find("aaaa1").unwrap().name, "eval-1");
        assert_eq!(store.find("oth").unwrap().name, "other");
        assert!(store.find("ot").is_err());
        assert!(format!("{:?}", store.find("eval").unwrap_err()).contains("ambiguous"));
        assert!(format!("{:?}", store.find("evall-1").unwrap_err()).contains("did you mean"));
    }
}
