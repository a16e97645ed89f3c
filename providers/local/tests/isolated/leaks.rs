//! What is left: after many sandboxes, and after the program that made them was killed.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use sandbox_core::{ExecRequest, ListFilter, ListSweep, SandboxProvider, SandboxSpec, serde_json::json};

use crate::{
    agent,
    support::{cgroups, eventually, isolated, marker, processes_with, provider, remains, run, socket},
};

/// Where the other program is to make its sandbox, and how long its commands sleep. Set in that program only.
const FOLDER: &str = "SANDBOX_TEST_HOLDER_FOLDER";
const SECONDS: &str = "SANDBOX_TEST_HOLDER_SECONDS";

/// Runs as another program: makes a sandbox with commands in it, tells of it, and waits to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn holder() {
    let (Ok(folder), Ok(seconds)) = (std::env::var(FOLDER), std::env::var(SECONDS)) else { return };
    let provider = provider(Path::new(&folder), json!({}));
    let handle = provider.create(SandboxSpec::default()).await.unwrap();
    let script = format!("touch f; setsid nohup sleep {seconds} >/dev/null 2>&1 & echo started");
    assert_eq!(run(&provider, &handle, ExecRequest::shell(script)).await.stdout_text(), "started\n");
    let stream = provider.exec(&handle, ExecRequest::argv(["sleep", &seconds])).await.unwrap();
    eprintln!("\nHOLDER {}", handle.sandbox_id);
    std::future::pending::<()>().await;
    drop(stream);
}

/// Where the other program is to make its sandboxes. Set in that program only.
const MAKER_FOLDER: &str = "SANDBOX_TEST_MAKER_FOLDER";

/// Processes in whose mounts this folder is.
fn processes_of_folder(folder: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).is_ok_and(|mounts| mounts.contains(folder))
    })
    .collect()
}

struct Holder {
    process: Child,
    id: String,
}

impl Holder {
    fn start(folder: &Path, seconds: &str) -> Holder {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "leaks::holder", "--nocapture"])
            .envs([(FOLDER, folder.as_os_str()), (SECONDS, seconds.as_ref())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let told = lines.find_map(|line| line.unwrap().strip_prefix("HOLDER ").map(str::to_owned));
        Holder { process, id: told.expect("the holder tells its sandbox") }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn nothing_outlives_a_killed_program() {
    let temp = tempfile::tempdir().unwrap();
    let seconds = marker();
    let holder = Holder::start(temp.path(), &seconds);
    eventually("the commands run", || processes_with(&seconds).len() >= 2).await;
    let id = holder.id.clone();
    drop(holder);
    eventually("commands outlive the program that made them", || processes_with(&seconds).is_empty()).await;
    eventually("its cgroup stays", || cgroups(&id).is_empty()).await;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&id), "{mounts}");
    assert!(!remains(temp.path()).is_empty());
    let report = provider(temp.path(), json!({})).sweep(ListFilter::default(), false).await.unwrap();
    assert_eq!((report.removed, report.failed), (vec![id], vec![]));
    assert!(remains(temp.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_sandbox_outlives_the_program_that_was_killed() {
    nothing_outlives_a_killed_program().await;
}

/// Runs as another program, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn killed_as_nobody() {
    if agent::is_nobody() {
        nothing_outlives_a_killed_program().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_outlives_the_killed_program_of_a_user_without_privileges() {
    agent::as_nobody("leaks::killed_as_nobody");
}

/// Runs as another program: makes and closes sandboxes until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn maker() {
    let Ok(folder) = std::env::var(MAKER_FOLDER) else { return };
    let provider = provider(Path::new(&folder), json!({}));
    eprintln!("\nMAKER");
    loop {
        let handle = provider.create(SandboxSpec::default()).await.unwrap();
        run(&provider, &handle, ExecRequest::shell("sleep 60 >/dev/null 2>&1 & echo x > f")).await;
        provider.close(&handle).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_killed_at_any_moment_leaves_nothing_that_a_sweep_does_not_take() {
    let temp = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "leaks::maker", "--nocapture"])
            .env(MAKER_FOLDER, temp.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "MAKER"));
        tokio::time::sleep(std::time::Duration::from_micros(7_300 * round)).await;
        process.kill().unwrap();
        process.wait().unwrap();
    }
    let path = temp.path().to_str().unwrap();
    eventually("processes are left", || processes_of_folder(path).is_empty()).await;
    let ids: Vec<String> = remains(temp.path()).iter().map(|name| name.replace(".json", "")).collect();
    let sweeper = provider(temp.path(), json!({}));
    eventually("a cgroup is left", || ids.iter().all(|id| cgroups(id).is_empty())).await;
    let report = sweeper.sweep(ListFilter::default(), false).await.unwrap();
    assert_eq!(report.failed, vec![]);
    let left: Vec<_> = remains(temp.path()).into_iter().filter(|name| !name.ends_with(".tmp")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(ids.iter().all(|id| !socket(id).exists()), "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_dropped_takes_its_sandboxes_with_it() {
    let temp = tempfile::tempdir().unwrap();
    let seconds = marker();
    let provider = provider(temp.path(), json!({}));
    let mut ids = Vec::new();
    for _ in 0..3 {
        let handle = provider.create(SandboxSpec::default()).await.unwrap();
        let script = format!("sleep {seconds} >/dev/null 2>&1 & echo");
        run(&provider, &handle, ExecRequest::shell(script)).await;
        ids.push(handle.sandbox_id);
    }
    drop(provider);
    eventually("its commands stay", || processes_with(&seconds).is_empty()).await;
    eventually("its folders stay", || remains(temp.path()).is_empty()).await;
    assert!(ids.iter().all(|id| cgroups(id).is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_nobody_waits_for_leaves_nothing() {
    let local = isolated(json!({}));
    for micros in [0_u64, 300, 1_000, 3_000, 6_000, 10_000, 20_000] {
        let mut creating = Box::pin(local.provider.create(SandboxSpec::default()));
        let limit = std::time::Duration::from_micros(micros);
        if let Ok(made) = tokio::time::timeout(limit, &mut creating).await {
            local.provider.close(&made.unwrap()).await.unwrap();
        }
        drop(creating);
    }
    eventually("what was made stays", || local.remains().is_empty()).await;
}
