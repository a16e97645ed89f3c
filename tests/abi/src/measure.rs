//! What this process has of the system.

use std::{fs, path::Path, time::Duration};

/// Counts that must not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Mappings.
    pub mappings: usize,
}

/// What this process holds now.
///
/// # Panics
/// Without /proc.
pub fn holdings() -> Holdings {
    let entries = |path: &str| fs::read_dir(path).expect("/proc is there").count();
    Holdings {
        // One of them is the folder that is being read.
        descriptors: entries("/proc/self/fd") - 1,
        threads: entries("/proc/self/task"),
        mappings: fs::read_to_string("/proc/self/maps").expect("/proc is there").lines().count(),
    }
}

/// How often a file is mapped in this process as code.
///
/// # Panics
/// Without /proc, or without the file.
pub fn images_of(path: &Path) -> usize {
    use std::os::unix::fs::MetadataExt;
    let inode = fs::metadata(path).expect("the file is there").ino().to_string();
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is there");
    let is_code = |line: &&str| {
        let mut words = line.split_ascii_whitespace();
        let executable = words.nth(1).is_some_and(|mode| mode.contains('x'));
        executable && words.nth(2) == Some(inode.as_str())
    };
    maps.lines().filter(is_code).count()
}

/// Resident memory in KiB.
///
/// # Panics
/// Without /proc.
pub fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("there is a line VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("it is a number")
}

/// Samples of one thing, sorted.
#[derive(Clone, Debug)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Of these durations.
    ///
    /// # Panics
    /// Without any.
    pub fn new(mut durations: Vec<Duration>) -> Self {
        assert!(!durations.is_empty(), "something was measured");
        durations.sort_unstable();
        Self(durations)
    }

    /// Half of them are below it.
    pub fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }

    /// One in twenty is below it: what the machine does when it has nothing else to do.
    pub fn quiet(&self) -> Duration {
        self.0[self.0.len() / 20]
    }

    /// Each divided by a number.
    #[must_use]
    pub fn per(&self, count: u32) -> Self {
        Self(self.0.iter().map(|duration| *duration / count).collect())
    }
}
