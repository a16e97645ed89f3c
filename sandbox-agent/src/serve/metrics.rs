//! What the sandbox uses, from `/proc` and the cgroup; and trees of processes, for signals.

use std::{collections::HashMap, fs, path::Path};

use sandbox_core::SandboxMetrics;

/// The use right now. As PID 1 everything that is seen is the sandbox's; else it is this process's cgroup that counts.
pub(super) fn metrics() -> SandboxMetrics {
    let mut metrics = SandboxMetrics::default();
    let processes = processes();
    let is_init = std::process::id() == 1;
    if is_init {
        metrics.processes = Some(processes.len() as u64);
    } else {
        metrics.processes = Some(descendants(&processes, std::process::id() as i32).len() as u64 + 1);
    }
    let cgroup = Cgroup::read();
    metrics.memory_bytes = cgroup.memory_bytes.or_else(|| is_init.then(|| resident_bytes(&processes)));
    metrics.cpu_time_s = cgroup.cpu_time_s.or_else(|| is_init.then(|| cpu_seconds(&processes)));
    metrics
}

/// Sends a signal to a command's process and everything that descends from its supervisor.
pub(super) fn signal_tree(command: i32, signal: i32) {
    let processes = processes();
    let supervisor = processes.get(&command).map_or(command, |process| process.parent);
    let tree = if supervisor > 1 { descendants(&processes, supervisor) } else { vec![command] };
    let Some(signal) = rustix::process::Signal::from_named_raw(signal) else { return };
    for pid in tree.into_iter().filter_map(rustix::process::Pid::from_raw) {
        // One that is gone needs none.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

struct Process {
    parent: i32,
    cpu_ticks: u64,
    resident_pages: u64,
}

/// Every process that is not a zombie.
fn processes() -> HashMap<i32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, parse(&fs::read(entry.path().join("stat")).ok()?)?))
        })
        .collect()
}

/// `pid (name, any bytes) state parent …`: the name ends at the last parenthesis.
fn parse(stat: &[u8]) -> Option<Process> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> = std::str::from_utf8(stat.get(name_end + 2..)?).ok()?.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok());
    (*fields.first()? != "Z").then_some(())?;
    Some(Process {
        parent: number(1)? as i32,
        // Fields 14 to 17 of the manual: own and waited-for children's user and system time.
        cpu_ticks: (11..=14).filter_map(number).sum(),
        resident_pages: number(21)?,
    })
}

fn descendants(processes: &HashMap<i32, Process>, of: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, process) in processes {
        children.entry(process.parent).or_default().push(*pid);
    }
    let (mut found, mut next) = (Vec::new(), vec![of]);
    while let Some(pid) = next.pop() {
        // Removed, so that a number that was used again while this was read makes no circle.
        let below = children.remove(&pid).unwrap_or_default();
        found.extend(&below);
        next.extend(below);
    }
    found
}

fn resident_bytes(processes: &HashMap<i32, Process>) -> u64 {
    let pages: u64 = processes.values().map(|process| process.resident_pages).sum();
    pages * rustix::param::page_size() as u64
}

fn cpu_seconds(processes: &HashMap<i32, Process>) -> f64 {
    let ticks: u64 = processes.values().map(|process| process.cpu_ticks).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

#[derive(Default)]
struct Cgroup {
    memory_bytes: Option<u64>,
    cpu_time_s: Option<f64>,
}

impl Cgroup {
    /// This process's own cgroup, if it is not the machine's root and can be read.
    fn read() -> Self {
        Self::of(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), Path::new("/sys/fs/cgroup"))
    }

    /// By the lines that say where a process is, and where hierarchies are mounted.
    fn of(lines: &str, mounts: &Path) -> Self {
        let mut found = Self::default();
        for line in lines.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            // In a namespace of its own the path is "/", and what is mounted there is this cgroup or the machine's.
            let path = path.trim_start_matches('/');
            let number = |folder: &str, file: &str| -> Option<u64> {
                fs::read_to_string(mounts.join(folder).join(path).join(file)).ok()?.trim().parse().ok()
            };
            if controllers.is_empty() {
                found.memory_bytes = found.memory_bytes.or_else(|| number("", "memory.current"));
                found.cpu_time_s = found.cpu_time_s.or_else(|| v2_cpu(&mounts.join(path)));
            }
            for controller in controllers.split(',') {
                match controller {
                    "memory" => found.memory_bytes = number(controller, "memory.usage_in_bytes"),
                    "cpuacct" => found.cpu_time_s = number(controller, "cpuacct.usage").map(|ns| ns as f64 / 1e9),
                    _ => {}
                }
            }
        }
        found
    }
}

fn v2_cpu(folder: &Path) -> Option<f64> {
    let text = fs::read_to_string(folder.join("cpu.stat")).ok()?;
    let micros: u64 = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.parse().ok()?;
    // The root of the machine has this file too, but no memory.current.
    fs::metadata(folder.join("memory.current")).ok()?;
    Some(micros as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Cgroup, descendants, parse, processes};

    #[test]
    fn a_hostile_name_changes_nothing() {
        let stat = b"12 (a) Z 1 (b) S 77 1 1 0 -1 0 0 0 0 0 5 6 7 8 20 0 1 0 99 1000 321 18446744073709551615";
        let process = parse(stat).expect("is well formed");
        assert_eq!((process.parent, process.cpu_ticks, process.resident_pages), (77, 26, 321));
        assert!(parse(b"12 (a) Z 1 1 1").is_none());
    }

    #[test]
    fn this_process_descends_from_its_parent() {
        let parent = std::os::unix::process::parent_id() as i32;
        assert!(descendants(&processes(), parent).contains(&(std::process::id() as i32)));
    }
    #[test]
    fn both_versions_of_cgroups_are_read_and_the_machines_root_is_nobodys() {
        let mounts = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = mounts.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("own/memory.current", "4096\n");
        put("own/cpu.stat", "usage_usec 2500000\nuser_usec 1\n");
        put("cpu.stat", "usage_usec 9000000\n");
        put("memory/a/memory.usage_in_bytes", "8192\n");
        put("cpuacct/a/cpuacct.usage", "1500000000\n");
        let read = |lines: &str| {
            let found = Cgroup::of(lines, mounts.path());
            (found.memory_bytes, found.cpu_time_s)
        };
        assert_eq!(read("0::/own\n"), (Some(4096), Some(2.5)));
        assert_eq!(read("0::/\n"), (None, None));
        // In the mixed layout the second version is there, and counts nothing.
        assert_eq!(read("4:memory:/a\n3:cpu,cpuacct:/a\n1:name=systemd:/\n0::/elsewhere\n"), (Some(8192), Some(1.5)));
        assert_eq!(read(""), (None, None));
    }
}
