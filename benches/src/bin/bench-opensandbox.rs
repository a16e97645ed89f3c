//! Sandboxes of the real OpenSandbox server beside containers of the same engine, with the same agent in both:
//! `cargo xtask bench opensandbox`.

use std::time::{Duration, Instant};

use opensandbox_double::{BASE_IMAGE, RealServer};
use sandbox_benches::{Goal, Place, Table, exec, exec_many, median, millis};
use sandbox_core::{CaptureLimits, ExecRequest, SandboxHandle, SandboxProvider, SandboxSpec, from_json};
use sandbox_provider_docker::DockerProvider;
use sandbox_provider_opensandbox::OpenSandboxProvider;
use serde_json::json;

const ROUNDS: usize = 15;
const EXECS_A_ROUND: usize = 20;
const WARM_UP: usize = 20;
const AT_ONCE: [usize; 2] = [8, 32];
const LINES: usize = 50_000;
const LINES_ROUNDS: usize = 5;

/// The ways into a sandbox of the server: what they are called, through the server or not, the agent's protocol or not, and
/// how much longer an exec may take than one of the docker provider.
const WAYS: [(&str, bool, &str, Option<f64>); 4] = [
    ("native, direct", false, "required", Some(2.0)),
    ("native, through the server", true, "required", None),
    ("API of execd, direct", false, "off", None),
    ("API of execd, through the server", true, "off", None),
];

fn main() {
    let server = RealServer::start().expect("the real server starts");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let mut table = Table::default();
    runtime.block_on(async {
        let config = json!({ "host": server.socket(), "use_docker_config": false });
        let docker = DockerProvider::new(from_json(config, "settings").expect("good settings")).expect("docker");
        for way in WAYS {
            measure(&server, &docker, way, &mut table).await;
        }
        docker.aclose().await.expect("it ends");
    });
    println!("{table}");
}

/// One side of a comparison.
struct Side<'a> {
    provider: &'a dyn SandboxProvider,
    handle: SandboxHandle,
}

async fn measure(
    server: &RealServer,
    docker: &DockerProvider,
    (name, use_server_proxy, native, limit): (&str, bool, &str, Option<f64>),
    table: &mut Table,
) {
    let config = json!({
        "connection": { "domain": server.address, "api_key": server.key, "use_server_proxy": use_server_proxy },
        "operations": { "native": native },
    });
    let ours = OpenSandboxProvider::new(from_json(config, "settings").expect("good settings")).expect("ours");
    let spec = SandboxSpec::image(BASE_IMAGE);
    let (here, there) = (Place { provider: &ours, spec: spec.clone() }, Place { provider: docker, spec });
    let here = Side { provider: &ours, handle: here.create().await };
    let there = Side { provider: docker, handle: there.create().await };
    let goal = || limit.map_or(Goal::None, Goal::AtMost);
    for side in [&here, &there] {
        for _ in 0..WARM_UP {
            exec(side.provider, &side.handle).await;
        }
    }
    let (mut own, mut peer) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (side, times) in [(&here, &mut own), (&there, &mut peer)] {
            for _ in 0..EXECS_A_ROUND {
                times.push(exec(side.provider, &side.handle).await);
            }
        }
    }
    row(table, &format!("exec, {name}"), &mut own, &mut peer, goal());
    for at_once in AT_ONCE {
        let (mut own, mut peer) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            for (side, times) in [(&here, &mut own), (&there, &mut peer)] {
                times.push(exec_many(side.provider, &side.handle, at_once, 4 * at_once).await.1);
            }
        }
        row(table, &format!("{} execs, {at_once} at once, {name}", 4 * at_once), &mut own, &mut peer, goal());
    }
    let (mut own, mut peer) = (Vec::new(), Vec::new());
    for _ in 0..LINES_ROUNDS {
        for (side, times) in [(&here, &mut own), (&there, &mut peer)] {
            times.push(lines(side).await);
        }
    }
    row(table, &format!("{LINES} lines of output, {name}"), &mut own, &mut peer, goal());
    for side in [&here, &there] {
        side.provider.close(&side.handle).await.expect("it is removed");
    }
    ours.aclose().await.expect("it ends");
}

fn row(table: &mut Table, what: &str, own: &mut [Duration], peer: &mut [Duration], goal: Goal) {
    let (own, peer) = (median(own), median(peer));
    let ratio = own.as_secs_f64() / peer.as_secs_f64();
    table.row(what, millis(own), format!("docker provider {}", millis(peer)), ratio, " ×", goal);
}

async fn lines(side: &Side<'_>) -> Duration {
    let begin = Instant::now();
    let request = ExecRequest::argv(["seq", &LINES.to_string()]);
    let stream = side.provider.exec(&side.handle, request).await.expect("it starts");
    let result = stream.collect(CaptureLimits::default()).await.expect("it ends");
    assert_eq!(result.stdout.iter().filter(|byte| **byte == b'\n').count(), LINES);
    begin.elapsed()
}
