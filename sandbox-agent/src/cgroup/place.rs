//! Where this process is in the host's cgroup hierarchies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{CgroupError, Version};
use crate::kernel_file;

const MOUNTS: &str = "/proc/self/mountinfo";

/// What a launcher found, for the processes that it forks: reading it anew for each sandbox would take longer than making
/// its cgroup.
static REMEMBERED: OnceLock<Places> = OnceLock::new();

/// This process's own folder in each hierarchy that is mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// v1: controller → folder.
    pub(super) v1: BTreeMap<String, PathBuf>,
    /// v2: folder, and where the hierarchy is mounted.
    pub(super) v2: Option<(PathBuf, PathBuf)>,
}

impl Places {
    /// As they are, or as a launcher remembers them.
    pub(super) fn of_this_process() -> Result<Places, CgroupError> {
        REMEMBERED.get().map_or_else(Places::now, |places| Ok(places.clone()))
    }

    pub(super) fn now() -> Result<Places, CgroupError> {
        Ok(Places::parse(&read(MOUNTS)?, &read("/proc/self/cgroup")?))
    }

    /// Lets this process, and what it forks, go on from where it is now.
    pub(crate) fn remember() {
        // What cannot be read is read again, and told, when it is needed.
        if let Ok(places) = Places::now() {
            let _ = REMEMBERED.set(places);
        }
    }

    /// Where the hierarchies are mounted.
    pub(super) fn mounts() -> Result<Vec<PathBuf>, CgroupError> {
        Ok(Places::parse_mounts(&read(MOUNTS)?))
    }

    fn parse_mounts(mountinfo: &str) -> Vec<PathBuf> {
        let mounts = mountinfo.lines().filter_map(|line| {
            let (mount, rest) = line.split_once(" - ")?;
            let is_hierarchy = ["cgroup", "cgroup2"].contains(&rest.split(' ').next()?);
            is_hierarchy.then(|| mount.split(' ').nth(4).map(PathBuf::from)).flatten()
        });
        mounts.collect()
    }

    /// v1 wherever a controller that limits is bound to it: in the mixed layout v2 is mounted but empty.
    pub(super) fn version(&self) -> Option<Version> {
        if ["memory", "pids", "cpu"].iter().any(|controller| self.v1.contains_key(*controller)) {
            return Some(Version::V1);
        }
        if self.v2.is_some() { Some(Version::V2) } else { (!self.v1.is_empty()).then_some(Version::V1) }
    }

    fn parse(mountinfo: &str, own: &str) -> Places {
        let mut places = Places::default();
        for line in mountinfo.lines() {
            let Some((mount, rest)) = line.split_once(" - ") else { continue };
            if !rest.starts_with("cgroup") {
                continue;
            }
            let mount: Vec<_> = mount.split(' ').collect();
            let rest: Vec<_> = rest.split(' ').collect();
            let ([_, _, _, root, point, ..], [kind, _, options]) = (mount.as_slice(), rest.as_slice()) else {
                continue;
            };
            let folder = |path: &str| -> Option<PathBuf> {
                let below = Path::new(path).strip_prefix(root).ok()?;
                Some(Path::new(point).join(below))
            };
            for entry in own.lines() {
                let mut parts = entry.splitn(3, ':').skip(1);
                let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
                if *kind == "cgroup2" && controllers.is_empty() {
                    places.v2 = folder(path).map(|folder| (folder, PathBuf::from(point))).or(places.v2);
                } else if *kind == "cgroup" && !controllers.is_empty() {
                    let of_mount = |name: &&str| options.split(',').any(|option| option == *name);
                    for controller in controllers.split(',').filter(of_mount) {
                        if let Some(folder) = folder(path) {
                            places.v1.insert(controller.to_owned(), folder);
                        }
                    }
                }
            }
        }
        places
    }
}

fn read(path: &str) -> Result<String, CgroupError> {
    kernel_file::read(path).map_err(|error| CgroupError::system(Path::new(path), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixed_layout_is_v1_and_paths_are_below_the_mounts_root() {
        let mountinfo = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
             32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
             35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let own = "4:memory:/docker/abc/x\n3:cpu,cpuacct:/a\n1:name=systemd:/\n0::/b\n";
        let places = Places::parse(mountinfo, own);
        assert_eq!(places.version(), Some(Version::V1));
        assert_eq!(places.v1["memory"], Path::new("/sys/fs/cgroup/memory/x"));
        assert_eq!(places.v1["cpu"], Path::new("/sys/fs/cgroup/cpu,cpuacct/a"));
        assert_eq!(places.v1["cpuacct"], Path::new("/sys/fs/cgroup/cpu,cpuacct/a"));
        assert!(!places.v1.contains_key("pids"));
        let unified = (PathBuf::from("/sys/fs/cgroup/unified/b"), PathBuf::from("/sys/fs/cgroup/unified"));
        assert_eq!(places.v2, Some(unified));
        let points = Places::parse_mounts(mountinfo);
        let below = ["cpu,cpuacct", "memory", "unified"].map(|name| Path::new("/sys/fs/cgroup").join(name));
        assert_eq!(points, below);
    }

    #[test]
    fn the_unified_layout_is_v2_and_none_is_none() {
        let mountinfo = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let places = Places::parse(mountinfo, "0::/user.slice/user-1000.slice\n");
        assert_eq!(places.version(), Some(Version::V2));
        assert_eq!(places.v2.unwrap().0, Path::new("/sys/fs/cgroup/user.slice/user-1000.slice"));
        assert_eq!(Places::parse("", "0::/\n").version(), None);
    }
}
