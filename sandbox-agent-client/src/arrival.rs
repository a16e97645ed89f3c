//! Making what comes out of a sandbox on this machine: links that lead out are refused, and nothing but the target is
//! touched.

use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, fchmod, openat2, renameat, symlinkat, unlinkat},
    io::Errno,
};
use sandbox_core::{FileKind, Result};

use crate::{
    error::{bad_path, os},
    folder::{FileOwner, entry_stat, give_entry, make_folder, open_folder, random_hex},
    new_file::FileTraits,
};

/// Set-user-id, set-group-id and sticky bits: nothing that comes out of a sandbox keeps them.
pub(crate) const SPECIAL_BITS: u32 = 0o7000;

/// Where the entries of a tree are made.
#[derive(Debug)]
pub struct Arrival {
    pub(crate) target: OwnedFd,
    owner: Option<FileOwner>,
    mode_mask: u32,
    /// How many first names of each entry's path do not count.
    pub(crate) strip: usize,
    refuses_leading_out: bool,
    pub(crate) shown: String,
}

impl Arrival {
    /// What a sandbox holds, on this machine: links that lead out are refused, special bits dropped.
    pub fn from_sandbox(target: OwnedFd, shown: String, strip: usize) -> Self {
        Self { target, owner: None, mode_mask: !SPECIAL_BITS & 0o7777, strip, refuses_leading_out: true, shown }
    }

    /// What the caller of this machine gives, as it is.
    pub fn from_caller(target: OwnedFd, shown: String, owner: Option<FileOwner>) -> Self {
        Self { target, owner, mode_mask: 0o7777, strip: 0, refuses_leading_out: false, shown }
    }

    /// The mode and owner that an entry gets.
    pub fn traits(&self, mode: u32) -> FileTraits {
        FileTraits { mode: mode & self.mode_mask, owner: self.owner }
    }

    /// Opens a folder of the target, without following any link.
    ///
    /// # Errors
    /// What the system refuses with, a link on the way among it.
    pub fn below(&self, way: &[u8]) -> Result<OwnedFd> {
        folder_below(&self.target, way, &self.shown_at(way))
    }

    /// Gives folders their modes, once they are filled.
    ///
    /// # Errors
    /// What the system refuses with.
    pub fn finish(&self, modes: Vec<(Vec<u8>, u32)>) -> Result<()> {
        for (way, mode) in modes.into_iter().rev() {
            fchmod(self.below(&way)?, Mode::from_raw_mode(mode)).map_err(|errno| os(self.shown_at(&way), errno))?;
        }
        Ok(())
    }

    /// What an entry is called in errors.
    pub fn shown_at(&self, way: &[u8]) -> String {
        format!("{}/{}", self.shown.trim_end_matches('/'), String::from_utf8_lossy(way))
    }

    /// Makes a folder that can be filled; [`finish`](Self::finish) gives it its mode.
    ///
    /// # Errors
    /// `InvalidInput` when something else is there, and what the system refuses with.
    pub fn folder(&self, target: &OwnedFd, name: &[u8], way: &[u8]) -> Result<()> {
        make_folder(target, name, self.owner).map_err(|errno| os(self.shown_at(way), errno))?;
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

    /// Makes a link.
    ///
    /// # Errors
    /// `InvalidInput` for one that leads out, where that counts, or when a folder is there; what the system refuses with.
    pub fn link(&self, target: &OwnedFd, name: &[u8], way: &[u8], text: &[u8]) -> Result<()> {
        let shown = self.shown_at(way);
        if self.refuses_leading_out && leads_out(way, text) {
            return Err(bad_path(shown, "is a link that leads out of the folder"));
        }
        if entry_stat(target, name).is_ok_and(|there| there.kind == FileKind::Directory) {
            return Err(bad_path(shown, "is a link, and the target is a folder"));
        }
        let temporary = format!(".sandbox-{}.part", random_hex(6)?);
        let made = symlinkat(text, target, temporary.as_str())
            .and_then(|()| give_entry(target, temporary.as_bytes(), self.owner))
            .and_then(|()| renameat(target, temporary.as_str(), target, name));
        made.map_err(|errno| {
            // The failure itself is what is told.
            let _ = unlinkat(target, temporary.as_str(), AtFlags::empty());
            os(shown, errno)
        })
    }
}

/// Opens a folder below another one without following any link.
///
/// # Errors
/// What the system refuses with, a link on the way among it.
pub fn folder_below(top: impl AsFd, way: &[u8], shown: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat2(top, way, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
    opened.map_err(|errno| os(shown, errno))
}

/// The way to an entry of a folder of a tree, whose top is `.`.
pub fn join_way(way: &[u8], name: &[u8]) -> Vec<u8> {
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
