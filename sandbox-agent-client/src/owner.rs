//! Processes of this host as owners of sandboxes.

use std::sync::OnceLock;

use sandbox_core::Owner;

/// The name of this machine.
pub fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(read_host_name)
}

/// Field 22 of `/proc/<pid>/stat`: pids are used again, so the start belongs to a process's name. None when there is no
/// such process, or only its zombie.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name in parentheses may hold anything; the third field follows it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let is_dead = matches!(fields.next()?, "Z" | "X" | "x");
    let start = fields.nth(18)?.parse().ok()?;
    (!is_dead).then_some(start)
}

/// This process.
pub fn this_process() -> Owner {
    static FIRST: OnceLock<(u32, u64)> = OnceLock::new();
    let pid = std::process::id();
    let started = || start_time(pid).unwrap_or_default();
    let (first, at) = *FIRST.get_or_init(|| (pid, started()));
    // One that was forked from the first to ask has a start of its own.
    process(pid, if first == pid { at } else { started() })
}

/// A process of this machine by its number and start.
pub fn process(pid: u32, start_time: u64) -> Owner {
    Owner::Process { host: host_name().to_owned(), pid, start_time }
}

/// What is known of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Alive,
    /// It has ended.
    Gone,
    /// Of another machine, or nobody in particular.
    Unknown,
}

/// Whether a process that owns something still lives.
pub fn life(owner: &Owner) -> Life {
    match owner {
        Owner::Process { host, pid, start_time: start } if host == host_name() => {
            if start_time(*pid) == Some(*start) {
                Life::Alive
            } else {
                Life::Gone
            }
        }
        _ => Life::Unknown,
    }
}

/// This very run of this machine's kernel: none of its processes lives in another one.
pub fn boot_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned())
}

fn read_host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use sandbox_core::Owner;

    use super::{Life, life, this_process};

    #[test]
    fn only_the_very_process_counts_as_alive() {
        let Owner::Process { host, pid, start_time } = this_process() else { panic!("a process") };
        let owner = |host: &str, pid, start_time| Owner::Process { host: host.to_owned(), pid, start_time };
        assert_eq!(life(&owner(&host, pid, start_time)), Life::Alive);
        assert_eq!(life(&owner(&host, pid, start_time + 1)), Life::Gone);
        assert_eq!(life(&owner("elsewhere", pid, start_time)), Life::Unknown);
        assert_eq!(life(&Owner::Lease), Life::Unknown);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(life(&owner(&host, pid, start_time)), Life::Gone);
    }
}
