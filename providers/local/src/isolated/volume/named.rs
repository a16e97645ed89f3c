//! Named volumes: folders below the provider's root that outlive their sandboxes.
//!
//! `.volumes/NAME` holds `data` and what is known of it. Whoever makes a sandbox with it shares a lock on it until the
//! sandbox's record names it; whoever removes it has the lock alone.

use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::PathBuf,
    time::Duration,
};

use rustix::{
    fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with},
    io::Errno,
};
use sandbox_core::{
    NamedVolume, Result, SandboxError, SandboxStatus, VolumeRequest, from_json,
    serde_json::{self, json},
};
use serde::Deserialize;

use crate::{
    error::{NAME, os},
    folder::{host_folder, random_hex},
    records::Records,
    remove::remove_tree,
    workspace::Root,
};

const FOLDER: &str = ".volumes";
const DATA: &str = "data";
const ABOUT: &str = "volume.json";
/// No name of a volume begins like this.
const UNFINISHED: &str = ".tmp-";

/// After so long what was not finished never will be.
const UNFINISHED_FOR: Duration = Duration::from_secs(3600);

/// The named volumes of one root.
pub(crate) struct Volumes {
    folder: PathBuf,
    root: Root,
    records: Records,
}

/// A volume that is not removed while this lives.
pub(crate) struct HeldVolume {
    name: String,
    folder: PathBuf,
    _shared: File,
}

impl HeldVolume {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn data(&self) -> Result<PathBuf> {
        let path = self.folder.join(DATA);
        // Links above it are the user's own; the launcher follows none.
        path.canonicalize().map_err(|error| SandboxError::io(format!("volume {}", self.name), error))
    }
}

/// What is written down of a volume.
#[derive(Deserialize)]
struct About {
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

impl Volumes {
    pub(crate) fn new(root: &Root, records: &Records) -> Self {
        Self { folder: root.path().join(FOLDER), root: root.clone(), records: records.clone() }
    }

    /// Makes a volume, whole or not at all. Blocks, as do all of these.
    pub(crate) fn create(&self, request: VolumeRequest) -> Result<NamedVolume> {
        check_name("name", &request.name)?;
        if request.size_gib.is_some() {
            let why = "a folder of this machine has no size limit";
            return Err(SandboxError::unsupported_field(NAME, "size_gib", why).with_help("leave it out"));
        }
        self.root.prepare()?;
        let failed = |error| SandboxError::io(format!("volume {}", request.name), error);
        make(&self.folder, 0o700).map_err(failed)?;
        let unfinished = self.folder.join(format!("{UNFINISHED}{}", random_hex(8)?));
        let about = json!({ "metadata": request.metadata }).to_string();
        let made = make(&unfinished, 0o700)
            .and_then(|()| make(&unfinished.join(DATA), 0o755))
            .and_then(|()| std::fs::write(unfinished.join(ABOUT), about))
            .and_then(|()| {
                let target = self.folder.join(&request.name);
                Ok(renameat_with(CWD, &unfinished, CWD, target, RenameFlags::NOREPLACE)?)
            });
        if let Err(error) = made {
            // The reason to fail is told; a leftover is swept.
            let _ = std::fs::remove_dir_all(&unfinished);
            return Err(match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    SandboxError::already_exists(format!("volume {} is there already", request.name)).with_field("name")
                }
                _ => failed(error),
            });
        }
        Ok(NamedVolume { id: request.name.clone(), name: request.name, metadata: request.metadata })
    }

    pub(crate) fn list(&self) -> Result<Vec<NamedVolume>> {
        let mut volumes: Vec<_> = self
            .names()?
            .into_iter()
            .filter(|name| check_name("name", name).is_ok())
            .map(|name| NamedVolume { id: name.clone(), metadata: self.about(&name).metadata, name })
            .collect();
        volumes.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(volumes)
    }

    /// Removes a volume and what is in it.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        check_name("name", name)?;
        let in_use =
            || SandboxError::invalid_state(format!("volume {name} is in use")).with_help("close its sandboxes");
        let Some(lock) = self.open(name)? else { return Ok(()) };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(in_use()),
            locked => locked.map_err(|errno| os(format!("volume {name}"), errno))?,
        }
        let uses = |record: &crate::record::Record| record.volumes.iter().any(|volume| volume == name);
        let records = self.records.read_all()?;
        if records.iter().any(|record| uses(record) && record.status() != SandboxStatus::Stopped) {
            return Err(in_use());
        }
        // At once, so that nobody sees a half of it.
        let unfinished = format!("{UNFINISHED}{}", random_hex(8)?);
        match std::fs::rename(self.folder.join(name), self.folder.join(&unfinished)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(|error| SandboxError::io(format!("volume {name}"), error))?,
        }
        remove_tree(host_folder(&self.folder)?, unfinished.as_bytes(), &format!("volume {name}"))
    }

    /// Finds a volume for a sandbox that is being made.
    pub(super) fn hold(&self, name: &str) -> Result<HeldVolume> {
        check_name("name", name)?;
        let missing =
            || SandboxError::not_found(format!("there is no volume {name}")).with_help("make it first: create_volume");
        let shared = self.open(name)?.ok_or_else(missing)?;
        let folder = self.folder.join(name);
        match flock(&shared, FlockOperation::NonBlockingLockShared) {
            // It is being removed.
            Err(Errno::WOULDBLOCK) => return Err(missing()),
            locked => locked.map_err(|errno| os(format!("volume {name}"), errno))?,
        }
        let is_same = |named: std::fs::Metadata| {
            shared.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (named.dev(), named.ino()))
        };
        match std::fs::symlink_metadata(&folder).is_ok_and(is_same) {
            true => Ok(HeldVolume { name: name.to_owned(), folder, _shared: shared }),
            false => Err(missing()),
        }
    }

    /// Removes what was not finished.
    pub(crate) fn sweep(&self) -> Result<()> {
        for name in self.names()?.iter().filter(|name| name.starts_with(UNFINISHED)) {
            let age = std::fs::symlink_metadata(self.folder.join(name)).and_then(|found| found.modified());
            if age.ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age > UNFINISHED_FOR) {
                remove_tree(host_folder(&self.folder)?, name.as_bytes(), "a volume that was not finished")?;
            }
        }
        Ok(())
    }

    fn open(&self, name: &str) -> Result<Option<File>> {
        match File::open(self.folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some).map_err(|error| SandboxError::io(format!("volume {name}"), error)),
        }
    }

    fn about(&self, name: &str) -> About {
        let text = std::fs::read(self.folder.join(name).join(ABOUT)).unwrap_or_default();
        let value = serde_json::from_slice(&text).unwrap_or_default();
        from_json(value, "volume").unwrap_or(About { metadata: BTreeMap::new() })
    }

    fn names(&self) -> Result<Vec<String>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| SandboxError::io(self.folder.display(), error))?,
        };
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }
}

/// Makes a folder; one that is there is fine.
fn make(path: &std::path::Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Checks the name of a volume or a network, which is a file name, too.
pub(crate) fn check_name(field: &str, name: &str) -> Result<()> {
    let is_good = (1..=63).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    match is_good {
        true => Ok(()),
        false => Err(SandboxError::invalid_input(
            field,
            "must be 1 to 63 of a-z A-Z 0-9 . _ - and start with a letter or a digit",
        )),
    }
}
