//! `sandboxctl compose up -d` on real backends: every other command is another process.
//!
//! Docker's needs an engine of its own: `cargo xtask engine -- cargo nextest run -p sandbox-cli`.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use crate::common::{bare, products};
use serde_json::Value;

const STACK: &str = r#"
services:
  web:
    IMAGE
    command: [sh, -c, "mkdir -p /tmp/w && echo $$ROW > /tmp/w/row && echo serving && exec busybox httpd -f -p 8080 -h /tmp/w"]
    environment: {ROW: a row}
    ports: ["8080"]
    volumes: ["data:/data"]
    stop_grace_period: 2s
    healthcheck: {test: "busybox wget -qO- http://127.0.0.1:8080/row", interval: 200ms, retries: 50}
volumes: {data: }
"#;

#[derive(Clone, Copy)]
enum Kind {
    Docker,
    Local,
}

struct Place {
    kind: Kind,
    folder: tempfile::TempDir,
}

impl Place {
    fn new(kind: Kind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = match kind {
            Kind::Docker => "image: sandbox-test/busybox:1",
            Kind::Local => "labels: {on: local}",
        };
        std::fs::write(folder.path().join("compose.yaml"), STACK.replace("IMAGE", image)).unwrap();
        let settings = match kind {
            Kind::Docker => format!(
                "[providers.docker]\nhost = \"{}\"\npull = \"never\"\nuse_docker_config = false\nrun_dir = \"{}\"\n",
                engine(),
                folder.path().join("run").display()
            ),
            Kind::Local => {
                format!("[providers.local]\nworkspace_root = \"{}\"\n", folder.path().join("root").display())
            }
        };
        std::fs::write(folder.path().join("sandbox.toml"), settings).unwrap();
        Self { kind, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn provider(&self) -> &'static str {
        match self.kind {
            Kind::Docker => "docker",
            Kind::Local => "local",
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(args);
        // The plugins and the static agent, as they are shipped.
        let plugins = products().join("providers");
        assert!(plugins.is_dir(), "{} is missing: cargo xtask build-plugins", plugins.display());
        command.env("SANDBOX_PROVIDER_DIR", plugins).env("SANDBOX_CONFIG_PATH", self.path("sandbox.toml"));
        command.env("XDG_STATE_HOME", self.path("state")).current_dir(self.folder.path());
        command
    }

    fn compose(&self, args: &[&str]) -> Output {
        let all: Vec<&str> =
            ["compose", "--provider", self.provider(), "-p", "bg"].into_iter().chain(args.iter().copied()).collect();
        self.command(&all).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        ok(args, self.compose(args))
    }

    fn running(&self) -> Value {
        let text = std::fs::read(self.path("state/sandboxctl/compose/bg/running.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// What the provider has of this stack: sandboxes, networks, volumes.
    fn left(&self, id: &str) -> Vec<String> {
        match self.kind {
            Kind::Docker => {
                let of = |arguments: &[&str]| {
                    let mut docker = Command::new("docker");
                    docker.args(["--host", &engine()]).args(arguments);
                    let output = docker.args(["--filter", &format!("label=sandbox.compose.id={id}")]).output().unwrap();
                    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
                };
                [&["ps", "-aq"][..], &["network", "ls", "-q"], &["volume", "ls", "-q"]]
                    .iter()
                    .flat_map(|one| of(one))
                    .collect()
            }
            Kind::Local => files_with(&self.path("root"), id),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A test that fails leaves no process behind.
        let _ = self.compose(&["down", "--timeout", "20s"]);
    }
}

/// Files below a folder whose name or contents have a text: local keeps all it has there.
fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        let is_named = entry.file_name().to_string_lossy().contains(text);
        let holds =
            || std::fs::read(&path).is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()));
        if is_named || (kind.is_file() && holds()) {
            found.push(path.display().to_string());
        } else if kind.is_dir() {
            found.extend(files_with(&path, text));
        }
    }
    found
}

fn engine() -> String {
    std::env::var("SANDBOX_TEST_DOCKER").expect("an engine: cargo xtask engine -- cargo nextest run -p sandbox-cli")
}

fn ok(args: &[&str], output: Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {:?}: {}{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_true() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn now_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

fn kill(pid: u64) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

fn every_command_reaches_the_stack(kind: Kind) {
    let place = Place::new(kind);
    let id = place.ok(&["up", "-d"]).trim().to_owned();
    assert!(id.starts_with("bg-") && !place.left(&id).is_empty(), "{id}");
    let ps: Value = serde_json::from_str(&place.ok(&["ps", "-o", "json"])).unwrap();
    let web = &ps["services"][0];
    assert_eq!((web["phase"].as_str(), web["health"].as_str()), (Some("running"), Some("healthy")), "{ps}");
    eventually("its log", || place.ok(&["logs", "web"]) == "web-1 | serving\n");
    assert_eq!(place.ok(&["exec", "web", "cat", "/tmp/w/row"]), "a row\n");
    std::fs::write(place.path("sent"), "sent").unwrap();
    place.ok(&["cp", "sent", "web:/data/sent"]);
    place.ok(&["cp", "web:/data/sent", "back"]);
    assert_eq!(std::fs::read_to_string(place.path("back")).unwrap(), "sent");
    let endpoint = place.ok(&["port", "web", "8080"]);
    let mut stream = TcpStream::connect(endpoint.trim().split_once("://").unwrap().1).unwrap();
    stream.write_all(b"GET /row HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("a row\n"), "{answer}");
    // It belongs to a lease of an hour, which can be moved.
    let hour = 3_600_000;
    let renewed: Value = serde_json::from_str(&place.ok(&["renew", "--ttl", "2h", "-o", "json"])).unwrap();
    let left = renewed["expires_at_ms"].as_u64().unwrap() - now_ms();
    assert!(left > hour && left <= 2 * hour, "{left}");
    let gc = ok(
        &["gc"],
        place
            .command(&["gc", "--provider", place.provider(), "-l", &format!("sandbox.compose.id={id}")])
            .output()
            .unwrap(),
    );
    assert_eq!(gc, "", "what has a lease stays");
    place.ok(&["down"]);
    assert_eq!(place.left(&id), Vec::<String>::new());
    assert_eq!(place.compose(&["ps"]).status.code(), Some(1));
}

fn the_lease_outlives_the_process_and_ends(kind: Kind) {
    let place = Place::new(kind);
    // Stopped by another process after the one in the background was killed.
    let id = place.ok(&["up", "-d"]).trim().to_owned();
    let all = place.left(&id).len();
    kill(place.running()["pid"].as_u64().unwrap());
    let gc = |place: &Place, id: &str| {
        let label = format!("sandbox.compose.id={id}");
        place.command(&["gc", "--provider", place.provider(), "-l", &label]).output().unwrap()
    };
    ok(&["gc"], gc(&place, &id));
    assert_eq!(place.left(&id).len(), all, "a lease that is not over");
    assert_eq!(place.ok(&["exec", "web", "cat", "/data/../tmp/w/row"]), "a row\n");
    // Its programs run on: their sandboxes keep them, and what they write.
    assert_eq!(place.ok(&["exec", "web", "busybox", "wget", "-qO-", "http://127.0.0.1:8080/row"]), "a row\n");
    let ps: Value = serde_json::from_str(&place.ok(&["ps", "-o", "json"])).unwrap();
    assert_eq!(ps["services"][0]["phase"], "running", "{ps}");
    assert_eq!(place.ok(&["logs", "web"]), "web-1 | serving\n");
    place.ok(&["down"]);
    assert_eq!(place.left(&id), Vec::<String>::new());
    // Over without anybody: swept as a whole.
    let id = place.ok(&["up", "-d", "--ttl", "15s"]).trim().to_owned();
    kill(place.running()["pid"].as_u64().unwrap());
    eventually("a lease that is over", || {
        // A sandbox that ends itself at this moment is for the next call.
        let _ = gc(&place, &id);
        place.left(&id).is_empty()
    });
}

#[test]
fn every_command_reaches_a_stack_in_the_background_on_docker() {
    every_command_reaches_the_stack(Kind::Docker);
}

#[test]
fn every_command_reaches_a_stack_in_the_background_on_local() {
    every_command_reaches_the_stack(Kind::Local);
}

#[test]
fn the_lease_of_a_stack_outlives_its_process_and_ends_on_docker() {
    the_lease_outlives_the_process_and_ends(Kind::Docker);
}

#[test]
fn the_lease_of_a_stack_outlives_its_process_and_ends_on_local() {
    the_lease_outlives_the_process_and_ends(Kind::Local);
}
