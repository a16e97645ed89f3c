//! What is left when the process that made a sandbox is killed.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use sandbox_core::{ExecRequest, ListFilter, ListSweep, SandboxProvider, SandboxSpec, SandboxStatus, serde_json::json};

use crate::support::{Local, eventually, lives, local, provider, run};

/// Where the other process is to make its sandbox. Set in that process only.
const ROOT_VARIABLE: &str = "SANDBOX_TEST_HOLDER_ROOT";

/// Runs as another process: makes a sandbox with commands in it, tells of it, and waits to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn holder() {
    let Ok(root) = std::env::var(ROOT_VARIABLE) else { return };
    let provider = provider(json!({ "workspace_root": root }));
    let handle = provider.create(SandboxSpec::default()).await.unwrap();
    let script =
        "touch f; setsid sh -c 'echo $$; exec sleep 300 >/dev/null 2>&1' & sleep 300 >/dev/null 2>&1 & echo $!";
    let pids = run(&provider, &handle, ExecRequest::shell(script)).await;
    let running = ExecRequest::shell("echo $$; exec sleep 300");
    let mut stream = provider.exec(&handle, running).await.unwrap();
    let Some(sandbox_core::ExecEvent::Stdout(pid)) = stream.next().await.unwrap() else { panic!("output") };
    let pids = format!("{} {}", pids.stdout_text(), String::from_utf8_lossy(&pid));
    eprintln!("\nHOLDER {} {}", handle.sandbox_id, pids.split_whitespace().collect::<Vec<_>>().join(" "));
    std::future::pending::<()>().await;
    drop(stream);
}

struct Holder {
    process: Child,
    id: String,
    pids: Vec<u32>,
}

impl Holder {
    fn start(local: &Local) -> Holder {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "host_death::holder", "--nocapture"])
            .env(ROOT_VARIABLE, local.root())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let told = lines.find_map(|line| line.unwrap().strip_prefix("HOLDER ").map(str::to_owned)).unwrap();
        let mut parts = told.split(' ');
        let id = parts.next().unwrap().to_owned();
        Holder { process, id, pids: parts.map(|pid| pid.parse().unwrap()).collect() }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_removes_what_a_killed_process_left_and_nothing_of_a_live_one() {
    let local = local(json!({}));
    let mut killed = Holder::start(&local);
    let living = Holder::start(&local);
    let own = local.create().await;
    assert_eq!(killed.pids.len(), 3);
    assert!(killed.pids.iter().chain(&living.pids).all(|pid| lives(*pid)));
    killed.kill();
    eventually("commands outlive the process that made them", || !killed.pids.iter().any(|pid| lives(*pid))).await;

    let records = local.provider.list(ListFilter::default()).await.unwrap();
    let find = |id: &str| records.iter().find(|record| record.handle.sandbox_id == id).unwrap();
    assert_eq!(find(&killed.id).status, SandboxStatus::Stopped);
    assert_eq!(find(&living.id).status, SandboxStatus::Running);
    assert!(local.root().join(&killed.id).join("f").exists());

    // A living one's is not touched, whichever way it is tried.
    let refused = local.provider.close(&find(&living.id).handle).await.unwrap_err();
    assert_eq!(refused.kind(), sandbox_core::ErrorKind::InvalidState);
    let report = local.provider.sweep(ListFilter::default(), false).await.unwrap();
    assert_eq!((report.removed, report.failed), (vec![killed.id.clone()], vec![]));
    assert!(!local.root().join(&killed.id).exists());
    assert!(local.root().join(&living.id).join("f").exists());
    assert!(living.pids.iter().all(|pid| lives(*pid)));
    assert_eq!(local.text(&own, "echo lives").await, "lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_a_killed_process_can_be_closed_by_its_handle() {
    let local = local(json!({}));
    let mut killed = Holder::start(&local);
    killed.kill();
    let records = local.provider.list(ListFilter::default()).await.unwrap();
    local.provider.close(&records[0].handle).await.unwrap();
    assert!(local.remains().is_empty(), "{:?}", local.remains());
    assert_eq!(local.provider.status(&records[0].handle).await.unwrap(), SandboxStatus::Stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_process_takes_what_a_killed_one_left_a_while_ago_without_being_asked() {
    let local = local(json!({}));
    let (mut old, mut fresh, living) = (Holder::start(&local), Holder::start(&local), Holder::start(&local));
    old.kill();
    fresh.kill();
    // Two minutes ago, as far as the records know: the two that are to stay would be swept by their age, too.
    for id in [&old.id, &living.id] {
        let record = local.root().join(".records").join(format!("{id}.json"));
        let mut json: sandbox_core::serde_json::Value =
            sandbox_core::serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
        let created_at_ms = json["identity"]["created_at_ms"].as_u64().unwrap();
        json["identity"]["created_at_ms"] = (created_at_ms - 120_000).into();
        std::fs::write(&record, json.to_string()).unwrap();
    }
    let next = provider(json!({ "workspace_root": local.root() }));
    next.create(SandboxSpec::default()).await.unwrap();
    eventually("what was left behind is still there", || !local.root().join(&old.id).exists()).await;
    assert!(local.root().join(&fresh.id).exists());
    assert!(local.root().join(&living.id).exists());
}
