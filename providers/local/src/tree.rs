//! Whole folders, in and out: links stay links, special files are refused, and nothing but the two trees is touched.

use std::{
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, fchmod, openat, openat2, renameat, symlinkat, unlinkat},
    io::Errno,
};
use sandbox_core::{ByteString, FileKind, Result, SandboxError};

use crate::{
    copy::{Cancel, NewFile, Traits, copy, regular_mode},
    error::{bad_path, os},
    folder::{MAX_ENTRIES, give, make_folder, names, open_folder, random_hex, stat, too_many},
    paths::{Make, host_folder},
    sandbox::Sandbox,
    user::FileOwner,
};

/// Set-user-id, set-group-id and sticky bits.
const SPECIAL_BITS: u32 = 0o7000;

/// How the entries of a tree arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    owner: Option<FileOwner>,
    /// Permission bits that are kept.
    pub(crate) mode_mask: u32,
    /// Whether links that lead out of the tree are refused.
    refuses_leading_out: bool,
}

pub(crate) fn upload(sandbox: &Sandbox, local: &Path, remote: &ByteString, cancel: &Cancel) -> Result<()> {
    let source = host_folder(local)?;
    let owner = sandbox.user.file_owner();
    let target = make_inside(sandbox, remote, owner)?;
    let policy = Policy { owner, mode_mask: 0o7777, refuses_leading_out: false };
    let arrival = Arrival { target, policy, shown: local.display().to_string() };
    Copying { source, arrival, cancel, entries: 0 }.run()
}

pub(crate) fn download(sandbox: &Sandbox, remote: &ByteString, local: &Path, cancel: &Cancel) -> Result<()> {
    let place = sandbox.paths.place(remote)?;
    let source = place.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    std::fs::create_dir_all(local).map_err(|error| SandboxError::io(local.display(), error))?;
    let target = host_folder(local)?;
    let arrival = Arrival::from_sandbox(target, place.shown().to_owned());
    Copying { source, arrival, cancel, entries: 0 }.run()
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
    arrival: Arrival,
    cancel: &'a Cancel,
    entries: usize,
}

/// Where the entries of a tree are made.
pub(crate) struct Arrival {
    pub(crate) target: OwnedFd,
    pub(crate) policy: Policy,
    pub(crate) shown: String,
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
            let source = below(&self.source, &way).map_err(|errno| os(&shown, errno))?;
            let target = below(&self.arrival.target, &way).map_err(|errno| os(&shown, errno))?;
            for name in names(&source, &shown)? {
                self.entries += 1;
                if self.entries > MAX_ENTRIES {
                    return Err(too_many(&self.arrival.shown));
                }
                let inner = join(&way, &name);
                let found = stat(&source, &name).map_err(|errno| os(self.arrival.shown_at(&inner), errno))?;
                match found.kind {
                    FileKind::Directory => {
                        self.arrival.folder(&target, &name, &inner)?;
                        modes.push((inner.clone(), found.mode & self.arrival.policy.mode_mask));
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
        let mode = regular_mode(&file, &shown)? & self.arrival.policy.mode_mask;
        let folder = target.as_fd().try_clone_to_owned().map_err(|error| SandboxError::io(&shown, error))?;
        let new = NewFile::begin(folder, name.to_vec(), &shown)?;
        copy((&file, &shown), (new.file(), &shown), self.cancel)?;
        new.finish(Traits { mode, owner: self.arrival.policy.owner }, &shown)
    }
}

impl Arrival {
    /// What a sandbox holds, on this machine.
    pub(crate) fn from_sandbox(target: OwnedFd, shown: String) -> Self {
        let policy = Policy { owner: None, mode_mask: !SPECIAL_BITS & 0o7777, refuses_leading_out: true };
        Self { target, policy, shown }
    }

    /// Gives folders their modes, once they are filled.
    pub(crate) fn finish(&self, modes: Vec<(Vec<u8>, u32)>) -> Result<()> {
        for (way, mode) in modes.into_iter().rev() {
            let folder = below(&self.target, &way).map_err(|errno| os(self.shown_at(&way), errno))?;
            fchmod(folder, Mode::from_raw_mode(mode)).map_err(|errno| os(self.shown_at(&way), errno))?;
        }
        Ok(())
    }

    pub(crate) fn shown_at(&self, way: &[u8]) -> String {
        format!("{}/{}", self.shown.trim_end_matches('/'), String::from_utf8_lossy(way))
    }

    pub(crate) fn folder(&self, target: &OwnedFd, name: &[u8], way: &[u8]) -> Result<()> {
        make_folder(target, name, self.policy.owner).map_err(|errno| os(self.shown_at(way), errno))?;
        let folder = open_folder(target, name).map_err(|errno| match errno {
            Errno::NOTDIR | Errno::LOOP => bad_path(self.shown_at(way), "is a folder, and the target is not"),
            errno => os(self.shown_at(way), errno),
        })?;
        fchmod(folder, Mode::from_raw_mode(0o700)).or_else(|errno| match errno {
            // A folder of somebody else was there before.
            Errno::PERM => Ok(()),
            errno => Err(os(self.shown_at(way), errno)),
        })
    }

    pub(crate) fn link(&self, target: &OwnedFd, name: &[u8], way: &[u8], text: &[u8]) -> Result<()> {
        let shown = self.shown_at(way);
        if self.policy.refuses_leading_out && leads_out(way, text) {
            return Err(bad_path(shown, "is a link that leads out of the folder"));
        }
        if stat(target, name).is_ok_and(|there| there.kind == FileKind::Directory) {
            return Err(bad_path(shown, "is a link, and the target is a folder"));
        }
        let temporary = format!(".sandbox-{}.part", random_hex(6)?);
        let made = symlinkat(text, target, temporary.as_str())
            .and_then(|()| give(target, temporary.as_bytes(), self.policy.owner))
            .and_then(|()| renameat(target, temporary.as_str(), target, name));
        made.map_err(|errno| {
            // The failure itself is what is told.
            let _ = unlinkat(target, temporary.as_str(), AtFlags::empty());
            os(shown, errno)
        })
    }
}

/// Opens a folder below another one without following any link.
pub(crate) fn below(top: impl AsFd, way: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(top, way, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

pub(crate) fn join(way: &[u8], name: &[u8]) -> Vec<u8> {
    match way {
        b"." => name.to_vec(),
        way => [way, b"/", name].concat(),
    }
}

/// Whether a link at `way` leads out of the tree, by its text alone. Every link of the tree is checked, so none of them
/// can help another one out: a link to a folder inside, and from there up, counts the ups of its own text only, so ups
/// are allowed at the front and nowhere else.
fn leads_out(way: &[u8], text: &[u8]) -> bool {
    let path = |bytes| Path::new(std::ffi::OsStr::from_bytes(bytes));
    let depth = path(way).components().count().saturating_sub(1);
    let mut ups = 0;
    let mut has_name = false;
    for component in path(text).components() {
        match component {
            Component::ParentDir if has_name => return true,
            Component::ParentDir => ups += 1,
            Component::Normal(_) => has_name = true,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    ups > depth
}

#[cfg(test)]
mod tests {
    use super::leads_out;

    #[test]
    fn links_lead_out_by_absolute_texts_and_by_more_ups_than_they_are_deep() {
        for (way, text, expected) in [
            ("a", "b", false),
            ("a", "./b/c", false),
            ("a", "..", true),
            ("a", "/etc/passwd", true),
            ("s/a", "../b", false),
            ("s/a", "..", false),
            ("s/a", "../..", true),
            ("s/t/a", "../../b", false),
            ("s/t/a", "../../../b", true),
            ("a", "link/../../x", true),
            ("s/a", "t/../b", true),
        ] {
            assert_eq!(leads_out(way.as_bytes(), text.as_bytes()), expected, "{way} -> {text}");
        }
    }
}
