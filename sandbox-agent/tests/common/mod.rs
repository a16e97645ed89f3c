//! Launches sandboxes for tests, as root and as an unprivileged user, and sees to it that nothing is left.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, process};

use sandbox_agent::{LaunchConfig, LaunchError, Launched, Launcher, Network, Prepared, Workdir};
use tempfile::TempDir;

pub(crate) const NOBODY: u32 = 65534;
pub(crate) const AGENT: &str = env!("CARGO_BIN_EXE_sandbox-agent");
static SERIAL: AtomicUsize = AtomicUsize::new(0);

/// Who starts the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Root,
    /// Root, whose launcher has made all that it can before it knows the configuration.
    RootAhead,
    Nobody,
}

pub(crate) const CALLERS: [Caller; 3] = [Caller::Root, Caller::RootAhead, Caller::Nobody];

/// A place for one test's sandboxes. Dropping it checks that nothing is left.
pub(crate) struct Bench {
    pub(crate) caller: Caller,
    pub(crate) folder: TempDir,
    marker: String,
    cgroups: std::cell::RefCell<Vec<PathBuf>>,
}

/// What a sandbox said, and how its PID 1 ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) code: i32,
    pub(crate) report: sandbox_agent::Report,
}

impl Bench {
    pub(crate) fn new(caller: Caller) -> Bench {
        assert!(rustix::process::geteuid().is_root(), "these tests run as root: they need a second user");
        let folder = tempfile::Builder::new().prefix("sandbox-agent-test-").tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let marker = format!("canary-{}-{}", process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let bench = Bench { caller, folder, marker, cgroups: Default::default() };
        let workdir = bench.workdir();
        fs::create_dir(&workdir).unwrap();
        bench.give(&workdir);
        bench
    }

    pub(crate) fn workdir(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Lets the caller of the launcher own a path.
    pub(crate) fn give(&self, path: &Path) {
        if self.caller == Caller::Nobody {
            std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    pub(crate) fn marker(&self) -> &str {
        &self.marker
    }

    /// A kept sandbox with the workdir.
    pub(crate) fn config(&self) -> LaunchConfig {
        let workdir = Workdir { source: self.workdir(), target: "/workspace".into(), chown: true };
        let mut config =
            LaunchConfig { workdir: Some(workdir), die_with_parent: Some(process::id()), ..LaunchConfig::default() };
        config.env.0 = BTreeMap::from([("MARKER".to_owned(), self.marker.clone())]);
        config
    }

    /// A process that waits for its configuration, which is to be this one.
    pub(crate) fn prepare(&self, config: &LaunchConfig, socket: OwnedFd) -> Result<Prepared, LaunchError> {
        if self.caller == Caller::RootAhead {
            return Launcher::new(AGENT).prepare_ahead(&config.basis(), socket);
        }
        let mut command = Command::new(AGENT);
        if self.caller == Caller::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        Launcher::new(AGENT).prepare_as(command, socket)
    }

    pub(crate) fn launch(&self, config: &LaunchConfig, socket: OwnedFd) -> Result<Launched, LaunchError> {
        let launched = self.prepare(config, socket)?.launch(config)?;
        if let Some(cgroup) = &launched.report().cgroup {
            self.cgroups.borrow_mut().extend(cgroup.folders().cloned());
        }
        Ok(launched)
    }

    /// Runs a program as PID 1 and returns what it wrote.
    pub(crate) fn run(&self, mut config: LaunchConfig, argv: &[&str]) -> Said {
        config.init = Some(argv.iter().map(|word| (*word).to_owned()).collect());
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut launched = self.launch(&config, theirs.into()).unwrap_or_else(|error| panic!("{error:?}"));
        let mut bytes = Vec::new();
        ours.read_to_end(&mut bytes).unwrap();
        let code = launched.wait().unwrap().expect("the sandbox has a keeper");
        Said { text: String::from_utf8(bytes).unwrap(), code, report: launched.report().clone() }
    }

    pub(crate) fn sh(&self, script: &str) -> Said {
        self.run(self.config(), &["/bin/sh", "-c", script])
    }

    /// Runs the intruder inside and returns each attempt's answer.
    pub(crate) fn intrude(&self, config: LaunchConfig, attempts: &[String]) -> BTreeMap<String, String> {
        let inside = self.workdir().join("intruder");
        if !inside.exists() {
            fs::copy(intruder(), &inside).unwrap();
        }
        // PID 1 is immune to signals, so the intruder is its child.
        let mut argv = vec!["/bin/sh", "-c", "\"$0\" \"$@\"; exit $?", "/workspace/intruder"];
        argv.extend(attempts.iter().map(String::as_str));
        let said = self.run(config, &argv);
        assert_eq!(said.code, 0, "{}", said.text);
        answers(&said.text)
    }
}

/// The program that tries what must fail. `cargo test` builds it; `cargo test --test …` does not.
pub(crate) fn intruder() -> PathBuf {
    let path = Path::new(AGENT).parent().unwrap().join("examples/intruder");
    assert!(path.exists(), "run `cargo build -p sandbox-agent --examples` first");
    path
}

/// Runs the intruder outside: the control that shows that an attempt can succeed.
pub(crate) fn intrude_outside(attempts: &[String]) -> BTreeMap<String, String> {
    let output = Command::new(intruder()).args(attempts).output().unwrap();
    answers(&String::from_utf8(output.stdout).unwrap())
}

fn answers(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.rsplit_once('='));
    pairs.map(|(attempt, answer)| (attempt.to_owned(), answer.to_owned())).collect()
}

pub(crate) fn host_network(mut config: LaunchConfig) -> LaunchConfig {
    config.network = Network::Host;
    config
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let folder = self.folder.path().to_str().unwrap().to_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&folder), "a mount is left");
        assert_eq!(marked(&self.marker), Vec::<PathBuf>::new(), "a process is left");
        for cgroup in self.cgroups.borrow().iter() {
            assert!(!cgroup.exists(), "{} is left", cgroup.display());
        }
    }
}

/// Every process whose environment or arguments hold `marker`.
pub(crate) fn marked(marker: &str) -> Vec<PathBuf> {
    let holds = |path: &PathBuf| {
        ["environ", "cmdline"].iter().any(|file| {
            let text = fs::read(path.join(file)).unwrap_or_default();
            text.windows(marker.len()).any(|window| window == marker.as_bytes())
        })
    };
    let own = PathBuf::from(format!("/proc/{}", process::id()));
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    all.filter(|path| *path != own && holds(path)).collect()
}
