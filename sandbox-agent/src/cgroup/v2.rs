//! One folder for all controllers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::place::Places;
use super::{Cgroup, CgroupError, Claim, Entrance, Limit, Limits, Metrics, Version, files, settle};

const CPU_PERIOD_USEC: u64 = 100_000;

/// Why `limit` cannot be honoured below the folder where sandboxes go; `None` if it can.
pub(super) fn refusal(places: &Places, limit: Limit) -> Option<String> {
    let Some(parent) = parent(places) else {
        return Some("no cgroup v2 folder from this process's own one upwards can be written by this user".to_owned());
    };
    let controller = limit.controller();
    // Freezing belongs to every cgroup.
    if limit == Limit::Freeze || offers(&parent, "cgroup.subtree_control", controller) {
        return None;
    }
    if !offers(&parent, "cgroup.controllers", controller) {
        return Some(format!("the controller {controller} is not delegated to {}", parent.display()));
    }
    // Only a folder without processes can hand a controller down, or the hierarchy's root.
    let root = places.v2.as_ref().is_some_and(|(_, root)| *root == parent);
    let empty = files::read(&parent, "cgroup.procs").is_ok_and(|processes| processes.is_empty());
    (!root && !empty).then(|| {
        format!(
            "{} holds processes, so it cannot hand the controller {controller} down (start this program in a scope \
             of its own: systemd-run --user --scope -p Delegate=yes)",
            parent.display()
        )
    })
}

/// The nearest folder from this process's own one upwards in which cgroups can be made and processes be moved to.
/// One that hands controllers down is preferred to a nearer one that cannot.
fn parent(places: &Places) -> Option<PathBuf> {
    let (own, root) = places.v2.as_ref()?;
    let upwards = own.ancestors().take_while(|folder| folder.starts_with(root));
    let writable = |folder: &&Path| files::is_writable(folder) && files::is_writable(&folder.join("cgroup.procs"));
    let candidates: Vec<_> = upwards.take_while(writable).collect();
    let hands_down = |folder: &&&Path| offers(folder, "cgroup.subtree_control", "memory");
    candidates.iter().find(hands_down).or(candidates.first()).map(|folder| folder.to_path_buf())
}

fn offers(folder: &Path, file: &str, controller: &str) -> bool {
    files::read(folder, file).is_ok_and(|list| list.split_whitespace().any(|name| name == controller))
}

pub(super) fn create(places: &Places, name: &str, limits: &Limits, claim: &mut Claim) -> Result<Cgroup, CgroupError> {
    let Some(parent) = parent(places) else {
        return Err(CgroupError::refused(limits.wanted().next(), "no cgroup v2 folder can be written by this user"));
    };
    for controller in ["memory", "pids", "cpu"] {
        let wanted = limits.wanted().any(|limit| limit.controller() == controller);
        if offers(&parent, "cgroup.subtree_control", controller) || !offers(&parent, "cgroup.controllers", controller) {
            continue;
        }
        match files::write(&parent, "cgroup.subtree_control", &format!("+{controller}")) {
            Err(error) if wanted => return Err(error),
            // Only figures would be missing.
            _ => {}
        }
    }
    let folder = parent.join(name);
    claim.make(&folder)?;
    Ok(Cgroup { version: Version::V2, folders: BTreeMap::from([(String::new(), folder)]) })
}

fn folder(cgroup: &Cgroup) -> Result<&PathBuf, CgroupError> {
    cgroup.folder("").ok_or_else(|| CgroupError::refused(None, "the cgroup has no folder"))
}

pub(super) fn set_limits(cgroup: &Cgroup, limits: &Limits) -> Result<(), CgroupError> {
    let folder = folder(cgroup)?;
    if let Some(bytes) = limits.memory_bytes {
        files::write(folder, "memory.max", &bytes.to_string())?;
        // Absent where the kernel has no swap.
        if folder.join("memory.swap.max").exists() {
            files::write(folder, "memory.swap.max", "0")?;
        }
    }
    if let Some(pids) = limits.pids {
        files::write(folder, "pids.max", &pids.to_string())?;
    }
    if let Some(millis) = limits.cpu_millis {
        files::write(folder, "cpu.max", &format!("{} {CPU_PERIOD_USEC}", millis * CPU_PERIOD_USEC / 1000))?;
    }
    Ok(())
}

pub(super) fn entrance(cgroup: &Cgroup) -> Result<Entrance, CgroupError> {
    let folder = folder(cgroup)?;
    let mut entrance = Entrance::default();
    entrance.add(folder, "cgroup.procs")?;
    entrance.folder = Some(fs::File::open(folder).map_err(|error| CgroupError::system(folder, &error))?.into());
    Ok(entrance)
}

pub(super) fn metrics(cgroup: &Cgroup) -> Metrics {
    let Ok(folder) = folder(cgroup) else { return Metrics::default() };
    Metrics {
        memory_bytes: files::number(folder, "memory.current"),
        memory_peak_bytes: files::number(folder, "memory.peak"),
        cpu_usec: files::keyed(folder, "cpu.stat", "usage_usec"),
        processes: files::number(folder, "pids.current"),
        oom_kills: files::keyed(folder, "memory.events", "oom_kill"),
    }
}

pub(super) fn freeze(cgroup: &Cgroup, frozen: bool) -> Result<(), CgroupError> {
    let folder = folder(cgroup)?;
    let wanted = u64::from(frozen);
    files::write(folder, "cgroup.freeze", &wanted.to_string())?;
    settle(|| match files::keyed(folder, "cgroup.events", "frozen") {
        Some(now) if now == wanted => Ok(()),
        _ => Err(CgroupError::busy(folder, "the cgroup's processes do not stop")),
    })
}

pub(super) fn kill(cgroup: &Cgroup) -> Result<(), CgroupError> {
    files::write(folder(cgroup)?, "cgroup.kill", "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delegated(controllers: &str, handed_down: &str, processes: &str) -> (tempfile::TempDir, Places) {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("own");
        fs::create_dir(&own).unwrap();
        fs::write(own.join("cgroup.controllers"), controllers).unwrap();
        fs::write(own.join("cgroup.subtree_control"), handed_down).unwrap();
        fs::write(own.join("cgroup.procs"), processes).unwrap();
        let places = Places { v2: Some((own, root.path().to_path_buf())), ..Places::default() };
        (root, places)
    }

    #[test]
    fn a_limit_is_refused_by_what_is_missing() {
        let (_root, places) = delegated("cpu pids", "", "12\n");
        assert!(refusal(&places, Limit::Memory).unwrap().contains("memory is not delegated"));
        assert!(refusal(&places, Limit::Pids).unwrap().contains("holds processes"));
        assert_eq!(refusal(&places, Limit::Freeze), None);
        let (_root, places) = delegated("cpu pids memory", "memory", "12\n");
        assert_eq!(refusal(&places, Limit::Memory), None);
        let (_root, places) = delegated("cpu pids memory", "", "");
        assert_eq!(refusal(&places, Limit::Memory), None);
    }

    #[test]
    fn limits_and_figures_use_the_kernels_files() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["memory.max", "memory.swap.max", "pids.max", "cpu.max"] {
            fs::write(folder.path().join(file), "max\n").unwrap();
        }
        fs::write(folder.path().join("memory.events"), "oom 3\noom_kill 2\n").unwrap();
        fs::write(folder.path().join("cpu.stat"), "usage_usec 77\nuser_usec 1\n").unwrap();
        let folders = BTreeMap::from([(String::new(), folder.path().to_path_buf())]);
        let cgroup = Cgroup { version: Version::V2, folders };
        let limits = Limits { memory_bytes: Some(1 << 26), pids: Some(10), cpu_millis: Some(1500) };
        set_limits(&cgroup, &limits).unwrap();
        let read = |file| fs::read_to_string(folder.path().join(file)).unwrap();
        // The kernel replaces what is in a file; an ordinary file keeps the tail.
        assert!(read("memory.max").starts_with("67108864"));
        assert!(read("memory.swap.max").starts_with('0'));
        assert!(read("pids.max").starts_with("10"));
        assert!(read("cpu.max").starts_with("150000 100000"));
        // What the kernel does not keep is no figure: this one has no peak yet.
        for (file, text) in [("memory.current", "4096\n"), ("pids.current", "3\n")] {
            fs::write(folder.path().join(file), text).unwrap();
        }
        let all = cgroup.metrics().unwrap();
        let expected = Metrics {
            memory_bytes: Some(4096),
            memory_peak_bytes: None,
            cpu_usec: Some(77),
            processes: Some(3),
            oom_kills: Some(2),
        };
        assert_eq!(all, expected);
        fs::write(folder.path().join("memory.peak"), "8192\n").unwrap();
        assert_eq!(cgroup.metrics().unwrap(), Metrics { memory_peak_bytes: Some(8192), ..expected });
    }

    #[test]
    fn freezing_waits_for_the_kernels_word_and_killing_is_one_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = |file: &str| folder.path().join(file);
        for file in ["cgroup.freeze", "cgroup.kill"] {
            fs::write(path(file), "0").unwrap();
        }
        fs::write(path("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        fs::write(path("cgroup.procs"), "7\n8\n").unwrap();
        let folders = BTreeMap::from([(String::new(), folder.path().to_path_buf())]);
        let cgroup = Cgroup { version: Version::V2, folders };
        assert!(!cgroup.is_frozen());
        cgroup.freeze().unwrap();
        assert_eq!(fs::read_to_string(path("cgroup.freeze")).unwrap(), "1");
        assert!(cgroup.is_frozen());
        // It says that they stand still, so going on is not confirmed.
        assert_eq!(cgroup.thaw().unwrap_err().kind(), super::super::CgroupErrorKind::Busy);
        assert_eq!(fs::read_to_string(path("cgroup.freeze")).unwrap(), "0");
        cgroup.kill().unwrap();
        assert_eq!(fs::read_to_string(path("cgroup.kill")).unwrap(), "1");
        assert_eq!(cgroup.processes().unwrap(), [7, 8]);
        drop(folder);
        assert_eq!(cgroup.metrics().unwrap_err().kind(), super::super::CgroupErrorKind::Gone);
    }
}
