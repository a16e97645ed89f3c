//! How large the agent is. Means something for a release build only: `SERVE_PROGRAM` names one.

use crate::support::{Agent, eventually, sh};
use sandbox_core::{ExecEvent, ExecRequest};
use serde_json::json;

/// What is the agent's alone. The rest of its RSS is its file, shared with the page cache: how much of that is mapped
/// depends on the size of the cache's folios more than on the agent (1.5 to 2.0 MiB of one and the same program).
const IDLE_MAX_KIB: u64 = 512;
const FILE_MAX_BYTES: u64 = 3_000_000;
/// What a flood may cost beyond the idle size.
const FLOOD_MAX_KIB: u64 = 8 * 1024;

fn kib(agent: &Agent, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn own_kib(agent: &Agent) -> u64 {
    kib(agent, "RssAnon:")
}

#[tokio::test]
async fn the_agent_is_small_when_idle_and_stays_bounded_in_a_flood() {
    let agent = Agent::start(json!({ "disconnect_grace_s": 1 }));
    let client = agent.connect().await;
    let idle = (kib(&agent, "VmRSS:"), own_kib(&agent));
    let begin = std::time::Instant::now();
    let mut stream = client.exec(ExecRequest::argv(["head", "-c", "268435456", "/dev/zero"])).await.unwrap();
    let (mut total, mut most) = (0, 0);
    while let Some(event) = stream.next().await.unwrap() {
        match event {
            ExecEvent::Stdout(bytes) => total += bytes.len(),
            ExecEvent::Exit(_) => break,
            _ => {}
        }
        if total % (16 << 20) < 65_536 {
            most = most.max(own_kib(&agent));
        }
    }
    let flood = begin.elapsed();
    assert_eq!(total, 256 << 20);
    for _ in 0..200 {
        sh(&client, "echo x").await;
    }
    eventually("what the flood needed is given back", async || own_kib(&agent) <= idle.1 + FLOOD_MAX_KIB / 4).await;
    let after = (kib(&agent, "VmRSS:"), own_kib(&agent));
    let file = std::fs::metadata(crate::support::program()).unwrap().len();
    println!(
        "file {file} B; KiB resident and own: idle {idle:?}, after {after:?}; own in 256 MiB of output {most}, {flood:?}"
    );
    if std::env::var_os("SERVE_PROGRAM").is_none() {
        println!("skipped: the limits are those of a static release build, which SERVE_PROGRAM has to name");
        return;
    }
    assert!(idle.1 <= IDLE_MAX_KIB && file <= FILE_MAX_BYTES);
    assert!(most <= idle.1 + FLOOD_MAX_KIB);
}
