//! Whole folders, in and out: links stay links, special files are refused, and nothing but the two trees is touched.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::fs::{Mode, OFlags, openat};
use sandbox_agent_client::{Arrival, NewFile, folder_below, join_way, regular_mode};
use sandbox_core::{ByteString, FileKind, Result, SandboxError};

use crate::{
    copy::{Cancel, copy},
    error::{bad_path, os},
    folder::{FileOwner, MAX_ENTRIES, entry_stat, folder_names, host_folder, make_folder, too_many_entries},
    paths::Make,
    sandbox::Sandbox,
};

pub(crate) fn upload(sandbox: &Sandbox, local: &Path, remote: &ByteString, cancel: &Cancel) -> Result<()> {
    let source = host_folder(local)?;
    let owner = sandbox.user.file_owner();
    let target = make_inside(sandbox, remote, owner)?;
    let shown = local.display().to_string();
    let arrival = Arrival::from_caller(target, shown.clone(), owner);
    Copying { source, shown, arrival, cancel, entries: 0 }.run()
}

pub(crate) fn download(sandbox: &Sandbox, remote: &ByteString, local: &Path, cancel: &Cancel) -> Result<()> {
    let place = sandbox.paths.place(remote)?;
    let source = place.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    std::fs::create_dir_all(local).map_err(|error| SandboxError::io(local.display(), error))?;
    let target = host_folder(local)?;
    let shown = place.shown().to_owned();
    let arrival = Arrival::from_sandbox(target, shown.clone(), 0);
    Copying { source, shown, arrival, cancel, entries: 0 }.run()
}

/// Makes a folder of the sandbox and its parents, and opens it.
pub(crate) fn make_inside(sandbox: &Sandbox, path: &ByteString, owner: Option<FileOwner>) -> Result<OwnedFd> {
    let place = sandbox.paths.place(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match place.open(flags) {
        Err(error) if error.kind() == sandbox_core::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let entry = place.entry(Some(Make { owner }))?;
    make_folder(&entry.folder, &entry.name, owner).map_err(|errno| os(place.shown(), errno))?;
    place.open(flags).map_err(|error| match error.kind() {
        // Something else has the name.
        sandbox_core::ErrorKind::NotFound => {
            SandboxError::already_exists(format!("{} is there and is not a folder", place.shown()))
        }
        _ => error,
    })
}

/// One tree being copied. Only a few folders are open at any time, however deep it is.
struct Copying<'a> {
    source: OwnedFd,
    shown: String,
    arrival: Arrival,
    cancel: &'a Cancel,
    entries: usize,
}

impl Copying<'_> {
    fn run(mut self) -> Result<()> {
        // Folders that are still to be read, by their way from the top.
        let mut waiting = vec![b".".to_vec()];
        // Modes are set at the end: a folder that may not be written to still gets its contents.
        let mut modes = Vec::new();
        while let Some(way) = waiting.pop() {
            self.cancel.check()?;
            let shown = self.arrival.shown_at(&way);
            let source = folder_below(&self.source, &way, &shown)?;
            let target = self.arrival.below(&way)?;
            for name in folder_names(&source, &shown)? {
                self.entries += 1;
                if self.entries > MAX_ENTRIES {
                    return Err(too_many_entries(&self.shown));
                }
                let inner = join_way(&way, &name);
                let found = entry_stat(&source, &name).map_err(|errno| os(self.arrival.shown_at(&inner), errno))?;
                match found.kind {
                    FileKind::Directory => {
                        self.arrival.folder(&target, &name, &inner)?;
                        modes.push((inner.clone(), self.arrival.traits(found.mode).mode));
                        waiting.push(inner);
                    }
                    FileKind::File => self.file(&source, &target, &name, &inner)?,
                    FileKind::Symlink => {
                        let text = found.link_target.unwrap_or_default();
                        self.arrival.link(&target, &name, &inner, text.as_bytes())?;
                    }
                    _ => return Err(bad_path(self.arrival.shown_at(&inner), "is a device, socket or pipe")),
                }
            }
        }
        self.arrival.finish(modes)
    }

    fn file(&self, source: &OwnedFd, target: &OwnedFd, name: &[u8], way: &[u8]) -> Result<()> {
        let shown = self.arrival.shown_at(way);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file: File = openat(source, name, flags, Mode::empty()).map_err(|errno| os(&shown, errno))?.into();
        let mode = regular_mode(&file, &shown)?;
        let folder = target.as_fd().try_clone_to_owned().map_err(|error| SandboxError::io(&shown, error))?;
        let new = NewFile::begin(folder, name.to_vec(), &shown)?;
        copy((&file, &shown), (new.file(), &shown), self.cancel)?;
        new.finish(self.arrival.traits(mode), &shown)
    }
}
