//! An engine of one test's own, without a bridge.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use sandbox_core::{
    from_json,
    serde_json::{Value, json},
};
use sandbox_provider_docker::DockerProvider;

use crate::{engine, support::eventually};

/// How long it may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Dockerd {
    process: Child,
    folder: PathBuf,
    /// Killed: what runs in it is the next one's.
    is_killed: bool,
}

impl Dockerd {
    /// With its socket in this folder, and what else it is told.
    pub(crate) async fn start(folder: &Path, more: &[String]) -> Self {
        let dockerd = Command::new("dockerd");
        Self::start_by(dockerd, folder, more).await
    }

    /// The same by another command, to which the words of dockerd are added.
    pub(crate) async fn start_by(mut command: Command, folder: &Path, more: &[String]) -> Self {
        let path = |name: &str| folder.join(name).display().to_string();
        std::fs::write(folder.join("daemon.json"), "{}").unwrap();
        let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        let process = command
            .args(["--host", &address(folder), "--bridge", "none", "--log-level", "warn"])
            .args(["--iptables=false", "--ip-forward=false", "--ip-masq=false", "--config-file", &path("daemon.json")])
            .args(["--data-root", &path("data"), "--exec-root", &path("exec"), "--pidfile", &path("pid")])
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("dockerd is missing: cargo xtask engine");
        let mut started = Self { process, folder: folder.to_owned(), is_killed: false };
        let answers = async || {
            let log = || std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(started.process.try_wait().unwrap().is_none(), "dockerd ended: {}", log());
            by_hand(folder, &["version"]).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
        };
        eventually("dockerd does not answer", answers).await;
        started
    }

    /// Ends it, and with it what runs in it.
    pub(crate) fn stop(&mut self) {
        if matches!(self.process.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        let end = Instant::now() + STOP_LIMIT;
        while self.process.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Ends it without a word; what runs in it goes on.
    pub(crate) fn kill(mut self) {
        self.is_killed = true;
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        // The next one finds their places free: containerd goes with it, and is waited for by nobody here.
        for name in ["pid", "exec/containerd/containerd.pid"] {
            let _ = std::fs::remove_file(self.folder.join(name));
        }
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        self.stop();
        if !self.is_killed {
            forgotten(&self.folder);
        }
    }
}

/// Ends and unmounts what an engine that was killed in the middle of something has lost sight of.
fn forgotten(folder: &Path) {
    let folder = format!("{}/", folder.display());
    let pids = || std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_shim = |process: &PathBuf| {
        let command = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        command.contains("containerd-shim") && command.contains(&folder)
    };
    let number = |process: &PathBuf| process.file_name().unwrap().to_string_lossy().into_owned();
    for shim in pids().filter(is_shim) {
        let is_child = |process: &PathBuf| {
            let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)) == Some(&number(&shim))
        };
        for process in pids().filter(is_child).chain([shim.clone()]) {
            let _ = Command::new("kill").args(["-KILL", &number(&process)]).status();
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().rev().filter_map(|line| line.split_whitespace().nth(4));
    for point in points.filter(|point| point.starts_with(&folder)) {
        let _ = Command::new("umount").args(["--lazy", point]).status();
    }
}

/// Its address.
pub(crate) fn address(folder: &Path) -> String {
    format!("unix://{}", folder.join("d.sock").display())
}

/// The docker command on it.
pub(crate) fn by_hand(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("docker");
    command.args(["--host", &address(folder)]).args(arguments).stdin(Stdio::null());
    command
}

/// Brings the image over from the engine of all tests.
pub(crate) fn bring_image(folder: &Path) {
    let archive = folder.join("image.tar").display().to_string();
    let saved =
        Command::new("docker").args(["--host", &engine::host(), "save", "-o", &archive, engine::BUSYBOX]).status();
    assert!(saved.unwrap().success());
    assert!(by_hand(folder, &["load", "--quiet", "-i", &archive]).stdout(Stdio::null()).status().unwrap().success());
}

/// A provider with these settings, for an engine without a bridge.
pub(crate) fn provider(folder: &Path, mut settings: Value) -> DockerProvider {
    let run_dir = folder.join("run");
    let defaults = json!({
        "host": address(folder), "run_dir": run_dir, "network": "none",
        "use_docker_config": false,
    });
    if settings.get("agent") != Some(&json!("off")) {
        settings["agent_path"] = json!(engine::agent());
    }
    for (key, value) in defaults.as_object().unwrap() {
        settings.as_object_mut().unwrap().entry(key).or_insert_with(|| value.clone());
    }
    DockerProvider::new(from_json(settings, "settings").unwrap()).unwrap()
}
