//! The files in which sandboxes are written down: below the workspace root, and in folders of their own for those that
//! outlive the program that made them.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use sandbox_agent_client::start_time;
use sandbox_core::{Result, SandboxError, serde_json::Value};

use crate::{
    isolated::Door,
    record::{Record, VERSION, is_id},
    state::{DESCRIPTOR, State},
    workspace::Root,
};

const FOLDER: &str = ".records";
const SUFFIX: &str = ".json";
const UNFINISHED_SUFFIX: &str = ".tmp";

/// A record that has grown beyond this many bytes is written anew, without what it was before.
const LENGTH_MAX: u64 = 64 * 1024;

/// After so long a record that was not finished never will be.
const UNFINISHED_FOR: Duration = Duration::from_secs(3600);

/// The records of one user's sandboxes.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    folder: PathBuf,
    state: State,
}

impl Records {
    pub(crate) fn new(root: &Root, state: State) -> Self {
        Self { folder: root.path().join(FOLDER), state }
    }

    /// Where they are of sandboxes that end with their program. It is there when one of them is written down.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}{SUFFIX}"))
    }

    /// Writes a record in one step. The root is there.
    pub(crate) fn write(&self, record: &Record) -> Result<()> {
        let text = line(record)?;
        let id = &record.id;
        if record.lasting.is_none() {
            let (unfinished, path) = (self.folder.join(unfinished(id)), self.path(id));
            return match put(&unfinished, &text) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match DirBuilder::new().mode(0o700).create(&self.folder) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
                        _ => replace(&unfinished, &path, &text),
                    }
                }
                written => finish(&unfinished, &path, written),
            };
        }
        if let Some(folder) = self.state.folder(id).filter(|folder| folder.is_dir()) {
            return replace(&folder.join(unfinished(DESCRIPTOR)), &folder.join(DESCRIPTOR), &text);
        }
        // A folder without its descriptor would be nobody's.
        let made = self.state.make(&unfinished(id))?;
        let place = self.state.folder(id).expect("there is a place, or the line before had failed");
        let written = put(&made.join(DESCRIPTOR), &text).and_then(|()| std::fs::rename(&made, place));
        written.map_err(|error| {
            // The reason to fail is told; a leftover is swept.
            let _ = std::fs::remove_dir_all(&made);
            failed(error)
        })
    }

    /// Writes a record again that is there.
    ///
    /// # Errors
    /// `NotFound` when the sandbox was removed meanwhile.
    pub(crate) fn rewrite(&self, record: &Record) -> Result<()> {
        let id = &record.id;
        if record.lasting.is_some() {
            // Its folder is not made again.
            if self.state.folder(id).is_none_or(|folder| !folder.is_dir()) {
                return Err(gone(id));
            }
            return self.write(record);
        }
        let path = self.path(id);
        match append(&path, &line(record)?) {
            Ok(length) if length > LENGTH_MAX => self.write(record),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(gone(id)),
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes a record and what belongs to it. One that is gone already is fine.
    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        self.state.remove(id, &unfinished(id))?;
        Door::remove(self, id).map_err(failed)?;
        match std::fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// The record of one sandbox. None when there is none, or none that can be read.
    pub(crate) fn read(&self, id: &str) -> Option<Record> {
        self.find(id).ok().flatten()
    }

    /// The record of one sandbox. None when there is none.
    ///
    /// # Errors
    /// `Unsupported` for one that a newer release wrote; `Internal` for one that is none.
    pub(crate) fn find(&self, id: &str) -> Result<Option<Record>> {
        if !is_id(id) {
            return Ok(None);
        }
        let lasting = self.state.folder(id).map(|folder| folder.join(DESCRIPTOR));
        let Some(text) = [Some(self.path(id)), lasting].into_iter().flatten().find_map(|path| std::fs::read(path).ok())
        else {
            return Ok(None);
        };
        let unreadable = |_| SandboxError::internal(format!("what is written down of sandbox {id} cannot be read"));
        let value: Value = serde_json::from_slice(newest(&text)).map_err(unreadable)?;
        check_version(value.pointer("/lasting/version"))?;
        let record: Record = serde_json::from_value(value).map_err(unreadable)?;
        Ok(Some(record).filter(|record| record.id == id))
    }

    /// Every record that can be read, sorted by id.
    pub(crate) fn read_all(&self) -> Result<Vec<Record>> {
        let mut ids: Vec<String> =
            file_names(&self.folder)?.iter().filter_map(|name| name.strip_suffix(SUFFIX).map(str::to_owned)).collect();
        ids.extend(self.state.names()?);
        ids.sort_unstable();
        ids.dedup();
        Ok(ids.iter().filter_map(|id| self.read(id)).collect())
    }

    /// Removes what a process left that died while it wrote a record.
    pub(crate) fn remove_unfinished(&self) -> Result<()> {
        // Somebody else may sweep at the same time.
        for name in file_names(&self.folder)?.iter().filter(|name| name.ends_with(UNFINISHED_SUFFIX)) {
            let path = self.folder.join(name);
            if is_abandoned(name, &path) {
                let _ = std::fs::remove_file(path);
            }
        }
        for name in self.state.names()? {
            let Some(path) = self.state.folder(&name) else { continue };
            if name.ends_with(UNFINISHED_SUFFIX) && is_abandoned(&name, &path) {
                let _ = std::fs::remove_dir_all(path);
            } else if is_id(&name) {
                for name in file_names(&path)?.iter().filter(|name| name.ends_with(UNFINISHED_SUFFIX)) {
                    if is_abandoned(name, &path.join(name)) {
                        let _ = std::fs::remove_file(path.join(name));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Refuses what a newer release has written.
pub(crate) fn check_version(version: Option<&Value>) -> Result<()> {
    match version.map(|version| version.as_u64()) {
        None | Some(Some(0..=1)) => Ok(()),
        Some(found) => {
            let found = found.map_or_else(|| "of another form".to_owned(), |found| format!("version {found}"));
            let why = format!("the sandbox was written down by a newer release ({found}; this one reads {VERSION})");
            Err(SandboxError::unsupported_field(crate::error::NAME, "version", why).with_help("use that release"))
        }
    }
}

fn failed(error: io::Error) -> SandboxError {
    SandboxError::io("the record of a sandbox", error)
}

/// The name of a file or folder while this process makes it.
fn unfinished(name: &str) -> String {
    format!("{name}-{:x}{UNFINISHED_SUFFIX}", std::process::id())
}

/// Whether nobody finishes it any more: its process is gone, or it is old (numbers of processes are used again).
fn is_abandoned(name: &str, path: &Path) -> bool {
    let pid =
        name.strip_suffix(UNFINISHED_SUFFIX).and_then(|name| u32::from_str_radix(name.rsplit('-').next()?, 16).ok());
    let age = std::fs::metadata(path).and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
    pid.is_some_and(|pid| start_time(pid).is_none()) || age.is_some_and(|age| age > UNFINISHED_FOR)
}

fn gone(id: &str) -> SandboxError {
    SandboxError::not_found(format!("sandbox {id} is gone"))
}

/// A record as it is written.
fn line(record: &Record) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(record);
    let mut text = text.map_err(|error| SandboxError::internal(format!("the record of a sandbox: {error}")))?;
    text.push(b'\n');
    Ok(text)
}

/// The last line that was written whole.
fn newest(text: &[u8]) -> &[u8] {
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(text, |end| &text[..end]);
    whole.rsplit(|byte| *byte == b'\n').next().unwrap_or(whole)
}

fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text)
}

/// Writes a line behind those that are there: a file that is made anew costs ten times as much. Returns the new length.
fn append(path: &Path, line: &[u8]) -> io::Result<u64> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    let before = file.metadata()?.len();
    file.write_all(line).inspect_err(|_| {
        // The reason to fail is told. Half a line at the end would spoil the next one.
        let _ = file.set_len(before);
    })?;
    Ok(before + line.len() as u64)
}

fn replace(unfinished: &Path, path: &Path, text: &[u8]) -> Result<()> {
    finish(unfinished, path, put(unfinished, text))
}

fn finish(unfinished: &Path, path: &Path, written: io::Result<()>) -> Result<()> {
    written.and_then(|()| std::fs::rename(unfinished, path)).map_err(|error| {
        // The reason to fail is told; a leftover is swept.
        let _ = std::fs::remove_file(unfinished);
        failed(error)
    })
}

/// The names in a folder that are text; none where there is no such folder.
pub(crate) fn file_names(folder: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| SandboxError::io(folder.display(), error))?,
    };
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, Owner, serde_json::json};

    use super::{Records, check_version};
    use crate::{
        config::LocalConfig,
        record::{Lasting, tests::record},
        state::State,
        workspace::Root,
    };

    fn records(temp: &tempfile::TempDir) -> Records {
        let config = LocalConfig { state_root: Some(temp.path().join("state")), ..LocalConfig::default() };
        Records::new(&Root::new(temp.path().to_owned()), State::new(&config))
    }

    #[test]
    fn a_record_comes_back_as_it_was_and_nothing_else_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let records = records(&temp);
        assert!(records.read_all().unwrap().is_empty());
        for lasting in [None, Some(Lasting::now(temp.path()))] {
            let mut written = record(Owner::Lease, None);
            written.lasting = lasting;
            records.write(&written).unwrap();
            records.write(&written).unwrap();
            let left = std::fs::read_dir(temp.path().join("state")).map(Iterator::count).unwrap_or_default();
            assert_eq!(left, usize::from(written.lasting.is_some()));
            std::fs::create_dir_all(&records.folder).unwrap();
            std::fs::write(records.folder.join("local-00000000000x.json"), "{}").unwrap();
            std::fs::write(records.folder.join("local-000000000000.json"), "broken").unwrap();
            let all = records.read_all().unwrap();
            assert_eq!(all.len(), 1);
            assert_eq!((&all[0].workspace, &all[0].lasting), (&written.workspace, &written.lasting));
            assert!(records.read("../local-0123456789ab").is_none());
            records.remove(&written.id).unwrap();
            records.remove(&written.id).unwrap();
            assert!(records.read(&written.id).is_none());
        }
    }

    #[test]
    fn what_is_written_again_counts_and_half_a_line_does_not() {
        let temp = tempfile::tempdir().unwrap();
        let records = records(&temp);
        let mut written = record(Owner::Lease, None);
        let id = written.id.clone();
        assert_eq!(records.rewrite(&written).unwrap_err().kind(), ErrorKind::NotFound);
        records.write(&written).unwrap();
        let path = records.path(&id);
        let name = || records.find(&id).unwrap().and_then(|record| record.name);
        for number in 0..1000 {
            written.name = Some(format!("name {number}"));
            records.rewrite(&written).unwrap();
            assert_eq!(name(), written.name);
            assert!(std::fs::metadata(&path).unwrap().len() <= super::LENGTH_MAX + 1024);
        }
        let whole = std::fs::read(&path).unwrap();
        written.name = Some("later".to_owned());
        records.rewrite(&written).unwrap();
        let later = std::fs::read(&path).unwrap();
        for end in whole.len()..later.len() {
            std::fs::write(&path, &later[..end]).unwrap();
            assert_eq!(name().as_deref(), Some("name 999"), "{end} of {}", later.len());
        }
        std::fs::write(&path, &later).unwrap();
        assert_eq!(name().as_deref(), Some("later"));
        records.remove(&id).unwrap();
        assert_eq!(records.rewrite(&written).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_newer_release_wrote_is_told_from_what_is_not_there() {
        let temp = tempfile::tempdir().unwrap();
        let records = records(&temp);
        let mut newer = record(Owner::Lease, None);
        newer.lasting = Some(Lasting { version: 2, ..Lasting::now(temp.path()) });
        records.write(&newer).unwrap();
        let error = records.find(&newer.id).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("version")));
        assert!(records.find("local-ffffffffffff").unwrap().is_none());
        assert!(check_version(Some(&json!("x"))).is_err());
    }

    #[test]
    fn what_a_dead_process_did_not_finish_is_removed_at_once() {
        let temp = tempfile::tempdir().unwrap();
        let records = records(&temp);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let state = temp.path().join("state");
        let [gone, own] = [dead, std::process::id()].map(|pid| format!("local-0123456789ab-{pid:x}.tmp"));
        std::fs::create_dir_all(state.join(&gone)).unwrap();
        std::fs::create_dir_all(state.join(&own)).unwrap();
        std::fs::create_dir_all(&records.folder).unwrap();
        std::fs::write(records.folder.join(&gone), "").unwrap();
        std::fs::write(records.folder.join(&own), "").unwrap();
        records.remove_unfinished().unwrap();
        for folder in [&state, &records.folder] {
            assert!(!folder.join(&gone).exists() && folder.join(&own).exists());
        }
    }
}
