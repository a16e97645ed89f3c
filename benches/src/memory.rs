//! Memory of processes, from `/proc`.

use std::fs;

/// Every process below this one, itself included.
pub fn tree(root: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// Whether a process is one of ours, and no command of a sandbox.
pub fn is_ours(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pid == std::process::id() || ["sandbox-agent", "sbx-"].iter().any(|ours| name.starts_with(ours))
}

/// The proportional share of memory of these processes, in KiB.
pub fn pss_kib(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")).sum()
}

/// The resident memory of a process, in KiB.
pub fn resident_kib(pid: u32) -> u64 {
    field(&format!("/proc/{pid}/status"), "VmRSS:")
}

fn field(path: &str, key: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
