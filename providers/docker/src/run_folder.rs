//! The folder of this machine that a sandbox shares with its agent: its socket, and for a moment what it is told.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::Write,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use sandbox_core::{ErrorKind, Result, SandboxError};

use crate::{
    error::NAME,
    plan::{CONFIG, SOCKET, TOKEN},
};

/// Does work on a thread where it may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(SandboxError::internal("file work panicked")))
}

/// Makes the folder of a sandbox, with what its agent is told.
pub(crate) async fn make(parent: PathBuf, id: String, config: Vec<u8>, token: String) -> Result<PathBuf> {
    blocking(move || {
        fill(&parent, &id, |folder| {
            write(folder, CONFIG, &config)?;
            write(folder, TOKEN, token.as_bytes())
        })
    })
    .await
}

/// The same for an agent that is told later: it waits at a pipe.
pub(crate) async fn make_waiting(parent: PathBuf, id: String, token: String) -> Result<PathBuf> {
    blocking(move || {
        fill(&parent, &id, |folder| {
            let (path, mode) = (folder.join(CONFIG), Mode::RUSR | Mode::WUSR);
            mknodat(CWD, &path, FileType::Fifo, mode, 0).map_err(|errno| failed(&path, errno.into()))?;
            write(folder, TOKEN, token.as_bytes())
        })
    })
    .await
}

fn fill(parent: &Path, id: &str, contents: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    prepare(parent)?;
    let folder = parent.join(id);
    DirBuilder::new().mode(0o700).create(&folder).map_err(|error| failed(&folder, error))?;
    if let Err(error) = contents(&folder) {
        // The failure itself is what is told.
        let _ = fs::remove_dir_all(&folder);
        return Err(error);
    }
    Ok(folder)
}

fn write(folder: &Path, name: &str, contents: &[u8]) -> Result<()> {
    let path = folder.join(name);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(contents)).map_err(|error| failed(&path, error))
}

/// The folder for all of them: ours, and nobody else can write to it.
fn prepare(parent: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
    made.map_err(|error| failed(parent, error))?;
    let found = fs::symlink_metadata(parent).map_err(|error| failed(parent, error))?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_dir() || found.uid() != own || found.mode() & 0o022 != 0 {
        let message = format!("{} must be a folder of this user that nobody else can write to", parent.display());
        return Err(SandboxError::new(ErrorKind::PermissionDenied, message).with_provider(NAME).with_field("run_dir"));
    }
    Ok(())
}

fn failed(path: &Path, error: std::io::Error) -> SandboxError {
    SandboxError::io(path.display(), error).with_provider(NAME).with_field("run_dir")
}

/// Removes the folder of a sandbox. What was put in there from inside is removed too, but nothing that a link of it
/// points to.
pub(crate) async fn remove(folder: PathBuf, id: String) -> Result<()> {
    blocking(move || {
        // Its name comes from the engine: only a folder of that sandbox is removed.
        if folder.file_name() != Some(id.as_ref()) || folder.join(SOCKET).as_os_str().len() > 107 {
            return Ok(());
        }
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(&folder, error)),
            _ => Ok(()),
        }
    })
    .await
}

/// Folders of sandboxes that nothing has changed in for so long.
pub(crate) async fn older_than(parent: PathBuf, age: std::time::Duration) -> Result<Vec<PathBuf>> {
    blocking(move || {
        let entries = match fs::read_dir(&parent) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| failed(&parent, error))?,
        };
        let is_old = |entry: &fs::DirEntry| {
            let changed = entry.metadata().and_then(|found| found.modified());
            changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|since| since >= age))
        };
        let is_ours = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("docker-");
        Ok(entries.flatten().filter(|entry| is_ours(entry) && is_old(entry)).map(|entry| entry.path()).collect())
    })
    .await
}
