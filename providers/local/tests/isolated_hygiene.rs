//! Many isolated sandboxes, and what they leave in this process. One test only: it counts what the process has.

#[path = "isolated/agent.rs"]
mod agent;

use std::{sync::Arc, time::Duration};

use sandbox_core::{
    CaptureLimits, ExecOutcome, ExecRequest, SandboxProvider, SandboxSpec, from_json, serde_json::json,
};
use sandbox_provider_local::LocalProvider;

const AT_ONCE: usize = 30;
const CYCLES: usize = 100;

async fn cycle(provider: &LocalProvider, number: usize) {
    let handle = provider.create(SandboxSpec::default()).await.unwrap();
    let script = format!("sleep 60 >/dev/null 2>&1 & echo {number}");
    let stream = provider.exec(&handle, ExecRequest::shell(script)).await.unwrap();
    let result = stream.collect(CaptureLimits::default()).await.unwrap();
    assert_eq!(*result.outcome(), ExecOutcome::Exited(0));
    assert_eq!(result.stdout_text(), format!("{number}\n"));
    provider.close(&handle).await.unwrap();
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Children of a process, zombies included.
fn children_of(parent: u32) -> Vec<u32> {
    let child = |entry: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let of: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        (of == parent).then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| child(entry.unwrap())).collect()
}

fn children() -> Vec<u32> {
    children_of(std::process::id())
}

/// Whether there is a launcher, and one process of it that waits for the next sandbox with all that it will need.
fn one_waits() -> bool {
    match children()[..] {
        [launcher] => matches!(children_of(launcher)[..], [keeper] if children_of(keeper).len() == 1),
        _ => false,
    }
}

/// Mounts of this machine that a sandbox below the folder made. Others come and go meanwhile.
fn mounts(folder: &std::path::Path) -> usize {
    let folder = folder.to_str().unwrap();
    std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().filter(|line| line.contains(folder)).count()
}

/// Asks again and again until the answer is yes.
async fn settled(what: &str, is_true: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(std::time::Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_isolated_sandboxes_at_once_and_one_after_the_other_leave_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let settings = json!({
        "workspace_root": temp.path().join("root"),
        "isolation": "namespaces",
        "agent_path": agent::agent(),
    });
    let provider = Arc::new(LocalProvider::new(from_json(settings, "settings").unwrap()).unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..AT_ONCE {
        let provider = provider.clone();
        tasks.spawn(async move { cycle(&provider, number).await });
    }
    assert_eq!(tokio::time::timeout(Duration::from_secs(60), tasks.join_all()).await.unwrap().len(), AT_ONCE);
    settled("a launcher waits", one_waits).await;
    let files = open_files();
    let begin = std::time::Instant::now();
    for number in 0..CYCLES {
        cycle(&provider, number).await;
    }
    println!("{CYCLES} cycles: {:?}", begin.elapsed());
    settled("a launcher waits", one_waits).await;
    assert_eq!((open_files(), mounts(temp.path())), (files, 0));
    provider.aclose().await.unwrap();
    // The launcher's socket; of what waited three sockets and its pidfd.
    assert_eq!((open_files(), children()), (files - 5, vec![]));
    for folder in ["root/.records", "root/.inside"] {
        assert_eq!(std::fs::read_dir(temp.path().join(folder)).unwrap().count(), 0);
    }
    assert_eq!(std::fs::read_dir(temp.path().join("root")).unwrap().count(), 2);
}
