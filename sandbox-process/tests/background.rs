//! Children that outlive their command.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use common::{collect, eventually, marked, millis, run, seconds, within};
use sandbox_process::{Ending, Event, Limits, ProcessSet};

#[tokio::test(flavor = "multi_thread")]
async fn a_background_child_holds_nobody_and_lives_until_the_set_ends_it() {
    let set = ProcessSet::new();
    let (command, mark) = marked("sleep 300 & echo hi");
    let done = within(seconds(2), run(&set, command, Limits::new())).await.expect("starts");
    assert_eq!(done.stdout, b"hi\n");
    assert_eq!(done.ending(), Ending::Exited(0));
    assert!(done.exit.output_open, "the child still holds the pipe");
    assert_eq!(mark.alive(), 1, "the handle was dropped, the child lives");
    assert_eq!(set.len(), 1);
    assert_eq!(set.kill_all(seconds(5)).await, 0);
    assert_eq!(mark.alive(), 0);
    assert!(set.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_that_is_over_left_is_ended_by_its_controller_and_seen_to_be_gone() {
    let set = ProcessSet::new();
    let (command, mark) = marked("setsid sleep 300 >/dev/null 2>&1 & (setsid sleep 300 &) ; exit 7");
    let mut process = set.spawn(command, Limits::new()).await.expect("starts");
    let controller = process.controller();
    let exit = loop {
        if let Some(Event::Exit(exit)) = within(seconds(10), process.next_event()).await {
            break exit;
        }
    };
    assert_eq!(exit.ending, Ending::Exited(7));
    drop(process);
    assert_eq!(mark.alive(), 2);
    let waits = tokio::time::timeout(millis(100), controller.tree_gone()).await;
    assert!(waits.is_err(), "it waits for what is there");
    controller.kill_tree_now();
    within(seconds(10), controller.tree_gone()).await;
    assert_eq!((mark.alive(), set.len()), (0, 0));
    // Again at once.
    within(seconds(1), controller.tree_gone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_background_child_that_writes_gets_no_sigpipe_and_never_blocks() {
    let set = ProcessSet::new();
    let folder = tempfile::tempdir().expect("temp folder");
    let ticks = folder.path().join("ticks");
    // Writes far more than a pipe holds, in rounds, and counts the rounds it survived.
    let script = format!(
        "(while :; do head -c 100000 /dev/zero || exit; echo x >> {}; sleep 0.01; done) & echo started",
        ticks.display()
    );
    let (command, mark) = marked(&script);
    let done = within(seconds(3), run(&set, command, Limits::new())).await.expect("starts");
    assert_eq!(done.ending(), Ending::Exited(0));
    assert!(done.exit.output_open);
    let count = || std::fs::read(&ticks).map_or(0, |bytes| bytes.len());
    let before = count();
    eventually("the child goes on writing", || count() > before + 40).await;
    assert!(mark.alive() >= 1);
    assert_eq!(set.kill_all(seconds(5)).await, 0);
    assert_eq!(mark.alive(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_lived_background_writer_is_still_heard_within_the_grace() {
    let set = ProcessSet::new();
    let (command, _mark) = marked("(sleep 0.05; echo late) & echo first");
    let done = run(&set, command, Limits::new().drain_grace(seconds(5))).await.expect("starts");
    assert_eq!(done.stdout, b"first\nlate\n");
    assert!(!done.exit.output_open, "both streams ended within the grace");
    eventually("nobody is left", || set.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flooding_background_child_cannot_hold_the_answer() {
    let set = ProcessSet::new();
    let (command, mark) = marked("yes & echo first >&2");
    let done = within(seconds(3), run(&set, command, Limits::new())).await.expect("starts");
    assert_eq!(done.stderr, b"first\n");
    assert_eq!(done.ending(), Ending::Exited(0));
    assert!(done.exit.output_open);
    drop(set);
    eventually("dropping the set ended the child", || mark.alive() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_tree_after_the_exit_ends_what_was_left_behind() {
    let set = ProcessSet::new();
    let (command, mark) = marked("setsid sleep 300 & sleep 300 & exit 3");
    let mut process = set.spawn(command, Limits::new().kill_grace(seconds(60))).await.expect("starts");
    let done = collect(&mut process).await;
    assert_eq!(done.ending(), Ending::Exited(3));
    eventually("both children run", || mark.alive() == 2).await;
    process.controller().kill_tree();
    eventually("nobody is left", || set.is_empty()).await;
    assert_eq!(mark.alive(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_reader_does_not_stop_kill_all_from_confirming() {
    let set = ProcessSet::new();
    let (command, mark) = marked("yes");
    let mut process = set.spawn(command, Limits::new()).await.expect("starts");
    assert!(matches!(process.next_event().await, Some(Event::Stdout(_))));
    // From here on nobody reads.
    assert_eq!(within(seconds(2), set.kill_all(seconds(1))).await, 0);
    assert_eq!(mark.alive(), 0);
    let done = within(seconds(2), collect(&mut process)).await;
    assert_eq!(done.ending(), Ending::Killed);
    assert!(done.exit.wall_time < seconds(2));
    tokio::time::timeout(millis(1), async {}).await.expect("the runtime is not blocked");
}
