//! Limits and figures by cgroup.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{Bench, Caller};
use rustix::process::{Pid, Signal};
use sandbox_agent::{Cgroup, CgroupConfig, CgroupErrorKind, LaunchConfig, Launcher, Limit, Limits};

fn limited(bench: &Bench, limits: Limits) -> LaunchConfig {
    let name = format!("sandbox-test-{}", bench.marker());
    // Detached: the cgroup outlives the sandbox, so that its figures can be read.
    LaunchConfig { cgroup: Some(CgroupConfig { name, limits }), die_with_parent: None, ..bench.config() }
}

/// Runs a script and returns its output and the cgroup, which the caller removes.
fn run(bench: &Bench, mut config: LaunchConfig, script: &str) -> (String, Cgroup) {
    std::fs::copy(common::intruder(), bench.workdir().join("intruder")).unwrap();
    config.init = Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec());
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut launched = bench.launch(&config, theirs.into()).unwrap();
    let text = std::io::read_to_string(ours).unwrap();
    launched.wait().unwrap();
    (text, launched.report().cgroup.clone().unwrap())
}

#[test]
fn this_host_honours_every_limit_for_root() {
    let probe = sandbox_agent::probe();
    for limit in [Limit::Memory, Limit::Pids, Limit::Cpu, Limit::Freeze] {
        assert_eq!(probe.refusal(limit), None, "{limit}");
    }
}

#[test]
fn memory_beyond_the_limit_ends_the_process_and_is_counted() {
    let bench = Bench::new(Caller::Root);
    let config = limited(&bench, Limits { memory_bytes: Some(64 << 20), ..Limits::default() });
    let (text, cgroup) = run(&bench, config, "./intruder memory:32; ./intruder memory:256; echo code $?");
    assert_eq!(text, "memory:32=ok\nKilled\ncode 137\n");
    assert_eq!(cgroup.oom_kills().unwrap(), 1);
    assert!(cgroup.metrics().unwrap().memory_peak_bytes.unwrap() <= 64 << 20);
    cgroup.remove().unwrap();
    assert_eq!(cgroup.metrics().unwrap_err().kind(), CgroupErrorKind::Gone);
    cgroup.remove().expect("removing twice is no error");
}

#[test]
fn files_in_memory_count_against_the_limit() {
    let bench = Bench::new(Caller::Root);
    let config = limited(&bench, Limits { memory_bytes: Some(32 << 20), ..Limits::default() });
    let (text, cgroup) = run(&bench, config, "(head -c 200000000 /dev/zero > /tmp/big) 2>/dev/null; echo code $?");
    assert_ne!(text, "code 0\n");
    cgroup.remove().unwrap();
}

#[test]
fn a_fork_loop_stops_at_the_limit() {
    let bench = Bench::new(Caller::Root);
    let config = limited(&bench, Limits { pids: Some(20), ..Limits::default() });
    let (text, cgroup) = run(&bench, config, "./intruder fork:100; ./intruder fork:5");
    // The shell and the intruder are two of the twenty.
    assert_eq!(text, "fork:100=18 started, then 11\nfork:5=ok\n");
    cgroup.remove().unwrap();
}

#[test]
fn cpu_time_is_limited() {
    let bench = Bench::new(Caller::Root);
    let config = limited(&bench, Limits { cpu_millis: Some(100), ..Limits::default() });
    let before = std::time::Instant::now();
    let (text, cgroup) = run(&bench, config, "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; echo done");
    assert_eq!(text, "done\n");
    let used = cgroup.metrics().unwrap().cpu_usec.unwrap();
    let wall = before.elapsed().as_micros() as u64;
    assert!(wall * 2 / 10 + 100_000 >= used, "{used} µs of CPU in {wall} µs at a tenth of a processor");
    cgroup.remove().unwrap();
}

#[test]
fn a_frozen_sandbox_stands_still_goes_on_and_can_be_killed() {
    let bench = Bench::new(Caller::Root);
    let mut config = limited(&bench, Limits::default());
    let script = "while :; do echo tick || exit; done";
    config.init = Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec());
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut launched = bench.launch(&config, theirs.into()).unwrap();
    let cgroup = launched.report().cgroup.clone().unwrap();
    let mut lines = BufReader::new(ours).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "tick");
    cgroup.freeze().unwrap();
    let frozen = cgroup.metrics().unwrap().cpu_usec;
    assert_eq!(cgroup.processes().unwrap(), [launched.report().pid]);
    assert_eq!(cgroup.metrics().unwrap().cpu_usec, frozen);
    cgroup.thaw().unwrap();
    // More than the socket can have held.
    for _ in 0..200_000 {
        lines.next().unwrap().unwrap();
    }
    cgroup.kill().unwrap();
    launched.wait().unwrap();
    cgroup.remove().unwrap();
}

#[test]
fn a_name_that_is_taken_is_refused_and_the_other_cgroup_stays() {
    let name = format!("sandbox-test-taken-{}", std::process::id());
    let first = Cgroup::create(&name, &Limits::default()).unwrap();
    let second = Cgroup::create(&name, &Limits::default()).expect_err("the name is taken");
    assert_eq!(second.kind(), CgroupErrorKind::Exists);
    assert!(first.metrics().is_ok());
    let text = serde_json::to_string(&first).unwrap();
    let from_descriptor: Cgroup = serde_json::from_str(&text).unwrap();
    from_descriptor.remove().unwrap();
    assert!(first.folders().all(|folder| !folder.exists()));
}

#[test]
fn a_kept_sandboxs_cgroup_goes_with_it() {
    let bench = Bench::new(Caller::Root);
    let config = LaunchConfig { die_with_parent: Some(std::process::id()), ..limited(&bench, Limits::default()) };
    let said = bench.run(config, &["/bin/true"]);
    assert!(said.report.cgroup.unwrap().folders().all(|folder| !folder.exists()));
}

#[test]
fn a_cgroup_that_nobody_answers_for_is_taken_and_an_empty_one_of_a_launcher_is_not() {
    let name = format!("sandbox-test-abandoned-{}", std::process::id());
    let sweep = || Cgroup::remove_abandoned(|found| found == name).unwrap();
    let left = Cgroup::create(&name, &Limits::default()).unwrap();
    assert_eq!(sweep(), left.folders().count());
    assert!(left.folders().all(|folder| !folder.exists()));

    let bench = Bench::new(Caller::Root);
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let basis = limited(&bench, Limits::default()).basis().with_cgroup_name(&name);
    let launcher = Launcher::new(common::AGENT).prepare_ahead(&basis, theirs.into()).unwrap();
    let folders: Vec<_> = left.folders().cloned().collect();
    let inside = || std::fs::read_to_string(folders[0].join("cgroup.procs")).unwrap_or_default().trim().to_owned();
    let end = Instant::now() + Duration::from_secs(20);
    while inside().is_empty() {
        assert!(Instant::now() < end, "the launcher makes nothing ahead");
        std::thread::yield_now();
    }
    assert_eq!(sweep(), 0, "there is a process in it");
    let half = Pid::from_raw(inside().parse().unwrap()).unwrap();
    rustix::process::kill_process(half, Signal::KILL).unwrap();
    while !inside().is_empty() {
        assert!(Instant::now() < end, "the half that was made does not end");
        std::thread::yield_now();
    }
    assert_eq!(sweep(), 0, "its launcher waits still");
    // Killed, it removes nothing by itself.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", half.as_raw_pid()));
    let stat = stat.expect("it is not waited for: the launcher waits for what it is to do");
    let parent: i32 = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    rustix::process::kill_process(Pid::from_raw(parent).unwrap(), Signal::KILL).unwrap();
    drop(launcher);
    assert!(folders.iter().all(|folder| folder.exists()), "or the test has shown nothing");
    assert_eq!(sweep(), folders.len());
    assert!(folders.iter().all(|folder| !folder.exists()));
}
