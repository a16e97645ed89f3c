//! Clients that are killed at random moments.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use sandbox_core::{
    ExecRequest, ListFilter, ListSweep, PauseResume, SandboxHandle, SandboxProvider, SandboxSpec, SandboxStatus,
    serde_json::{self, Value, json},
};
use sandbox_provider_local::LocalProvider;

use crate::{
    agent,
    outlive::leased,
    support::{cgroups, eventually, isolated, processes_with, provider, remains, run},
};

const KILLS: u64 = 50;
/// Killed at once, so that it takes less time.
const AT_ONCE: u64 = 5;
/// How long sandboxes of a lease live here: as soon as that is past, a sweep may take them.
const LEASE_S: f64 = 5.0;

/// What the other program is to do. Set in that program only.
const CLIENT: &str = "SANDBOX_TEST_CLIENT";

/// An agent that only this test starts, so that what is left of it can be told from what others start.
fn own_agent(folder: &Path) -> PathBuf {
    let own = folder.join("own-agent");
    std::fs::copy(agent::agent(), &own).unwrap();
    own
}

fn own_provider(folder: &Path) -> LocalProvider {
    provider(folder, json!({ "agent_path": folder.join("own-agent") }))
}

/// Runs as another program: makes, uses, pauses and closes sandboxes of both owners until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn client() {
    let Ok(what) = std::env::var(CLIENT) else { return };
    let what: Value = serde_json::from_str(&what).unwrap();
    let folder = Path::new(what["folder"].as_str().unwrap());
    let provider = own_provider(folder);
    let upload = folder.join("own-agent");
    eprintln!("\nCLIENT");
    for number in what["number"].as_u64().unwrap().. {
        let spec = if number % 2 == 0 { SandboxSpec::default() } else { leased("killed", LEASE_S) };
        let handle = provider.create(spec).await.unwrap();
        run(&provider, &handle, ExecRequest::shell("sleep 600 >/dev/null 2>&1 & echo x > f")).await;
        provider.upload_file(&handle, &upload, &"a/copy".into()).await.unwrap();
        if what["stays_paused"] == true {
            provider.pause(&handle).await.unwrap();
            eprintln!("PAUSED {number}");
            if number % 2 == 1 {
                std::future::pending::<()>().await;
            }
        } else {
            provider.close(&handle).await.unwrap();
        }
    }
}

fn start(folder: &Path, what: Value, line: &str) -> Child {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::client", "--nocapture"])
        .env(CLIENT, what.to_string())
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.as_mut().unwrap()).lines();
    assert!(lines.any(|found| found.unwrap() == line), "the client tells of itself");
    process
}

fn kill(mut process: Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}

/// Kills a client, and before it what would clean up after it: its keepers, and its launcher.
fn kill_with_launchers(client: Child, folder: &Path) {
    for pid in keepers(folder, client.id()).into_iter().chain(launcher_of(folder, client.id())) {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
    }
    kill(client);
}

/// Processes of sandboxes below the folder, also of those to come, and their launchers and keepers.
fn processes(folder: &Path) -> BTreeSet<u32> {
    let agents: BTreeSet<u32> = agents(folder).into_iter().map(|(pid, _)| pid).collect();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_ours = |pid: &u32| is_inside(*pid, folder) || parent(*pid).is_some_and(|parent| agents.contains(&parent));
    pids.filter(is_ours).filter(|pid| *pid != std::process::id()).chain(agents.iter().copied()).collect()
}

/// Whether a process sees a folder of a sandbox.
fn is_inside(pid: u32, folder: &Path) -> bool {
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo"));
    mounts.is_ok_and(|mounts| mounts.contains(folder.to_str().unwrap()))
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Processes of the host's side of the agent file that only this test starts, and their parents.
fn agents(folder: &Path) -> Vec<(u32, u32)> {
    let agents = processes_with(&format!("{}/own-agent", folder.display()));
    agents.into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// The launcher of a process.
fn launcher_of(folder: &Path, owner: u32) -> Option<u32> {
    agents(folder).into_iter().find(|(_, parent)| *parent == owner).map(|(pid, _)| pid)
}

/// What the launcher of a process has forked: one for each sandbox.
fn keepers(folder: &Path, owner: u32) -> Vec<u32> {
    let launcher = launcher_of(folder, owner);
    agents(folder).into_iter().filter(|(_, parent)| Some(*parent) == launcher).map(|(pid, _)| pid).collect()
}

/// Keepers of this process that wait for a sandbox and have made what it will need: those whose child sees no folder yet.
fn waiting(folder: &Path) -> Vec<u32> {
    let own = keepers(folder, std::process::id()).into_iter();
    own.filter(|keeper| {
        let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap_or_default();
        let mut children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        children.next().is_some_and(|child| !is_inside(child, folder))
    })
    .collect()
}

/// The cgroups of sandboxes, also of those to come, that processes of this folder are in.
fn cgroups_of(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for pid in processes(folder) {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        found.extend(text.split(['/', '\n']).filter(|name| name.starts_with("local-")).map(str::to_owned));
    }
    found
}

/// Sandboxes of a client that lives on: one of each owner.
async fn live_ones(client: &LocalProvider) -> [SandboxHandle; 2] {
    let mut made = Vec::new();
    for spec in [SandboxSpec::default(), leased("lives", 600.0)] {
        let handle = client.create(spec).await.unwrap();
        run(client, &handle, ExecRequest::shell("echo mine > f")).await;
        made.push(handle);
    }
    made.try_into().unwrap()
}

async fn sweep_leaves_only(folder: &Path, live: &[SandboxHandle], before: &BTreeSet<u32>) {
    let sweeper = own_provider(folder);
    let ids: BTreeSet<String> = live.iter().map(|handle| handle.sandbox_id.clone()).collect();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let report = sweeper.sweep(ListFilter::default(), false).await.unwrap();
        assert_eq!(report.failed, vec![]);
        assert!(report.removed.iter().all(|id| !ids.contains(id)), "{:?}", report.removed);
        let left = sweeper.list(ListFilter::default()).await.unwrap();
        if left.len() == live.len() {
            break;
        }
        // Leases of clients that were killed are not past yet.
        assert!(Instant::now() < end, "{left:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eventually("processes are left", || processes(folder).difference(before).next().is_none()).await;
    // Of a keeper that was killed a cgroup is left, which is empty by now.
    assert_eq!(sweeper.sweep(ListFilter::default(), false).await.unwrap().failed, vec![]);
    // Each has a folder and a record: in a file of its own, or in a folder with its socket.
    // What another sweep is removing at this moment is given its time.
    let names = || remains(folder).iter().map(|name| name.replace(".json", "")).collect::<BTreeSet<String>>();
    eventually("something of a removed sandbox is left", || names() == ids).await;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(folder.to_str().unwrap()), "{mounts}");
}

/// The ids of every sandbox that was seen, for their cgroups.
fn ids_in(folder: &Path) -> BTreeSet<String> {
    remains(folder).into_iter().map(|name| name.replace(".json", "")).filter(|name| !name.contains('.')).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_killed_at_fifty_random_moments_leave_nothing_after_a_sweep() {
    let local = isolated(json!({}));
    let folder = local.temp();
    own_agent(folder);
    let client = own_provider(folder);
    let live = live_ones(&client).await;
    eventually("a launcher waits", || waiting(folder).len() == 1).await;
    let before = processes(folder);
    assert!(before.len() >= 4, "PID 1 and keeper of both: {before:?}");
    let mut seen = BTreeSet::new();
    // Spread over what takes one turn of the client, in no order that repeats with it.
    let mut random = u64::from(std::process::id()) | 1;
    for round in 0..KILLS / AT_ONCE {
        let clients = (0..AT_ONCE).map(|index| {
            let what = json!({ "folder": folder, "number": round + index });
            start(folder, what, "CLIENT")
        });
        for (index, process) in clients.collect::<Vec<_>>().into_iter().enumerate() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            tokio::time::sleep(Duration::from_micros((random >> 33) % 60_000)).await;
            seen.extend(cgroups_of(folder));
            match index % 2 {
                0 => kill(process),
                _ => kill_with_launchers(process, folder),
            }
        }
        seen.extend(ids_in(folder));
    }
    sweep_leaves_only(folder, &live, &before).await;
    for handle in &live {
        assert_eq!(client.status(handle).await.unwrap(), SandboxStatus::Running);
        assert_eq!(run(&client, handle, ExecRequest::shell("cat f")).await.stdout_text(), "mine\n");
        client.close(handle).await.unwrap();
    }
    assert!(seen.len() > live.len(), "some were killed while they had a sandbox");
    assert!(remains(folder).is_empty());
    client.aclose().await.unwrap();
    eventually("processes are left", || processes(folder).is_empty()).await;
    let left: Vec<_> = seen.iter().flat_map(|id| cgroups(id)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_killed_while_its_sandboxes_are_paused_leaves_nothing_after_a_sweep() {
    let local = isolated(json!({}));
    let folder = local.temp();
    own_agent(folder);
    let client = own_provider(folder);
    if client.as_pause_resume().is_none() {
        // Nothing can be paused here; `paused` says when that is right.
        return;
    }
    let live = live_ones(&client).await;
    eventually("a launcher waits", || waiting(folder).len() == 1).await;
    let before = processes(folder);
    // Number 0 belongs to the client, number 1 to a lease.
    let process = start(folder, json!({ "folder": folder, "number": 0, "stays_paused": true }), "PAUSED 1");
    let seen = ids_in(folder);
    assert_eq!(seen.len(), 4);
    kill(process);
    sweep_leaves_only(folder, &live, &before).await;
    for handle in &live {
        assert_eq!(client.status(handle).await.unwrap(), SandboxStatus::Running);
        client.close(handle).await.unwrap();
    }
    let left: Vec<_> = seen.iter().flat_map(|id| cgroups(id)).collect();
    assert!(left.is_empty(), "{left:?}");
    client.aclose().await.unwrap();
    eventually("processes are left", || processes(folder).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_that_is_killed_while_it_waits_leaves_a_cgroup_that_a_sweep_takes() {
    let local = isolated(json!({}));
    let folder = local.temp();
    own_agent(folder);
    let client = own_provider(folder);
    let handle = client.create(SandboxSpec::default()).await.unwrap();
    eventually("a launcher waits", || waiting(folder).len() == 1).await;
    let of_launcher = || {
        let mut names = cgroups_of(folder);
        names.remove(&handle.sandbox_id);
        names.into_iter().next()
    };
    eventually("it has made no cgroup", || of_launcher().is_some()).await;
    let left = of_launcher().unwrap();
    for launcher in waiting(folder) {
        assert!(Command::new("kill").args(["-KILL", &launcher.to_string()]).status().unwrap().success());
    }
    eventually("what it has made lives on", || waiting(folder).is_empty()).await;
    assert!(!cgroups(&left).is_empty(), "it is gone already, or the test has shown nothing");
    let sweeper = own_provider(folder);
    let sweep = || sweeper.sweep(ListFilter::default(), false);
    // The kernel empties it a moment after the last process has ended.
    let end = Instant::now() + Duration::from_secs(20);
    while !cgroups(&left).is_empty() {
        assert!(Instant::now() < end, "the cgroup of a killed launcher stays");
        assert_eq!(sweep().await.unwrap().removed, Vec::<String>::new());
    }
    // What runs is left alone, and the next sandbox needs no launcher that waits.
    assert_eq!(run(&client, &handle, ExecRequest::shell("echo on")).await.stdout_text(), "on\n");
    assert!(!cgroups(&handle.sandbox_id).is_empty());
    let next = client.create(SandboxSpec::default()).await.unwrap();
    for handle in [handle, next] {
        client.close(&handle).await.unwrap();
    }
    client.aclose().await.unwrap();
}
