//! Trees that resist: forking faster than one looks, subreapers, threads. Alone in its binary: it loads the machine.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use common::{collect, eventually, marked, millis, run, seconds, within};
use sandbox_process::{Ending, Limits, ProcessSet};

/// These tests load the machine, so one runs at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_loop_is_ended() {
    let _alone = ALONE.lock().await;
    let set = ProcessSet::new();
    // Each of 500 children replaces itself for ever.
    let script = "hop() { ( sleep 1; hop & ); }; i=0; while [ $i -lt 500 ]; do i=$((i+1)); hop & done; wait; sleep 300";
    let (command, mark) = marked(script);
    let mut process = set.spawn(command, Limits::new()).await.expect("starts");
    eventually("it forks on", || mark.alive() > 400).await;
    process.controller().kill_tree();
    let done = within(seconds(30), collect(&mut process)).await;
    assert_eq!(done.ending(), Ending::Killed);
    assert_eq!(within(seconds(20), set.kill_all(seconds(15))).await, 0);
    assert_eq!(mark.alive(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_replaces_itself_as_fast_as_it_can_is_ended() {
    let _alone = ALONE.lock().await;
    let set = ProcessSet::new();
    let (command, mark) = marked("hop() { hop & exit; }; hop & hop & hop & hop & sleep 300");
    let mut process = set.spawn(command, Limits::new().timeout(millis(500))).await.expect("starts");
    let done = within(seconds(20), collect(&mut process)).await;
    assert_eq!(done.ending(), Ending::TimedOut);
    assert_eq!(within(seconds(20), set.kill_all(seconds(15))).await, 0);
    assert_eq!(mark.alive(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nested_subreaper_with_threads_hides_nobody() {
    let _alone = ALONE.lock().await;
    let set = ProcessSet::new();
    let script = r#"exec python3 -c '
import ctypes, subprocess, threading, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
def go():
    subprocess.Popen(["sh", "-c", "setsid sleep 300 & ( ( sleep 300 & ) & )"]).wait()
    child = subprocess.Popen(["sleep", "300"])
    child.wait()
for _ in range(4): threading.Thread(target=go).start()
time.sleep(300)'"#;
    let (command, mark) = marked(script);
    let process = set.spawn(command, Limits::new()).await.expect("starts");
    eventually("all processes run", || mark.alive() == 13).await;
    drop(process);
    eventually("nobody is left", || set.is_empty()).await;
    assert_eq!(mark.alive(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_tree_is_ended() {
    let _alone = ALONE.lock().await;
    let set = ProcessSet::new();
    let (command, mark) = marked("sleep 300 & kill -STOP $! $$");
    let done = within(seconds(3), run(&set, command, Limits::new().timeout(millis(300)))).await.expect("starts");
    assert_eq!(done.ending(), Ending::TimedOut);
    assert_eq!(mark.alive(), 0);
}
