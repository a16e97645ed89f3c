//! Limits and figures of a whole sandbox, by cgroup v2 or v1, whichever the host lets this process write.

mod claim;
mod entrance;
mod error;
mod files;
mod limits;
mod place;
mod probe;
mod v1;
mod v2;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde::{Deserialize, Serialize};

pub(crate) use claim::Claim;
pub(crate) use entrance::Entrance;
pub use error::{CgroupError, CgroupErrorKind};
pub use limits::{Limit, Limits};
pub(crate) use place::Places;
pub use probe::{Probe, probe};

/// The kernel empties and freezes a cgroup a moment after it says so, without a way to be told on v1.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// Which kind of cgroups a host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Version {
    /// One folder for each controller.
    V1,
    /// One folder for all.
    V2,
}

/// The cgroup of one sandbox. Plain data: it can be kept in a descriptor and used from another process. Dropping it
/// removes nothing; [`remove`](Cgroup::remove) does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cgroup {
    version: Version,
    /// Controller → folder. On v2 the one key is empty.
    folders: BTreeMap<String, PathBuf>,
}

/// What a sandbox has used. Figures that the host does not keep are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metrics {
    /// Memory in use, caches included.
    pub memory_bytes: Option<u64>,
    /// The most that was in use at once.
    pub memory_peak_bytes: Option<u64>,
    /// CPU time.
    pub cpu_usec: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// How many times the memory limit has ended a process.
    pub oom_kills: Option<u64>,
}

impl Cgroup {
    /// Makes a cgroup below this process's own one and sets its limits. Swap does not add to the memory limit.
    ///
    /// # Errors
    /// `Refused` names a limit that this host does not let this process set; `Exists` for a name that is taken;
    /// nothing is left behind then.
    pub fn create(name: &str, limits: &Limits) -> Result<Cgroup, CgroupError> {
        Cgroup::create_claimed(name, limits).map(|(cgroup, _)| cgroup)
    }

    /// As [`create`](Self::create); [`remove_abandoned`](Self::remove_abandoned) leaves it alone, empty or not, as long
    /// as the claim is held.
    pub(crate) fn create_claimed(name: &str, limits: &Limits) -> Result<(Cgroup, Claim), CgroupError> {
        match Cgroup::create_in(&Places::of_this_process()?, name, limits) {
            // A launcher whose cgroup was removed after it had been moved to another one.
            Err(error) if error.errno() == Some(libc::ENOENT) => Cgroup::create_in(&Places::now()?, name, limits),
            created => created,
        }
    }

    fn create_in(places: &Places, name: &str, limits: &Limits) -> Result<(Cgroup, Claim), CgroupError> {
        probe::check(places, limits)?;
        let mut claim = Claim::default();
        let cgroup = match places.version() {
            Some(Version::V2) => v2::create(places, name, limits, &mut claim),
            Some(Version::V1) => v1::create(places, name, limits, &mut claim),
            None => return Err(CgroupError::refused(None, "no cgroup hierarchy is mounted")),
        }?;
        match cgroup.set_limits(limits) {
            Ok(()) => Ok((cgroup, claim)),
            Err(error) => {
                // The first error is the one to tell; an empty cgroup that was just made can be removed.
                let _ = cgroup.remove();
                Err(error)
            }
        }
    }

    /// Sets limits that were not known when it was made.
    ///
    /// # Errors
    /// As [`create`](Self::create); some may be set then.
    pub fn limit(&self, limits: &Limits) -> Result<(), CgroupError> {
        if limits.wanted().next().is_some() {
            probe::check(&Places::of_this_process()?, limits)?;
        }
        self.set_limits(limits)
    }

    fn set_limits(&self, limits: &Limits) -> Result<(), CgroupError> {
        match self.version {
            Version::V2 => v2::set_limits(self, limits),
            Version::V1 => v1::set_limits(self, limits),
        }
    }

    /// The way in, for a process that is to be forked.
    ///
    /// # Errors
    /// `System` with the file that could not be opened.
    pub(crate) fn entrance(&self) -> Result<Entrance, CgroupError> {
        match self.version {
            Version::V2 => v2::entrance(self),
            Version::V1 => v1::entrance(self),
        }
    }

    /// Reads the figures.
    ///
    /// # Errors
    /// `Gone` when the cgroup has been removed.
    pub fn metrics(&self) -> Result<Metrics, CgroupError> {
        self.check_exists()?;
        Ok(match self.version {
            Version::V2 => v2::metrics(self),
            Version::V1 => v1::metrics(self),
        })
    }

    /// How many times the memory limit has ended a process; 0 where memory is not controlled.
    ///
    /// # Errors
    /// As [`metrics`](Self::metrics).
    pub fn oom_kills(&self) -> Result<u64, CgroupError> {
        Ok(self.metrics()?.oom_kills.unwrap_or(0))
    }

    /// Stops every process until [`thaw`](Self::thaw); returns when they are stopped.
    ///
    /// # Errors
    /// `Refused` where there is no freezer; `Busy` if they are not stopped after two seconds.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        match self.version {
            Version::V2 => v2::freeze(self, true),
            Version::V1 => v1::freeze(self, true),
        }
    }

    /// Lets every process go on.
    ///
    /// # Errors
    /// As [`freeze`](Self::freeze).
    pub fn thaw(&self) -> Result<(), CgroupError> {
        match self.version {
            Version::V2 => v2::freeze(self, false),
            Version::V1 => v1::freeze(self, false),
        }
    }

    /// Whether its processes are stopped, or being stopped. False where there is no freezer.
    pub fn is_frozen(&self) -> bool {
        let (controller, file) = match self.version {
            Version::V2 => ("", "cgroup.freeze"),
            Version::V1 => ("freezer", "freezer.state"),
        };
        let state = self.folder(controller).and_then(|folder| files::read(folder, file).ok()).unwrap_or_default();
        !matches!(state.trim(), "" | "0" | "THAWED")
    }

    /// Kills every process, frozen ones too. Some may still be ending when it returns.
    ///
    /// # Errors
    /// `System` with the file that could not be used.
    pub fn kill(&self) -> Result<(), CgroupError> {
        match self.version {
            Version::V2 => v2::kill(self),
            Version::V1 => v1::kill(self),
        }
    }

    /// The processes in it.
    ///
    /// # Errors
    /// `Gone` when the cgroup has been removed.
    pub fn processes(&self) -> Result<Vec<u32>, CgroupError> {
        self.check_exists()?;
        let first = self.folders.values().next().map(|folder| files::read(folder, "cgroup.procs")).transpose()?;
        Ok(first.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Removes the cgroup; one that is gone already is no error. Its processes must have ended.
    ///
    /// # Errors
    /// `Busy` if processes are still in it after two seconds.
    pub fn remove(&self) -> Result<(), CgroupError> {
        // Co-mounted controllers share a folder.
        for folder in self.distinct_folders() {
            settle(|| files::remove(folder))?;
        }
        Ok(())
    }

    /// Where it is, for `info` and for finding what was left behind.
    pub fn folders(&self) -> impl Iterator<Item = &PathBuf> {
        self.distinct_folders().into_iter()
    }

    /// Which kind it is.
    pub fn version(&self) -> Version {
        self.version
    }

    fn distinct_folders(&self) -> Vec<&PathBuf> {
        let mut folders: Vec<_> = self.folders.values().collect();
        folders.sort();
        folders.dedup();
        folders
    }

    fn folder(&self, controller: &str) -> Option<&PathBuf> {
        self.folders.get(controller)
    }

    fn check_exists(&self) -> Result<(), CgroupError> {
        match self.folders.values().find(|folder| !folder.is_dir()) {
            Some(folder) => Err(CgroupError::gone(folder)),
            None => Ok(()),
        }
    }
}

/// Repeats `step` while it is `Busy`, for a short while.
fn settle<T>(mut step: impl FnMut() -> Result<T, CgroupError>) -> Result<T, CgroupError> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        match step() {
            Err(error) if error.kind() == CgroupErrorKind::Busy && Instant::now() < deadline => {
                std::thread::sleep(SETTLE_PAUSE);
            }
            other => return other,
        }
    }
}

fn kill_each(processes: &[u32]) {
    for pid in processes.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
        // A process that has ended in between is what is wanted.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
