//! What is made ahead becomes a sandbox like any other, once.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use sandbox_core::{
    Connect, ExecRequest, ListFilter, ListSweep, Network, SandboxProvider, SandboxSpec, from_json,
    serde_json::{Value, json},
};
use sandbox_provider_docker::DockerProvider;

use crate::{
    engine,
    support::{Docker, by_hand, docker, eventually, spec},
};

fn pooled(pool: Value) -> Docker {
    docker(json!({ "agent": "required", "pool": pool }))
}

/// The containers with a folder of this run, that run.
fn running(run_dir: &std::path::Path) -> Vec<String> {
    let folders = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !by_hand(["ps", "--quiet", "--filter", &format!("name=^/{name}$")]).is_empty()).collect()
}

/// Waits until so many containers besides these sandboxes run, and returns them.
async fn members(docker: &Docker, sandboxes: &[&str], count: usize) -> Vec<String> {
    let mut found = Vec::new();
    let is_full = async || {
        found = running(&docker.temp.path().join("run"));
        found.retain(|name| !sandboxes.contains(&name.as_str()));
        found.len() == count
    };
    eventually("the pool is not filled", is_full).await;
    found
}

/// Everything of the engine that has this id.
fn left(id: &str) -> String {
    let container = by_hand(["ps", "--all", "--quiet", "--filter", &format!("name=^/{id}$")]);
    container + &by_hand(["volume", "ls", "--quiet", "--filter", &format!("name={id}")])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ready_container_becomes_a_sandbox_of_its_own_and_goes_with_it() {
    let docker = pooled(json!({ "ready": 1 }));
    let cold = docker.create(spec()).await;
    let waiting = members(&docker, &[&cold.sandbox_id], 1).await;
    assert!(
        docker
            .provider
            .list(ListFilter::default())
            .await
            .unwrap()
            .iter()
            .all(|record| { record.handle.sandbox_id != waiting[0] }),
        "what waits is no sandbox"
    );
    let mut warm = spec().with_workdir("/work").with_metadata("who", waiting[0].as_str());
    warm.env = [("A", "own")].into_iter().collect();
    warm.user = Some("1000:1000".to_owned());
    warm.ttl_s = Some(600.0);
    let warm = docker.create(warm).await;
    assert_eq!(warm.sandbox_id, waiting[0], "it was made ahead");
    assert_eq!(docker.text(&warm, "echo $A $(id -u) $(pwd)").await, "own 1000 /work");
    // Another process finds it as any other one.
    let other = docker.another();
    let filter = ListFilter { metadata: [("who".to_owned(), waiting[0].clone())].into(), ..ListFilter::default() };
    let listed = other.list(filter).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].identity.as_ref().is_some_and(|identity| identity.expires_at_ms.is_some()), "{listed:?}");
    let descriptor = docker.provider.serialize_handle(&warm, None).await.unwrap();
    let again = other.connect(descriptor).await.unwrap();
    let result = crate::support::run(&other, &again, ExecRequest::argv(["id", "-u"])).await;
    assert_eq!(result.stdout_text(), "1000\n");
    other.close(&again).await.unwrap();
    assert_eq!(left(&warm.sandbox_id), "");
    // Not reused, and made again.
    let next = members(&docker, &[&cold.sandbox_id], 1).await;
    assert_ne!(next, waiting);
    // A container is made with its limits: another limit is another container.
    let mut limited = spec();
    limited.resources.memory_mib = Some(64);
    let limited = docker.create(limited).await;
    assert_ne!(limited.sandbox_id, next[0]);
    for handle in [&cold, &limited] {
        docker.provider.close(handle).await.unwrap();
    }
    docker.provider.aclose().await.unwrap();
    docker.ensure_no_folders();
    assert_eq!(left(&next[0]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ready_container_that_died_is_replaced() {
    let docker = pooled(json!({ "ready": 1 }));
    let cold = docker.create(spec()).await;
    let waiting = members(&docker, &[&cold.sandbox_id], 1).await;
    by_hand(["kill", &waiting[0]]);
    let handle = docker.create(spec()).await;
    assert_ne!(handle.sandbox_id, waiting[0]);
    assert_eq!(docker.text(&handle, "echo works").await, "works");
    assert_eq!(left(&waiting[0]), "");
    for handle in [&cold, &handle] {
        docker.provider.close(handle).await.unwrap();
    }
    docker.provider.aclose().await.unwrap();
    docker.ensure_no_folders();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_joins_a_network_that_was_held_and_takes_it_along() {
    let docker = pooled(json!({ "network": 1 }));
    let cold = docker.create(spec()).await;
    let holder = members(&docker, &[&cold.sandbox_id], 1).await.remove(0);
    let handle = docker.create(spec()).await;
    let mode = by_hand(["inspect", "--format", "{{.HostConfig.NetworkMode}}", &handle.sandbox_id]);
    let id = by_hand(["inspect", "--format", "{{.Id}}", &holder]);
    assert_eq!(mode, format!("container:{id}"));
    let address = docker.provider.network_address(&handle).await.unwrap();
    let serve = "while :; do echo answer | nc -l -p 8000; done >/dev/null 2>&1 & echo up";
    assert_eq!(docker.text(&handle, serve).await, "up");
    let hosts = [("held.test".to_owned(), address)].into();
    docker.provider.set_hosts(&cold, hosts).await.unwrap();
    let reached = async || {
        let result = docker.run(&cold, ExecRequest::shell("echo x | nc -w 5 held.test 8000")).await;
        result.stdout_text().contains("answer")
    };
    eventually("the held network is not reached", reached).await;
    // Another process knows what belongs to it.
    docker.another().close(&handle).await.unwrap();
    assert_eq!(left(&holder) + &left(&handle.sandbox_id), "");
    docker.provider.close(&handle).await.unwrap();
    docker.provider.close(&cold).await.unwrap();
    docker.provider.aclose().await.unwrap();
    docker.ensure_no_folders();
}

/// Where the child below finds its folder.
const CHILD: &str = "SANDBOX_TEST_POOL_CHILD";

/// Runs as another process, for the test below: fills its pool and waits to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_pool_that_waits_to_be_killed() {
    let Ok(run_dir) = std::env::var(CHILD) else { return };
    let settings = engine::settings(json!({ "run_dir": run_dir, "pool": { "ready": 1, "network": 1 } }));
    let provider = DockerProvider::new(from_json(settings, "settings").unwrap()).unwrap();
    provider.create(spec()).await.unwrap();
    eventually("the pool is not filled", async || running(run_dir.as_ref()).len() == 3).await;
    println!("made");
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn c01_the_pool_of_a_killed_client_is_swept_and_a_live_ones_is_not() {
    let docker = pooled(json!({ "ready": 1 }));
    let own = docker.create(spec()).await;
    let waiting = members(&docker, &[&own.sandbox_id], 1).await;
    let run_dir = docker.temp.path().join("theirs");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "pool::a_client_with_a_pool_that_waits_to_be_killed", "--nocapture"])
        .env(CHILD, &run_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let said = tokio::task::spawn_blocking(move || lines.any(|line| line.is_ok_and(|line| line == "made")));
    assert!(said.await.unwrap(), "the child did not fill its pool");
    child.kill().unwrap();
    child.wait().unwrap();
    let theirs = running(&run_dir);
    assert_eq!(theirs.len(), 3);
    let settings = engine::settings(json!({ "run_dir": run_dir }));
    let sweeper = DockerProvider::new(from_json(settings, "settings").unwrap()).unwrap();
    sweeper.sweep(ListFilter::default(), false).await.unwrap();
    for name in &theirs {
        assert_eq!(left(name), "");
    }
    assert_eq!(members(&docker, &[&own.sandbox_id], 1).await, waiting, "the live one's is still there");
    docker.provider.close(&own).await.unwrap();
    docker.provider.aclose().await.unwrap();
}

/// From the creation to the first output, at best.
async fn fastest(docker: &Docker, rounds: usize, spec: &SandboxSpec) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..rounds {
        let begin = Instant::now();
        let handle = docker.create(spec.clone()).await;
        let result = docker.run(&handle, ExecRequest::argv(["echo", "x"])).await;
        best = best.min(begin.elapsed());
        assert_eq!(result.stdout_text(), "x\n");
        docker.provider.close(&handle).await.unwrap();
    }
    best
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_made_ahead_is_there_sooner() {
    const ROUNDS: usize = 4;
    let mut best = Vec::new();
    for pool in [json!({}), json!({ "network": ROUNDS }), json!({ "ready": ROUNDS })] {
        let docker = pooled(pool.clone());
        let first = docker.create(spec()).await;
        if pool != json!({}) {
            members(&docker, &[&first.sandbox_id], ROUNDS).await;
        }
        best.push(fastest(&docker, ROUNDS, &spec()).await);
        docker.provider.close(&first).await.unwrap();
        docker.provider.aclose().await.unwrap();
        docker.ensure_no_folders();
    }
    println!(
        "create to first output, best of {ROUNDS}: cold {:?}, network {:?}, ready {:?}",
        best[0], best[1], best[2]
    );
    assert!(best[2] < best[0], "cold, network, ready: {best:?}");
}
