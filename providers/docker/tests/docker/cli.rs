//! The program, each command a process of its own.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use sandbox_core::{SandboxProvider, serde_json::json};

use crate::{
    engine,
    support::{Docker, by_hand, docker, spec},
};

/// The program, with nothing of this process's configuration, on the tests' engine.
fn sandboxctl(docker: &Docker, arguments: &[&str]) -> Command {
    let providers = engine::agent().parent().unwrap().to_owned();
    let program: PathBuf = providers.with_file_name("sandboxctl");
    assert!(program.is_file(), "{} is missing: cargo xtask run -- version", program.display());
    let place = docker.temp.path();
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin").current_dir(place).stdin(Stdio::null());
    command.env("HOME", place).env("XDG_STATE_HOME", place.join("state")).env("SANDBOX_PROVIDER_DIR", providers);
    for (key, value) in [("HOST", engine::host()), ("RUN_DIR", place.join("run").display().to_string())] {
        command.env(format!("SANDBOX_PROVIDER__DOCKER__{key}"), value);
    }
    command
}

/// What it writes, when it ends with this code.
fn ctl(docker: &Docker, code: i32, arguments: &[&str]) -> String {
    let output = sandboxctl(docker, arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_docker_sandbox_is_made_used_and_stopped_by_different_processes() {
    let docker = docker(json!({}));
    let ok = |arguments: &[&str]| ctl(&docker, 0, arguments);
    // One static program and no shell.
    assert_eq!(ok(&["create", "--provider", "docker", "--name", "bare", "--ttl", "10m", engine::STATIC]), "bare");
    assert_eq!(
        ok(&["create", "--provider", "docker", "--name", "box", "--ttl", "10m", "-e", "A=b", engine::BUSYBOX]),
        "box"
    );
    assert_eq!(ok(&["exec", "box", "--", "sh", "-c", "echo $A > /f; cat /f"]), "b");
    assert_eq!(ctl(&docker, 7, &["exec", "box", "--", "sh", "-c", "exit 7"]), "");
    std::fs::write(docker.temp.path().join("local"), b"bytes\0").unwrap();
    for name in ["bare", "box"] {
        ok(&["cp", "local", &format!("{name}:/copied")]);
        ok(&["cp", &format!("{name}:/copied"), &format!("back-{name}")]);
        assert_eq!(std::fs::read(docker.temp.path().join(format!("back-{name}"))).unwrap(), b"bytes\0");
        assert!(ok(&["status", name, "-o", "json"]).contains("running"));
        ok(&["stats", name]);
        ok(&["renew", name, "20m"]);
        ok(&["pause", name]);
        ok(&["resume", name]);
    }
    assert_eq!(ctl(&docker, 127, &["exec", "bare", "--", "/no-such-program"]), "");
    let job = ok(&["exec", "-d", "box", "--", "sh", "-c", "echo from a job; exit 5"]);
    assert_eq!(ctl(&docker, 5, &["wait", "box", "--job", &job]), "");
    assert_eq!(ok(&["logs", "box", "--job", &job]), "from a job");
    let mut names: Vec<_> = ok(&["ls", "-q"]).lines().map(str::to_owned).collect();
    names.sort();
    assert_eq!(names, ["bare", "box"]);
    for name in &names {
        ok(&["stop", name]);
    }
    assert_eq!(ok(&["ls", "-q"]), "");
    docker.ensure_no_folders();
}

/// Where the child below finds what it needs.
const CHILD: &str = "SANDBOX_TEST_CLI_CHILD";
const SANDBOXES: usize = 20;

/// Runs as another process, for the test below: makes sandboxes and waits to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_to_be_killed() {
    let Ok(run_dir) = std::env::var(CHILD) else { return };
    let settings = engine::settings(json!({ "run_dir": run_dir }));
    let config = sandbox_core::from_json(settings, "settings").unwrap();
    let provider = std::sync::Arc::new(sandbox_provider_docker::DockerProvider::new(config).unwrap());
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..SANDBOXES {
        let provider = provider.clone();
        let spec = spec().with_metadata("killed-by-gc", std::process::id().to_string());
        all.spawn(async move { provider.create(spec).await.unwrap() });
    }
    all.join_all().await;
    println!("made all");
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn c01_gc_removes_what_a_killed_client_left_and_nothing_of_a_live_one() {
    let docker = docker(json!({}));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cli::a_client_that_waits_to_be_killed", "--nocapture"])
        .env(CHILD, docker.temp.path().join("run"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let own = docker.create(spec().with_metadata("killed-by-gc", pid.as_str())).await;
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let made = tokio::task::spawn_blocking(move || lines.any(|line| line.is_ok_and(|line| line == "made all")));
    assert!(made.await.unwrap(), "the child did not make its sandboxes");
    let label = format!("killed-by-gc={pid}");
    let gc = |more: &[&str]| ctl(&docker, 0, &[&["gc", "--provider", "docker", "--label", &label], more].concat());
    assert_eq!(gc(&[]), "", "all of them have a living owner");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(gc(&["--dry-run"]).lines().count(), SANDBOXES);
    assert_eq!(gc(&[]).lines().filter(|line| line.starts_with("removed docker ")).count(), SANDBOXES);
    let left = by_hand(["ps", "--all", "--format", "{{.Names}}", "--filter", &format!("label={label}")]);
    assert_eq!(left, own.sandbox_id, "more or less than the live one's own is left");
    assert_eq!(docker.text(&own, "echo lives").await, "lives");
    docker.provider.close(&own).await.unwrap();
    docker.ensure_no_folders();
}
