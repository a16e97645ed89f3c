//! Who may have written a file: the trust anchor of a plugin.

use std::{
    ffi::OsString,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use sandbox_core::{Result, SandboxError};

use super::group;
use crate::mismatch::Mismatch;

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;

/// Walks to a file as the kernel does, link by link, and checks everything on the way: each folder gone through, each
/// link's owner, and the file. Only then does nobody else choose which file is meant.
///
/// Gives the path without links, and how many folders were checked.
pub(crate) fn walk(path: &Path, euid: u32) -> Result<(PathBuf, usize)> {
    if !path.is_absolute() {
        return Err(SandboxError::invalid_input("plugin path", format!("{} is not absolute", path.display()))
            .with_help("give the whole path, from / on"));
    }
    let mut resolved = PathBuf::from("/");
    let mut pending = reversed_names(path);
    let mut links = 0;
    let mut folders = 1;
    check(&resolved, &metadata(&resolved, path)?, euid).map_err(|mismatch| mismatch.at(path))?;
    while let Some(name) = pending.pop() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        let next = resolved.join(&name);
        let found = metadata(&next, path)?;
        if found.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(Mismatch::new("path", "a path to a file", "a loop of symbolic links").at(path));
            }
            check_owner(&next, &found, euid).map_err(|mismatch| mismatch.at(path))?;
            let target = fs::read_link(&next).map_err(|error| io_error(path, &error))?;
            if target.is_absolute() {
                resolved = PathBuf::from("/");
            }
            pending.extend(reversed_names(&target));
            continue;
        }
        check(&next, &found, euid).map_err(|mismatch| mismatch.at(path))?;
        folders += usize::from(found.is_dir());
        resolved = next;
    }
    Ok((resolved, folders))
}

/// Checks the owner and the mode of one file or folder.
pub(crate) fn check(path: &Path, found: &Metadata, euid: u32) -> Result<(), Mismatch> {
    check_owner(path, found, euid)?;
    let mode = found.mode() & 0o7777;
    // In a sticky folder others may add files, but not replace or rename what is not theirs.
    if found.is_dir() && mode & 0o1000 != 0 {
        return Ok(());
    }
    let writable = |by: &str, fix: &str| {
        Err(Mismatch::new(
            "permissions",
            format!("{} to be writable by its owner alone", path.display()),
            format!("mode {mode:04o}, writable by {by}"),
        )
        .with_help(format!("chmod {fix} {}", path.display())))
    };
    if mode & 0o002 != 0 {
        return writable("everybody", "go-w");
    }
    if mode & 0o020 != 0 && !group::is_private(euid, found.gid()) {
        return writable(&format!("the group {}", found.gid()), "g-w");
    }
    Ok(())
}

fn check_owner(path: &Path, found: &Metadata, euid: u32) -> Result<(), Mismatch> {
    if found.uid() == 0 || found.uid() == euid {
        return Ok(());
    }
    let expected = match euid {
        0 => format!("{} to belong to root", path.display()),
        euid => format!("{} to belong to root or to user {euid}", path.display()),
    };
    Err(Mismatch::new("permissions", expected, format!("that it belongs to user {}", found.uid()))
        .with_help("install the plugin as the user who runs it, or as root"))
}

fn reversed_names(path: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect();
    names.reverse();
    names
}

fn metadata(path: &Path, asked: &Path) -> Result<Metadata> {
    fs::symlink_metadata(path).map_err(|error| io_error(asked, &error))
}

/// An operating-system error about a plugin file: `NotFound`, or `Plugin` for everything else.
pub(crate) fn io_error(path: &Path, error: &io::Error) -> SandboxError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            SandboxError::not_found(format!("{}: expected a plugin file, found nothing there", path.display()))
                .with_help("check the path, or install the plugin again")
        }
        _ => Mismatch::new("file", "a readable plugin file", error.to_string()).at(path),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, chown, symlink},
        path::{Path, PathBuf},
    };

    use sandbox_core::ErrorKind;

    use super::walk;

    fn user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn file_in(folder: &Path) -> PathBuf {
        let file = folder.join("lib.so");
        fs::write(&file, "x").unwrap();
        file
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_of_ones_own_below_a_sticky_folder_is_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let file = file_in(folder.path());
        let (resolved, folders) = walk(&file, user()).unwrap();
        assert_eq!(resolved, fs::canonicalize(&file).unwrap());
        assert!(folders >= 2);
        set_mode(folder.path(), 0o1777);
        walk(&file, user()).unwrap();
    }

    #[test]
    fn a_file_or_folder_that_everybody_may_write_is_refused_even_when_sticky_or_a_link_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = file_in(folder.path());
        for mode in [0o777, 0o666, 0o1777, 0o602] {
            set_mode(&file, mode);
            let error = walk(&file, user()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Plugin);
            assert!(error.to_string().contains("writable by everybody"), "{error}");
        }
        set_mode(&file, 0o755);
        set_mode(folder.path(), 0o777);
        assert!(walk(&file, user()).is_err());

        let safe = tempfile::tempdir().unwrap();
        let link = safe.path().join("link.so");
        symlink(&file, &link).unwrap();
        let error = walk(&link, user()).unwrap_err();
        assert!(error.help().is_some_and(|help| help.starts_with("chmod go-w ")), "{error}");
    }

    #[test]
    fn a_folder_that_holds_only_the_link_is_checked_too() {
        let (safe, open) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = file_in(safe.path());
        let middle = open.path().join("middle.so");
        symlink(&file, &middle).unwrap();
        let first = safe.path().join("first.so");
        symlink(&middle, &first).unwrap();
        walk(&first, user()).unwrap();
        set_mode(open.path(), 0o777);
        assert!(walk(&first, user()).is_err(), "whoever may write there chooses the file");
    }

    #[test]
    fn what_belongs_to_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = file_in(folder.path());
        // Root gives the file away; anybody else looks at it as another user would.
        let asks_as = if user() == 0 {
            chown(&file, Some(65_534), None).unwrap();
            0
        } else {
            user() + 1
        };
        let error = walk(&file, asks_as).unwrap_err();
        assert!(error.to_string().contains("belong"), "{error}");
    }

    #[test]
    fn a_group_that_is_shared_may_not_write() {
        let folder = tempfile::tempdir().unwrap();
        let file = file_in(folder.path());
        set_mode(&file, 0o664);
        // As a user that nobody knows, for whom no group is private.
        if user() == 0 {
            assert!(walk(&file, 0x7fff_fff0).unwrap_err().to_string().contains("writable by the group"));
        } else {
            assert_eq!(
                walk(&file, user()).is_ok(),
                super::group::is_private(user(), rustix::process::getegid().as_raw())
            );
        }
    }

    #[test]
    fn loops_relative_paths_and_missing_files_are_typed() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one.so"), folder.path().join("two.so"));
        symlink(&one, &two).unwrap();
        symlink(&two, &one).unwrap();
        assert!(walk(&one, user()).unwrap_err().to_string().contains("loop"));
        assert_eq!(walk(Path::new("x/lib.so"), user()).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(walk(&folder.path().join("no.so"), user()).unwrap_err().kind(), ErrorKind::NotFound);
        let below_a_file = file_in(folder.path()).join("x.so");
        assert_eq!(walk(&below_a_file, user()).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
