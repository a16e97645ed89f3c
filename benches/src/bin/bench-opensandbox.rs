//! Sandboxes of the real OpenSandbox server beside containers of the same engine with the same agent, and this provider
//! beside the official client in the same sandbox: `cargo xtask bench opensandbox`. `--quick` does little of everything,
//! `--only TEXT` measures the ways in whose names that is, such as `API of execd, through the server`.

use std::time::{Duration, Instant};

use opensandbox_double::{BASE_IMAGE, RealServer};
use sandbox_benches::{Goal, Measured, Official, Place, Table, exec_many};
use sandbox_core::{CaptureLimits, ExecRequest, SandboxHandle, SandboxProvider, SandboxSpec, from_json};
use sandbox_provider_docker::DockerProvider;
use sandbox_provider_opensandbox::OpenSandboxProvider;
use serde_json::json;

const LINES: usize = 50_000;

/// Connections that each client may keep: as many as there are commands at once.
const CONNECTIONS: usize = 128;

/// How much is done.
struct Effort {
    /// At once, execs in a round, rounds.
    levels: &'static [(usize, usize, usize)],
    lines_rounds: usize,
}

const FULL: Effort =
    Effort { levels: &[(1, 20, 10), (8, 128, 10), (32, 128, 10), (CONNECTIONS, 256, 6)], lines_rounds: 9 };
const QUICK: Effort = Effort { levels: &[(1, 1, 1), (8, 8, 1)], lines_rounds: 1 };

/// The protocols: what an exec may take of one of the docker provider's, and whether the official client speaks it.
struct Protocol {
    name: &'static str,
    native: &'static str,
    of_docker: Option<f64>,
    is_official: bool,
}

const NATIVE: Protocol = Protocol { name: "native", native: "required", of_docker: Some(2.0), is_official: false };
const API: Protocol = Protocol { name: "API of execd", native: "off", of_docker: None, is_official: true };

impl Protocol {
    /// What the rows of it are called.
    fn way(&self, use_server_proxy: bool) -> String {
        format!("{}, {}", self.name, if use_server_proxy { "through the server" } else { "direct" })
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let effort = if arguments.iter().any(|argument| argument == "--quick") { &QUICK } else { &FULL };
    let only = arguments.iter().skip_while(|argument| *argument != "--only").nth(1).map_or("", String::as_str);
    let server = RealServer::start().expect("the real server starts");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let mut table = Table::default();
    runtime.block_on(async {
        let config = json!({ "host": server.socket(), "use_docker_config": false });
        let docker = DockerProvider::new(from_json(config, "settings").expect("good settings")).expect("docker");
        let place = Place { provider: &docker, spec: SandboxSpec::image(BASE_IMAGE) };
        let handle = place.create().await;
        let peer = Side { provider: &docker, handle: handle.clone() };
        for protocol in [NATIVE, API] {
            for use_server_proxy in [false, true] {
                if protocol.way(use_server_proxy).contains(only) {
                    measure(&server, &peer, &protocol, use_server_proxy, effort, &mut table).await;
                }
            }
        }
        place.close(&handle).await;
        docker.aclose().await.expect("it ends");
    });
    println!("{table}");
}

/// A provider, and its sandbox.
struct Side<'a> {
    provider: &'a dyn SandboxProvider,
    handle: SandboxHandle,
}

impl Side<'_> {
    async fn exec_many(&self, at_once: usize, count: usize) -> (Vec<Duration>, Duration) {
        exec_many(self.provider, &self.handle, at_once, count).await
    }

    async fn lines(&self, count: usize) -> Duration {
        let begin = Instant::now();
        let request = ExecRequest::argv(["seq", &count.to_string()]);
        let stream = self.provider.exec(&self.handle, request).await.expect("it starts");
        let result = stream.collect(CaptureLimits::default()).await.expect("it ends");
        let took = begin.elapsed();
        assert_eq!(result.stdout.iter().filter(|byte| **byte == b'\n').count(), count);
        took
    }
}

/// What each side has taken.
#[derive(Default)]
struct Sides {
    ours: Measured,
    docker: Measured,
    official: Measured,
}

async fn measure(
    server: &RealServer,
    docker: &Side<'_>,
    protocol: &Protocol,
    use_server_proxy: bool,
    effort: &Effort,
    table: &mut Table,
) {
    let config = json!({
        "connection": {
            "domain": server.address,
            "api_key": server.key,
            "use_server_proxy": use_server_proxy,
            "max_connections": CONNECTIONS,
            "max_keepalive_connections": CONNECTIONS,
        },
        "operations": { "native": protocol.native },
    });
    let provider = OpenSandboxProvider::new(from_json(config, "settings").expect("good settings")).expect("ours");
    let place = Place { provider: &provider, spec: SandboxSpec::image(BASE_IMAGE) };
    let ours = Side { provider: &provider, handle: place.create().await };
    let connect = || Official::connect(server, &ours.handle.sandbox_id, use_server_proxy, CONNECTIONS);
    let mut official = protocol.is_official.then(connect);
    let way = protocol.way(use_server_proxy);
    let of_docker = || protocol.of_docker.map_or(Goal::None, Goal::AtMost);
    for (at_once, count, rounds) in effort.levels.iter().copied() {
        let mut sides = Sides::default();
        // The first round makes connections, and is not counted.
        for round in 0..=rounds {
            let mut one_of_official = || official.as_mut().map(|official| official.exec_many(at_once, count));
            // Who comes first takes turns.
            let first = if round % 2 == 0 { None } else { one_of_official() };
            let (our_round, its_round) = (ours.exec_many(at_once, count).await, docker.exec_many(at_once, count).await);
            let times = (our_round, its_round, first.or_else(one_of_official));
            if round > 0 {
                sides.add(times);
            }
        }
        sides.rows(&format!("exec, {at_once} at once, {way}"), of_docker(), table);
    }
    let mut sides = Sides::default();
    for round in 0..=effort.lines_rounds {
        let one = |time: Duration| (vec![time], time);
        let times = (
            one(ours.lines(LINES).await),
            one(docker.lines(LINES).await),
            official.as_mut().map(|official| one(official.lines(LINES))),
        );
        if round > 0 {
            sides.add(times);
        }
    }
    sides.rows(&format!("{LINES} lines of output, {way}"), of_docker(), table);
    drop(official);
    place.close(&ours.handle).await;
    provider.aclose().await.expect("it ends");
}

type Round = (Vec<Duration>, Duration);

impl Sides {
    fn add(&mut self, (ours, docker, official): (Round, Round, Option<Round>)) {
        self.ours.add(ours);
        self.docker.add(docker);
        if let Some(official) = official {
            self.official.add(official);
        }
    }

    /// Beside the docker provider, and beside the official client where it took part: no slower than that.
    fn rows(&mut self, what: &str, of_docker: Goal, table: &mut Table) {
        let figure = self.ours.shown();
        let docker = format!("docker provider {}", self.docker.shown());
        let ratio = self.ours.p50() / self.docker.p50();
        table.row(&format!("{what}: p50"), &figure, docker, ratio, " ×", of_docker);
        if !self.official.is_empty() {
            let official = format!("official client {}", self.official.shown());
            let ratio = self.ours.p50() / self.official.p50();
            table.row(&format!("{what}: p50"), &figure, &official, ratio, " ×", Goal::AtMost(1.0));
            let ratio = self.ours.p99() / self.official.p99();
            table.row(&format!("{what}: p99"), &figure, &official, ratio, " ×", Goal::None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbox_benches::{Goal, Table};

    use super::{Round, Sides};

    fn round(ms: u64) -> Round {
        (vec![Duration::from_millis(ms); 3], Duration::from_millis(3 * ms))
    }

    #[test]
    fn each_peer_has_a_row_with_its_goal_and_what_is_slower_has_not_reached_it() {
        let (mut sides, mut table) = (Sides::default(), Table::default());
        sides.add((round(4), round(2), Some(round(5))));
        sides.rows("one", Goal::AtMost(2.0), &mut table);
        let mut slower = Sides::default();
        slower.add((round(6), round(2), Some(round(5))));
        slower.rows("two", Goal::AtMost(2.0), &mut table);
        let mut alone = Sides::default();
        alone.add((round(6), round(2), None));
        alone.rows("three", Goal::None, &mut table);
        let table = table.to_string();
        let verdicts: Vec<&str> =
            table.lines().skip(2).map(|row| row.trim_end_matches(" |").rsplit(" | ").next().unwrap().trim()).collect();
        assert_eq!(verdicts, ["reached", "reached", "", "not reached", "not reached", "", ""], "{table}");
        assert!(table.contains("official client 5.00 ms, p99 5.00 ms, 200/s"), "{table}");
    }
}
