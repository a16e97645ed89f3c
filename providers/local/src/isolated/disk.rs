//! How much of this machine's disk a sandbox takes.

use std::{
    collections::HashSet,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::fs::{AtFlags, CWD, statat};
use sandbox_core::FileKind;

use crate::folder::{entry_kind, folder_names, open_folder};

/// Whoever asks is not to wait for a tree of millions.
const ENTRIES_MAX: usize = 100_000;
/// A folder stays open for each step down.
const DEPTH_MAX: usize = 64;
/// What the kernel counts the room of a file in.
const BLOCK_BYTES: u64 = 512;

/// The bytes of the blocks below these folders, each file once. None for a tree that is too large to be counted by the
/// way, and where no folder is there.
pub(crate) fn used_bytes(folders: &[impl AsRef<Path>]) -> Option<u64> {
    let mut count = Count { bytes: 0, entries: 0, linked: HashSet::new() };
    let open = |folder: &Path| open_folder(CWD, folder.as_os_str().as_bytes()).ok();
    let opened: Vec<_> = folders.iter().filter_map(|folder| open(folder.as_ref())).collect();
    opened.iter().try_for_each(|folder| count.below(folder, DEPTH_MAX))?;
    (!opened.is_empty()).then_some(count.bytes)
}

struct Count {
    bytes: u64,
    entries: usize,
    /// Files with more names than one.
    linked: HashSet<(u64, u64)>,
}

impl Count {
    fn below(&mut self, folder: &OwnedFd, depth_left: usize) -> Option<()> {
        let depth_left = depth_left.checked_sub(1)?;
        // What goes meanwhile, or cannot be read, counts nothing.
        for name in folder_names(folder, "").unwrap_or_default() {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return None;
            }
            let Ok(stat) = statat(folder.as_fd(), name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if stat.st_nlink < 2
                || entry_kind(&stat) == FileKind::Directory
                || self.linked.insert((stat.st_dev, stat.st_ino))
            {
                self.bytes += u64::try_from(stat.st_blocks).unwrap_or_default() * BLOCK_BYTES;
            }
            if entry_kind(&stat) == FileKind::Directory
                && let Ok(below) = open_folder(folder, &name)
            {
                self.below(&below, depth_left)?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::used_bytes;

    #[test]
    fn each_file_counts_once_and_what_links_lead_to_does_not() {
        let temp = tempfile::tempdir().unwrap();
        let (tree, outside) = (temp.path().join("tree"), temp.path().join("outside"));
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        let empty = used_bytes(&[&tree]).unwrap();
        std::fs::write(&outside, vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("link")).unwrap();
        std::fs::write(tree.join("a/b/file"), vec![1; 1 << 20]).unwrap();
        std::fs::hard_link(tree.join("a/b/file"), tree.join("a/again")).unwrap();
        let used = used_bytes(&[&tree]).unwrap() - empty;
        assert!((1 << 20..(1 << 20) + 65_536).contains(&used), "{used}");
        let deep = (0..70).fold(tree, |folder, _| folder.join("d"));
        std::fs::create_dir_all(deep).unwrap();
        assert_eq!(used_bytes(&[temp.path().join("tree")]), None);
        assert_eq!(used_bytes(&[temp.path().join("none")]), None);
    }
}
