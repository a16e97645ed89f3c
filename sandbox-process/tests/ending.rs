//! Deadlines, kills and drops.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use std::time::Instant;

use common::{collect, eventually, marked, millis, run, seconds, sh, within};
use sandbox_process::{Command, Ending, Event, Limits, ProcessSet};

const ESCAPEES: &str =
    "echo one; echo two >&2; setsid sleep 300 & ( ( sleep 300 & ) & ); (setsid setsid sleep 300 &) ; sleep 300";

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_ends_every_escapee_and_keeps_the_partial_output() {
    let set = ProcessSet::new();
    let (command, mark) = marked(ESCAPEES);
    let begin = Instant::now();
    let mut process = set.spawn(command, Limits::new().timeout(millis(400))).await.expect("starts");
    eventually("all processes run", || mark.alive() == 5).await;
    let done = collect(&mut process).await;
    assert!(begin.elapsed() < millis(700), "answered after {:?}", begin.elapsed());
    assert!(begin.elapsed() >= millis(400));
    assert_eq!(done.ending(), Ending::TimedOut);
    assert_eq!((&done.stdout[..], &done.stderr[..]), (&b"one\n"[..], &b"two\n"[..]));
    // On a machine that is overloaded the answer does not wait for the last confirmation.
    eventually("the tree is confirmed", || set.is_empty()).await;
    assert_eq!(mark.alive(), 0, "no survivor when the tree is confirmed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_holds_while_nobody_reads() {
    let set = ProcessSet::new();
    let (command, mark) = marked("yes");
    let mut process = set.spawn(command, Limits::new().timeout(millis(200))).await.expect("starts");
    eventually("the tree is ended without a reader", || set.is_empty()).await;
    assert_eq!(mark.alive(), 0);
    let done = collect(&mut process).await;
    assert_eq!(done.ending(), Ending::TimedOut);
    assert!(done.stdout.len() >= 65536);
    assert!(done.exit.wall_time < millis(500), "{:?}", done.exit.wall_time);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_command_times_out_idle_and_a_talking_one_does_not() {
    let set = ProcessSet::new();
    let (command, mark) = marked("echo begin; sleep 300");
    let done = within(seconds(3), run(&set, command, Limits::new().idle_timeout(millis(200)))).await.expect("starts");
    assert_eq!(done.ending(), Ending::IdleTimedOut);
    assert_eq!(done.stdout, b"begin\n");
    assert_eq!(mark.alive(), 0);
    let talking = sh("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done");
    let done = run(&set, talking, Limits::new().idle_timeout(millis(500))).await.expect("starts");
    assert_eq!(done.ending(), Ending::Exited(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grace_sends_term_first_and_then_ends_the_rest() {
    let set = ProcessSet::new();
    let script = "trap 'echo term; exit 7' TERM; setsid sleep 300 & echo ready; while :; do sleep 0.01; done";
    let (command, mark) = marked(script);
    let limits = Limits::new().timeout(millis(300)).kill_grace(seconds(5));
    let done = within(seconds(3), run(&set, command, limits)).await.expect("starts");
    assert_eq!(done.ending(), Ending::TimedOut);
    assert_eq!(done.stdout, b"ready\nterm\n");
    assert_eq!(mark.alive(), 0, "the escapee did not outlive the command");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grace_that_is_ignored_ends_in_a_kill() {
    let set = ProcessSet::new();
    let (command, mark) = marked("trap '' TERM; echo ready; while :; do sleep 0.01; done");
    let limits = Limits::new().timeout(millis(200)).kill_grace(millis(200));
    let begin = Instant::now();
    let done = within(seconds(3), run(&set, command, limits)).await.expect("starts");
    assert!(begin.elapsed() >= millis(400) && begin.elapsed() < millis(800), "{:?}", begin.elapsed());
    assert_eq!(done.ending(), Ending::TimedOut);
    assert_eq!(mark.alive(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_handle_ends_the_tree() {
    let set = ProcessSet::new();
    let (command, mark) = marked(ESCAPEES);
    let process = set.spawn(command, Limits::new().kill_grace(seconds(60))).await.expect("starts");
    eventually("all processes run", || mark.alive() == 5).await;
    let begin = Instant::now();
    drop(process);
    assert!(begin.elapsed() < millis(20), "drop never blocks");
    eventually("nobody is left", || set.is_empty()).await;
    assert_eq!(mark.alive(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_spawn_future_leaves_nothing() {
    let set = ProcessSet::new();
    for _ in 0..50 {
        let (command, mark) = marked("sleep 300");
        let mut spawning = Box::pin(set.spawn(command, Limits::new()));
        // One poll forks; the answer needs more.
        let first = futures_poll(spawning.as_mut());
        drop(spawning);
        drop(first);
        eventually("nobody is left", || set.is_empty() && mark.alive() == 0).await;
    }
}

fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[test]
fn shutting_the_runtime_down_ends_every_tree() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let set = ProcessSet::new();
    let (command, mark) = marked(ESCAPEES);
    let mut process = runtime.block_on(async {
        let process = set.spawn(command, Limits::new()).await.expect("starts");
        eventually("all processes run", || mark.alive() == 5).await;
        process
    });
    let controller = process.controller();
    runtime.shutdown_background();
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    other.block_on(async {
        eventually("nobody is left although handles live", || mark.alive() == 0).await;
        let done = collect(&mut process).await;
        assert_eq!(done.ending(), Ending::Lost);
        assert!(controller.signal(libc_sigterm()).is_err());
    });
}

const fn libc_sigterm() -> i32 {
    15
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_and_signalling_are_told_apart() {
    let set = ProcessSet::new();
    let mut process = set.spawn(sh("echo ready; sleep 300"), Limits::new()).await.expect("starts");
    process.controller().kill_tree();
    assert_eq!(collect(&mut process).await.ending(), Ending::Killed);

    let script = "trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.01; done";
    let mut process = set.spawn(sh(script), Limits::new()).await.expect("starts");
    let Some(Event::Stdout(ready)) = process.next_event().await else { panic!("no output") };
    assert_eq!(&ready[..], b"ready\n");
    let controller = process.controller();
    assert!(controller.signal(0).is_err());
    controller.signal(10).expect("the command runs");
    let done = within(seconds(3), collect(&mut process)).await;
    assert_eq!((done.ending(), &done.stdout[..]), (Ending::Exited(9), &b"got\n"[..]));
    assert!(controller.signal(10).is_err(), "the command has ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_that_was_asked_for_is_never_reported_as_a_signal() {
    let set = ProcessSet::new();
    for _ in 0..200 {
        let mut process = set.spawn(sh("exec sleep 300"), Limits::new()).await.expect("starts");
        process.controller().kill_tree();
        assert_eq!(collect(&mut process).await.ending(), Ending::Killed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn codes_and_signals_are_told_apart() {
    let set = ProcessSet::new();
    for (script, ending) in [
        ("exit 0", Ending::Exited(0)),
        ("exit 127", Ending::Exited(127)),
        ("exit 137", Ending::Exited(137)),
        ("exit 255", Ending::Exited(255)),
        ("kill -9 $$", Ending::Signalled(9)),
        ("kill -15 $$", Ending::Signalled(15)),
        ("sh -c 'kill -9 $$'; exit $?", Ending::Exited(137)),
        ("no_such_cmd_here", Ending::Exited(127)),
    ] {
        assert_eq!(run(&set, sh(script), Limits::new()).await.expect("starts").ending(), ending, "{script}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_actions_and_masks_are_the_defaults() {
    let set = ProcessSet::new();
    let status = Command::new(["cat", "/proc/self/status"]);
    let done = run(&set, status, Limits::new()).await.expect("starts");
    let text = String::from_utf8(done.stdout).expect("text");
    for field in ["SigBlk", "SigIgn"] {
        let line = text.lines().find(|line| line.starts_with(field)).expect("is in the status");
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
    let done = run(&set, sh("yes | head -1"), Limits::new()).await.expect("starts");
    assert_eq!((done.ending(), done.stderr.len()), (Ending::Exited(0), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_supervisor_is_reported_as_lost_and_nobody_survives_it() {
    let set = ProcessSet::new();
    let (command, mark) = marked(ESCAPEES);
    let mut process = set.spawn(command, Limits::new()).await.expect("starts");
    eventually("all processes run", || mark.alive() == 5).await;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).expect("runs");
    let supervisor = stat.rsplit_once(')').expect("a name").1.split_whitespace().nth(1).expect("a parent");
    let status = std::process::Command::new("kill").args(["-9", supervisor]).status().expect("kill runs");
    assert!(status.success());
    let done = within(seconds(2), collect(&mut process)).await;
    assert_eq!(done.ending(), Ending::Lost);
    eventually("escapees are ended too", || mark.alive() == 0).await;
    eventually("the set is empty", || set.is_empty()).await;
}
