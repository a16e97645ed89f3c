//! Who ends a sandbox, and what is left when something fails.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{AGENT, Bench, CALLERS, Caller};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use sandbox_agent::{CgroupConfig, LaunchConfig, Launcher, Limits, Stage};

const SOON: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Blocks until it is killed, and says when it runs.
const BLOCK: &str = "mkfifo /tmp/f; echo up; read x < /tmp/f";

fn open(pid: u32) -> std::os::fd::OwnedFd {
    rustix::process::pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap()
}

fn ends(process: &std::os::fd::OwnedFd) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&SOON)).unwrap() == 1
}

fn is_alive(process: &std::os::fd::OwnedFd) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&Timespec::default())).unwrap() == 0
}

fn blocking(bench: &Bench) -> LaunchConfig {
    LaunchConfig { init: Some(vec!["/bin/sh".into(), "-c".into(), BLOCK.into()]), ..bench.config() }
}

/// A provider in a process of its own, when the tests below ask for one: launches, says the pid, and waits to be killed.
#[test]
fn a_provider_of_its_own() {
    let Ok(config) = std::env::var("PROVIDER_CONFIG") else { return };
    let mut config: LaunchConfig = serde_json::from_str(&config).unwrap();
    config.die_with_parent = config.die_with_parent.map(|_| std::process::id());
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut launched = Launcher::new(AGENT).launch(&config, theirs.into()).unwrap();
    let mut line = String::new();
    BufReader::new(ours).read_line(&mut line).unwrap();
    if std::env::var_os("PROVIDER_COMMITS").is_some() {
        launched.commit().unwrap();
    }
    println!("PID {}", launched.report().pid);
    std::io::stdin().read_to_string(&mut line).unwrap();
}

fn provider(config: &LaunchConfig, caller: Caller) -> (std::process::Child, std::os::fd::OwnedFd) {
    provider_with(config, caller, &[])
}

fn provider_with(
    config: &LaunchConfig,
    caller: Caller,
    variables: &[(&str, &str)],
) -> (std::process::Child, std::os::fd::OwnedFd) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_provider_of_its_own", "--nocapture"]);
    command.env("PROVIDER_CONFIG", serde_json::to_string(config).unwrap()).env_remove("MARKER");
    command.envs(variables.iter().copied());
    if caller == Caller::Nobody {
        use std::os::unix::process::CommandExt;
        command.uid(common::NOBODY).gid(common::NOBODY);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pid = lines.map_while(Result::ok).find_map(|line| line.split("PID ").nth(1)?.trim().parse().ok());
    (child, open(pid.expect("the provider has launched")))
}

#[test]
fn a_kept_sandbox_ends_when_its_provider_is_killed() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let (mut provider, process) = provider(&blocking(&bench), caller);
        assert!(is_alive(&process));
        provider.kill().unwrap();
        provider.wait().unwrap();
        assert!(ends(&process), "{caller:?}");
    }
}

#[test]
fn a_detached_sandbox_outlives_its_provider() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let config = LaunchConfig { die_with_parent: None, ..blocking(&bench) };
        let (mut provider, process) = provider(&config, caller);
        provider.kill().unwrap();
        provider.wait().unwrap();
        assert!(is_alive(&process), "{caller:?}");
        rustix::process::pidfd_send_signal(&process, Signal::KILL).unwrap();
        assert!(ends(&process), "{caller:?}");
    }
}

/// Folders of cgroups of this name.
fn cgroups(name: &str) -> String {
    let found = Command::new("/usr/bin/find").args(["/sys/fs/cgroup", "-name", name]).output().unwrap();
    String::from_utf8_lossy(&found.stdout).into_owned()
}

#[test]
fn a_sandbox_that_is_to_outlive_its_provider_does_so_from_the_moment_it_is_committed() {
    for caller in CALLERS {
        for commits in [false, true] {
            let bench = Bench::new(caller);
            let mut config = LaunchConfig { die_with_parent: None, outlives_parent: true, ..blocking(&bench) };
            let name = format!("sandbox-test-commit-{}-{commits}", bench.marker());
            if caller != Caller::Nobody && sandbox_agent::probe().version.is_some() {
                config.cgroup = Some(CgroupConfig { name: name.clone(), limits: Limits::default() });
            }
            let variables: &[_] = if commits { &[("PROVIDER_COMMITS", "1")] } else { &[] };
            let (mut provider, process) = provider_with(&config, caller, variables);
            provider.kill().unwrap();
            provider.wait().unwrap();
            if commits {
                assert!(is_alive(&process), "{caller:?}");
                rustix::process::pidfd_send_signal(&process, Signal::KILL).unwrap();
            }
            assert!(ends(&process), "{caller:?}");
            let until = Instant::now() + Duration::from_secs(10);
            while !cgroups(&name).is_empty() {
                assert!(Instant::now() < until, "its keeper leaves the cgroup: {}", cgroups(&name));
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[test]
fn a_sandbox_does_not_end_with_the_thread_that_launched_it() {
    let bench = Bench::new(Caller::Root);
    let config = blocking(&bench);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut launched = std::thread::scope(|scope| scope.spawn(|| bench_launch(&config, theirs)).join().unwrap());
    let mut line = String::new();
    BufReader::new(ours).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    assert!(is_alive(&launched.pidfd().try_clone_to_owned().unwrap()));
    launched.kill().unwrap();
    assert_eq!(launched.wait().unwrap(), Some(128 + 9));
    drop(bench);
}

fn bench_launch(config: &LaunchConfig, socket: UnixStream) -> sandbox_agent::Launched {
    Launcher::new(AGENT).launch(config, socket.into()).unwrap()
}

#[test]
fn a_sandbox_ends_when_its_keeper_is_killed() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let mut launched = bench.launch(&blocking(&bench), theirs.into()).unwrap();
        let process = launched.pidfd().try_clone_to_owned().unwrap();
        let keeper = parent(launched.report().pid);
        rustix::process::pidfd_send_signal(open(keeper), Signal::KILL).unwrap();
        assert!(ends(&process), "{caller:?}");
        assert_eq!(launched.wait().unwrap(), None);
    }
}

#[test]
fn a_parent_that_is_not_the_parent_is_refused() {
    let bench = Bench::new(Caller::Root);
    for pid in [1, std::os::unix::process::parent_id()] {
        let config = LaunchConfig { die_with_parent: Some(pid), ..blocking(&bench) };
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let error = bench.launch(&config, theirs.into()).expect_err("only the parent can be watched without a race");
        assert_eq!(error.stage(), Stage::Config);
    }
}

#[test]
fn everything_ends_with_pid_1() {
    for caller in CALLERS {
        // Orphans in sessions of their own; the bench looks for what carries its marker.
        let said = Bench::new(caller).sh("setsid sh -c '(sleep 1000 & sleep 1000 &) ' >/dev/null 2>&1; echo gone");
        assert_eq!(said.text, "gone\n");
    }
}

#[test]
fn a_launch_that_fails_late_leaves_nothing() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let mut config = bench.config();
        config.init = Some(vec!["/no/such/program".into()]);
        let name = format!("sandbox-test-late-{}", bench.marker());
        if caller != Caller::Nobody {
            config.cgroup = Some(CgroupConfig { name: name.clone(), limits: Limits::default() });
        }
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let error = bench.launch(&config, theirs.into()).expect_err("there is no such program");
        assert_eq!((error.stage(), error.errno()), (Stage::Exec, Some(libc::ENOENT)), "{error:?}");
        assert_eq!(ours.read(&mut [0]).unwrap(), 0, "nobody holds the socket");
        let left = Command::new("/usr/bin/find").args(["/sys/fs/cgroup", "-name", &name]).output().unwrap();
        assert!(left.stdout.is_empty(), "{}", String::from_utf8_lossy(&left.stdout));
    }
}

#[test]
fn a_configuration_that_is_not_understood_is_a_typed_error() {
    let bench = Bench::new(Caller::Root);
    let mut config = bench.config();
    config.workdir.as_mut().unwrap().source = "/no/such/folder".into();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let error = bench.launch(&config, theirs.into()).expect_err("there is no such folder");
    assert_eq!((error.stage(), error.errno()), (Stage::Source, Some(libc::ENOENT)));
    assert_eq!(error.path(), Some(std::path::Path::new("/no/such/folder")));
}

/// The parent of a process.
fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_launcher_that_is_killed_is_replaced_and_its_sandboxes_live() {
    let bench = Bench::new(Caller::Root);
    let launcher = Launcher::new(AGENT);
    let launch = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (launcher.launch(&blocking(&bench), theirs.into()).unwrap(), ours)
    };
    let (mut first, _first) = launch();
    let keeper = parent(first.report().pid);
    let host = parent(keeper);
    assert_eq!(parent(host), std::process::id());
    rustix::process::pidfd_send_signal(open(host), Signal::KILL).unwrap();
    let (mut second, _second) = launch();
    assert_ne!(parent(parent(second.report().pid)), host);
    for launched in [&mut first, &mut second] {
        assert!(is_alive(&launched.pidfd().try_clone_to_owned().unwrap()));
        launched.kill().unwrap();
        assert_eq!(launched.wait().unwrap(), Some(128 + 9));
    }
}

#[test]
fn a_launcher_ends_with_its_last_sandbox_and_leaves_no_zombie() {
    let bench = Bench::new(Caller::Root);
    let launcher = Launcher::new(AGENT);
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let mut launched = launcher.launch(&blocking(&bench), theirs.into()).unwrap();
    let host = open(parent(parent(launched.report().pid)));
    drop(launcher);
    assert!(is_alive(&host));
    launched.kill().unwrap();
    launched.wait().unwrap();
    drop(launched);
    assert!(!is_alive(&host));
    let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).unwrap();
    assert_eq!(children, "");
}

#[test]
fn a_launcher_that_is_killed_at_any_moment_takes_everything_with_it() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let config = blocking(&bench);
        for round in 0..40_u64 {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let prepared = bench.prepare(&config, theirs.into()).unwrap();
            let process = prepared.pidfd().unwrap().try_clone_to_owned().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| drop(prepared.launch(&config)));
                // The moment is what is varied, not waited for.
                let until = Instant::now() + Duration::from_micros(round * 200);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                rustix::process::pidfd_send_signal(&process, Signal::KILL).unwrap();
            });
            ours.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let mut said = Vec::new();
            ours.read_to_end(&mut said).unwrap_or_else(|error| panic!("{caller:?}, round {round}: {error}"));
        }
    }
}
