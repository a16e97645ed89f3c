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
    folder::{make_folder, open_folder, random_hex, stat},
};

/// Set-user-id, set-group-id and sticky bits: nothing that comes out of a sandbox keeps them.
pub(crate) const SPECIAL_BITS: u32 = 0o7000;

/// Where the entries of a tree are made.
pub(crate) struct Arrival {
    pub(crate) target: OwnedFd,
    /// Permission bits that are kept.
    pub(crate) mode_mask: u32,
    /// How many first names of each entry's path do not count.
    pub(crate) strip: usize,
    pub(crate) shown: String,
}

impl Arrival {
    /// What a sandbox holds, on this machine.
    pub(crate) fn from_sandbox(target: OwnedFd, shown: String, strip: usize) -> Self {
        Self { target, mode_mask: !SPECIAL_BITS & 0o7777, strip, shown }
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
        make_folder(target, name).map_err(|errno| os(self.shown_at(way), errno))?;
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
        if leads_out(way, text) {
            return Err(bad_path(shown, "is a link that leads out of the folder"));
        }
        if stat(target, name).is_ok_and(|there| there.kind == FileKind::Directory) {
            return Err(bad_path(shown, "is a link, and the target is a folder"));
        }
        let temporary = format!(".sandbox-{}.part", random_hex(6)?);
        let made = symlinkat(text, target, temporary.as_str())
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
