//! Many sandboxes and many orphans, then a count of everything that is left: `cargo xtask soak local [--count N]`.
//!
//! Ends with exit code 1 if anything is left, or if memory grows.

use std::{collections::BTreeMap, fs, path::PathBuf, process::ExitCode};

use sandbox_benches::{Place, exec, resident_kib, tree};
use sandbox_core::{CaptureLimits, ExecRequest, SandboxProvider, SandboxSpec, from_json};
use sandbox_provider_local::LocalProvider;

/// Sandboxes at once, and execs at once in one of them.
const AT_ONCE: usize = 8;
/// Children that a command leaves, each in its own way.
const ORPHANS: &str =
    "sleep 0.05 & setsid sleep 0.05 & (sh -c 'sleep 0.05 & setsid sleep 0.05 &' &); (true &); echo hi";
/// What a machine at rest may differ by, for things that others make too.
const NOISE: i64 = 8;
/// The growth of this process that is let pass, for every thousand rounds after the first.
const GROWTH_KIB_PER_THOUSAND: u64 = 1024;
const GROWTH_KIB_SLACK: u64 = 4096;

/// How many of everything there are.
type Count = BTreeMap<&'static str, i64>;

fn lines(path: &str) -> i64 {
    fs::read_to_string(path).map_or(0, |text| text.lines().count() as i64)
}

fn entries(path: &std::path::Path) -> i64 {
    fs::read_dir(path).map_or(0, |entries| entries.count() as i64)
}

/// Folders below this one, some levels deep.
fn folders(path: &std::path::Path, levels: u32) -> i64 {
    let inner = fs::read_dir(path).into_iter().flatten().flatten();
    let inner = inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    inner.map(|entry| 1 + if levels > 0 { folders(&entry.path(), levels - 1) } else { 0 }).sum()
}

fn zombies() -> i64 {
    let state = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
    };
    tree(std::process::id()).iter().filter(|pid| state(pid)).count() as i64
}

fn count(root: &std::path::Path) -> Count {
    BTreeMap::from([
        ("processes below this one", tree(std::process::id()).len() as i64),
        ("zombies", zombies()),
        ("descriptors", entries(std::path::Path::new("/proc/self/fd"))),
        ("mounts", lines("/proc/self/mountinfo")),
        ("cgroup folders", folders(std::path::Path::new("/sys/fs/cgroup"), 4)),
        ("unix sockets", lines("/proc/net/unix")),
        ("sandbox folders", entries(root)),
    ])
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let rounds: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1000);
    let temp = tempfile::tempdir().expect("a folder");
    let root = temp.path().join("root");
    let mut settings = serde_json::json!({ "isolation": "namespaces", "workspace_root": root });
    if let Some(agent) = std::env::var_os("SANDBOX_AGENT") {
        settings["agent_path"] = serde_json::json!(PathBuf::from(agent));
    }
    let provider = LocalProvider::new(from_json(settings, "settings").expect("good")).expect("it is made");
    let place = Place { provider: &provider, spec: SandboxSpec::default() };
    // What is made once is made before the count.
    place.cycles(AT_ONCE, 50).await;
    orphans(&place, 20).await;
    let (before, memory) = (settled(&root, None).await, resident_kib(std::process::id()));
    let time = place.cycles(AT_ONCE, rounds).await;
    println!("{rounds} sandboxes made, used and removed: {:.0}/s", rounds as f64 / time.as_secs_f64());
    let (rate, inside) = orphans(&place, rounds).await;
    println!("{rounds} commands that leave orphans: {rate:.0}/s; zombies inside after them: {inside}");
    let after = settled(&root, Some(&before)).await;
    let grown = resident_kib(std::process::id()).saturating_sub(memory);
    let mut is_clean = inside == 0;
    for (what, was) in &before {
        let left = after[what] - was;
        // Only our own processes, folders and descriptors are ours for sure.
        let noise = if matches!(*what, "unix sockets" | "cgroup folders" | "mounts") { NOISE } else { 0 };
        is_clean &= left <= noise;
        println!("{what}: {was} before, {} after{}", after[what], if left > noise { "  LEFT" } else { "" });
    }
    let limit = GROWTH_KIB_SLACK + GROWTH_KIB_PER_THOUSAND * (rounds as u64) / 1000;
    is_clean &= grown <= limit;
    println!("memory of this process: {grown} KiB more, {limit} KiB let pass");
    provider.aclose().await.expect("it ends");
    if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Counts when what ends by itself has had its time: until the count is no higher than before, at most ten seconds.
async fn settled(root: &std::path::Path, before: Option<&Count>) -> Count {
    for _ in 0..50 {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let now = count(root);
        match before {
            None => return now,
            Some(before) if before.iter().all(|(what, was)| now[what] <= *was) => return now,
            Some(_) => {}
        }
    }
    count(root)
}

/// Runs commands that leave children behind; gives their rate, and the zombies that are inside afterwards.
async fn orphans(place: &Place<'_>, rounds: usize) -> (f64, usize) {
    let handle = place.create().await;
    let begin = std::time::Instant::now();
    for _ in 0..rounds {
        let stream = place.provider.exec(&handle, ExecRequest::shell(ORPHANS)).await.expect("it starts");
        let result = stream.collect(CaptureLimits::default()).await.expect("it ends");
        assert_eq!(result.stdout, b"hi\n");
    }
    let rate = rounds as f64 / begin.elapsed().as_secs_f64();
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; n=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '); \
                  test $n = 0 && break; done; echo $n";
    let stream = place.provider.exec(&handle, ExecRequest::shell(script)).await.expect("it starts");
    let result = stream.collect(CaptureLimits::default()).await.expect("it ends");
    let zombies = result.stdout_text().trim().parse().expect("a number");
    exec(place.provider, &handle).await;
    place.close(&handle).await;
    (rate, zombies)
}
