use std::{
    collections::HashSet,
    sync::{
        Mutex, Once,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions};

/// The variable that marks every process of a sandbox.
pub(super) const SANDBOX: &str = "FAKE_SANDBOX";
/// The variable that marks every process of a command.
pub(super) const EXEC: &str = "FAKE_EXEC";

/// Children that are waited for by whoever started them. Held while one is started.
pub(super) static DIRECT: Mutex<Option<HashSet<u32>>> = Mutex::new(None);

static REAPS: AtomicBool = AtomicBool::new(true);

fn all_pids() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn find(matches: impl Fn(&[u8]) -> bool) -> Vec<u32> {
    let has = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(&matches))
    };
    all_pids().filter(has).collect()
}

pub(super) fn with(variable: &str, value: &str) -> Vec<u32> {
    let needle = format!("{variable}={value}");
    find(|entry| entry == needle.as_bytes())
}

pub(super) fn with_prefix(value: &str) -> Vec<u32> {
    let needle = format!("{SANDBOX}={value}-");
    find(|entry| entry.starts_with(needle.as_bytes()))
}

pub(super) fn kill(pid: u32, signal: i32) {
    if let (Some(pid), Some(signal)) = (Pid::from_raw(pid as i32), Signal::from_named_raw(signal)) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

pub(super) fn kill_group(leader: u32, signal: i32) {
    if let (Some(pid), Some(signal)) = (Pid::from_raw(leader as i32), Signal::from_named_raw(signal)) {
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// Kills every process with the mark until there is none.
pub(super) async fn kill_all(variable: &str, value: &str) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let pids = with(variable, value);
        if pids.is_empty() || Instant::now() > end {
            return;
        }
        pids.into_iter().for_each(|pid| kill(pid, 9));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Makes this process the parent of orphans below it, and waits for those.
pub(super) fn reap_orphans(reaps: bool) {
    static START: Once = Once::new();
    REAPS.store(reaps, Ordering::SeqCst);
    START.call_once(|| {
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        std::thread::spawn(|| {
            let mut seen = HashSet::new();
            loop {
                std::thread::sleep(Duration::from_millis(25));
                if REAPS.load(Ordering::SeqCst) {
                    seen = reap_once(&seen);
                }
            }
        });
    });
}

/// Reaps the zombies that were there before, too: one that is new may be about to be waited for by its maker.
fn reap_once(seen: &HashSet<u32>) -> HashSet<u32> {
    let own = std::process::id();
    let direct = DIRECT.lock().unwrap();
    let is_orphan = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut parts = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let is_zombie = parts.next() == Some("Z") && parts.next() == Some(own.to_string().as_str());
        is_zombie && !direct.as_ref().is_some_and(|direct| direct.contains(pid))
    };
    let (old, new): (HashSet<u32>, HashSet<u32>) = all_pids().filter(is_orphan).partition(|pid| seen.contains(pid));
    for pid in old {
        let _ = rustix::process::waitpid(Pid::from_raw(pid as i32), WaitOptions::NOHANG);
    }
    new
}
