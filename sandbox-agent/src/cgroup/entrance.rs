//! How a process gets into the cgroup of its sandbox.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::CgroupError;
use crate::sys::{self, Forked};

/// A cgroup's folder or files, opened by one who may write them, for a process that is forked then.
///
/// To move another process, or a whole one, the kernel first stops every fork, exec and exit of the machine, which takes
/// it some 10 ms. A process that is forked into its cgroup (v2), or a thread that moves itself (v1), stops nobody.
#[derive(Debug, Default)]
pub(crate) struct Entrance {
    /// To be forked into.
    pub(super) folder: Option<OwnedFd>,
    /// To be written by the thread that moves itself: each with its path.
    pub(super) files: Vec<(PathBuf, File)>,
}

impl Entrance {
    pub(super) fn add(&mut self, folder: &Path, file: &str) -> Result<(), CgroupError> {
        let path = folder.join(file);
        let opened = OpenOptions::new().write(true).open(&path).map_err(|error| CgroupError::system(&path, &error))?;
        self.files.push((path, opened));
        Ok(())
    }

    /// Forks a process into new namespaces (`CLONE_NEW*` flags), and into the cgroup where that is done in one. In the new
    /// process this is what is still to be entered. The process must have one thread.
    pub(crate) fn fork(self, namespaces: libc::c_int) -> Result<(Forked, Entrance), Errno> {
        if let Some(folder) = &self.folder {
            match sys::fork_into(namespaces, Some(folder.as_fd())) {
                // Kernels before 5.7, and filters that know no way to look at what this call is given.
                Err(Errno::NOSYS | Errno::INVAL | Errno::TOOBIG | Errno::PERM) => {}
                forked => return Ok((forked?, Entrance::default())),
            }
        }
        Ok((sys::fork_into(namespaces, None)?, self))
    }

    /// Moves this thread, the only one of its process, into the cgroup.
    pub(crate) fn enter(self) -> Result<(), CgroupError> {
        for (path, mut file) in self.files {
            file.write_all(b"0").map_err(|error| CgroupError::system(&path, &error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitOptions, waitpid};

    use super::super::{Cgroup, Claim, Limits, Places, v2};
    use crate::sys::Forked;

    /// Whether a process that goes in finds itself there. Nextest runs each test in a process of its own.
    fn finds_itself(cgroup: &Cgroup, by_itself: bool) -> bool {
        let mut entrance = cgroup.entrance().unwrap();
        if by_itself {
            entrance.folder = None;
        }
        let (forked, rest) = entrance.fork(0).unwrap();
        let Forked::Parent(pid) = forked else {
            let is_one_step = rest.files.is_empty() != by_itself;
            let entered = is_one_step && rest.enter().is_ok();
            let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            let mut folders = cgroup.folders().filter_map(|folder| folder.file_name()?.to_str());
            let is_there = own.matches(folders.next().unwrap_or("none")).count() > folders.count();
            // No destructor of the other half runs here.
            std::process::exit(if entered && is_there { 0 } else { 1 })
        };
        let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
        status.exit_status() == Some(0)
    }

    fn name() -> String {
        format!("sandbox-test-entrance-{}", std::process::id())
    }

    #[test]
    fn a_process_enters_every_folder_of_v1_by_itself() {
        let cgroup = Cgroup::create(&name(), &Limits::default()).unwrap();
        let found = finds_itself(&cgroup, true);
        cgroup.remove().unwrap();
        assert!(found);
    }

    #[test]
    fn a_process_is_forked_into_v2_or_enters_it_by_itself() {
        let places = Places::of_this_process().unwrap();
        let mut claim = Claim::default();
        let cgroup = v2::create(&places, &name(), &Limits::default(), &mut claim).unwrap();
        let found = [false, true].map(|by_itself| finds_itself(&cgroup, by_itself));
        cgroup.remove().unwrap();
        assert_eq!(found, [true, true]);
    }
}
