//! One folder for each controller.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::place::Places;
use super::{
    Cgroup, CgroupError, CgroupErrorKind, Claim, Entrance, Limit, Limits, Metrics, Version, files, kill_each, settle,
};

const CONTROLLERS: [&str; 5] = ["memory", "pids", "cpu", "cpuacct", "freezer"];
const CPU_PERIOD_USEC: u64 = 100_000;
/// How often `kill` looks for processes that were forked while it killed, where there is no freezer.
const KILL_ROUNDS: usize = 64;

/// Makes a folder wherever this process may; the limits have been checked to be among them.
pub(super) fn create(places: &Places, name: &str, limits: &Limits, claim: &mut Claim) -> Result<Cgroup, CgroupError> {
    let writable = |controller: &&&str| places.v1.get(**controller).is_some_and(|folder| files::is_writable(folder));
    let mut folders: BTreeMap<String, PathBuf> = BTreeMap::new();
    for controller in CONTROLLERS.iter().filter(writable) {
        let folder = places.v1[*controller].join(name);
        let made = folders.values().any(|made| *made == folder) || {
            if let Err(error) = claim.make(&folder) {
                let _ = Cgroup { version: Version::V1, folders }.remove();
                return Err(error);
            }
            true
        };
        debug_assert!(made);
        folders.insert((*controller).to_owned(), folder);
    }
    if folders.is_empty() {
        let limit = limits.wanted().next();
        return Err(CgroupError::refused(limit, "no cgroup v1 hierarchy can be written by this user"));
    }
    Ok(Cgroup { version: Version::V1, folders })
}

pub(super) fn set_limits(cgroup: &Cgroup, limits: &Limits) -> Result<(), CgroupError> {
    if let (Some(bytes), Some(folder)) = (limits.memory_bytes, cgroup.folder("memory")) {
        files::write(folder, "memory.limit_in_bytes", &bytes.to_string())?;
        // With swap accounting the sum is limited; without it, pages of the cgroup are not swapped out at all.
        if folder.join("memory.memsw.limit_in_bytes").exists() {
            files::write(folder, "memory.memsw.limit_in_bytes", &bytes.to_string())?;
        } else {
            files::write(folder, "memory.swappiness", "0")?;
        }
    }
    if let (Some(pids), Some(folder)) = (limits.pids, cgroup.folder("pids")) {
        files::write(folder, "pids.max", &pids.to_string())?;
    }
    if let (Some(millis), Some(folder)) = (limits.cpu_millis, cgroup.folder("cpu")) {
        files::write(folder, "cpu.cfs_period_us", &CPU_PERIOD_USEC.to_string())?;
        files::write(folder, "cpu.cfs_quota_us", &(millis * CPU_PERIOD_USEC / 1000).to_string())?;
    }
    Ok(())
}

/// `cgroup.procs` is for whole processes.
pub(super) fn entrance(cgroup: &Cgroup) -> Result<Entrance, CgroupError> {
    let mut entrance = Entrance::default();
    cgroup.folders().try_for_each(|folder| entrance.add(folder, "tasks"))?;
    Ok(entrance)
}

pub(super) fn metrics(cgroup: &Cgroup) -> Metrics {
    let number = |controller: &str, file: &str| files::number(cgroup.folder(controller)?, file);
    Metrics {
        memory_bytes: number("memory", "memory.usage_in_bytes"),
        memory_peak_bytes: number("memory", "memory.max_usage_in_bytes"),
        cpu_usec: number("cpuacct", "cpuacct.usage").map(|nanoseconds| nanoseconds / 1000),
        processes: number("pids", "pids.current"),
        oom_kills: cgroup.folder("memory").and_then(|folder| files::keyed(folder, "memory.oom_control", "oom_kill")),
    }
}

pub(super) fn freeze(cgroup: &Cgroup, frozen: bool) -> Result<(), CgroupError> {
    let Some(folder) = cgroup.folder("freezer") else {
        return Err(CgroupError::refused(Some(Limit::Freeze), "the cgroup has no freezer"));
    };
    let wanted = if frozen { "FROZEN" } else { "THAWED" };
    settle(|| {
        // Writing again makes the kernel look at processes that were forked in between.
        files::write(folder, "freezer.state", wanted)?;
        if files::read(folder, "freezer.state")?.trim() == wanted {
            return Ok(());
        }
        Err(CgroupError::busy(folder, "the cgroup's processes do not stop"))
    })
}

pub(super) fn kill(cgroup: &Cgroup) -> Result<(), CgroupError> {
    // Frozen, nobody can fork away between the list and the signal.
    match freeze(cgroup, true) {
        Ok(()) => {
            kill_each(&cgroup.processes()?);
            freeze(cgroup, false)
        }
        Err(error) if error.kind() == CgroupErrorKind::Refused || error.kind() == CgroupErrorKind::Busy => {
            for _ in 0..KILL_ROUNDS {
                kill_each(&cgroup.processes()?);
            }
            if cgroup.folder("freezer").is_some() { freeze(cgroup, false) } else { Ok(()) }
        }
        Err(error) => Err(error),
    }
}
