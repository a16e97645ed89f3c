//! Whether a command was killed for memory: told by the counter of this process's cgroup, before and after.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use sandbox_core::ExecOutcome;

use crate::kernel_file;

/// Where cgroups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// SIGKILL, and how shells tell of it.
const KILLED: i32 = 9;
const KILLED_BELOW: i32 = 128 + KILLED;

/// The memory limit that everything inside shares.
pub(super) struct MemoryWatch {
    /// None where nothing counts.
    counter: Option<PathBuf>,
    /// How many of the kills are told of already: two commands that end at the same time do not share one.
    told: AtomicU64,
}

impl MemoryWatch {
    pub(super) fn of_this_process() -> Self {
        let mount = Path::new(MOUNT);
        // An isolated sandbox does not see it; whoever made that one counts.
        let lines = mount.is_dir().then(|| kernel_file::read("/proc/self/cgroup").unwrap_or_default());
        let counter = lines.and_then(|lines| counter(&lines, mount)).filter(|file| read(file).is_some());
        Self { counter, told: AtomicU64::new(0) }
    }

    /// How many processes were killed so far.
    pub(super) fn kills(&self) -> Option<u64> {
        read(self.counter.as_deref()?)
    }

    /// Whether it was the limit that ended a command, before which there were so many kills. None where nobody knows.
    /// The kernel counts before it kills: what has ended is counted.
    pub(super) fn verdict(&self, before: Option<u64>, outcome: &ExecOutcome) -> Option<bool> {
        let before = before?;
        if !matches!(outcome, ExecOutcome::Signalled(KILLED) | ExecOutcome::Exited(KILLED_BELOW)) {
            return Some(false);
        }
        let now = self.kills()?;
        let tell = |told: u64| {
            let known = told.max(before);
            (now > known).then(|| known + 1)
        };
        Some(self.told.fetch_update(Ordering::AcqRel, Ordering::Acquire, tell).is_ok())
    }
}

fn read(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The file that counts, by the lines of `/proc/self/cgroup`.
fn counter(lines: &str, mount: &Path) -> Option<PathBuf> {
    let mut unified = None;
    for line in lines.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        if controllers.split(',').any(|controller| controller == "memory") {
            return in_folder(&mount.join("memory"), path, "memory.oom_control");
        }
        if controllers.is_empty() {
            unified = in_folder(mount, path, "memory.events");
        }
    }
    unified
}

fn in_folder(mount: &Path, path: &str, file: &str) -> Option<PathBuf> {
    let own = mount.join(path.trim_start_matches('/'));
    // Without a namespace of its own, a container has the machine's path, and its own cgroup as the whole mount.
    let folder = if own.is_dir() { own } else { mount.to_owned() };
    let file = folder.join(file);
    file.is_file().then_some(file)
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::atomic::AtomicU64};

    use sandbox_core::ExecOutcome;

    use super::{MemoryWatch, counter};

    #[test]
    fn the_counter_is_that_of_the_own_cgroup_in_every_layout() {
        let mount = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let file = mount.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "oom_kill 0\n").unwrap();
        };
        let found = |lines: &str| {
            let file = counter(lines, mount.path())?;
            Some(file.strip_prefix(mount.path()).unwrap().to_str().unwrap().to_owned())
        };
        assert_eq!(found("0::/\n"), None, "nothing counts");
        put("memory.events");
        assert_eq!(found("0::/\n").as_deref(), Some("memory.events"));
        assert_eq!(found("0::/a/b\n").as_deref(), Some("memory.events"), "the mount is what it sees");
        put("a/b/memory.events");
        assert_eq!(found("0::/a/b\n").as_deref(), Some("a/b/memory.events"));
        put("memory/memory.oom_control");
        let both = "4:cpu,memory:/docker/1\n0::/a/b\n";
        assert_eq!(found(both).as_deref(), Some("memory/memory.oom_control"), "the memory controller is that of v1");
    }

    #[test]
    fn one_kill_is_told_of_once_and_only_of_what_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory.events");
        fs::write(&file, "oom 5\noom_kill 1\noom_group_kill 0\n").unwrap();
        let watch = MemoryWatch { counter: Some(file.clone()), told: AtomicU64::new(0) };
        let before = watch.kills();
        assert_eq!(before, Some(1));
        assert_eq!(watch.verdict(before, &ExecOutcome::Signalled(9)), Some(false), "no kill since");
        fs::write(&file, "oom 6\noom_kill 2\n").unwrap();
        assert_eq!(watch.verdict(before, &ExecOutcome::Exited(0)), Some(false));
        assert_eq!(watch.verdict(before, &ExecOutcome::Exited(137)), Some(true));
        assert_eq!(watch.verdict(before, &ExecOutcome::Signalled(9)), Some(false), "it was told of already");
        let blind = MemoryWatch { counter: None, told: AtomicU64::new(0) };
        assert_eq!(blind.verdict(blind.kills(), &ExecOutcome::Signalled(9)), None);
    }
}
