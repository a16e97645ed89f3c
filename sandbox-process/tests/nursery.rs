//! The set's own process and its supervisors. One test at a time, because they look at this process's children.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use std::collections::BTreeSet;

use common::{children, collect, eventually, marked, run, seconds, sh, within};
use sandbox_process::{Ending, Event, Limits, ProcessSet, Stdin};
use tokio::sync::Mutex;

static ALONE: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn supervisors_serve_again_and_those_beyond_some_end() {
    let _alone = ALONE.lock().await;
    let set = ProcessSet::new();
    run(&set, sh("true"), Limits::new()).await.expect("starts");
    let nursery = children(std::process::id());
    assert_eq!(nursery.len(), 1);
    let supervisors = || children(nursery[0]).into_iter().collect::<BTreeSet<u32>>();
    let mut seen = BTreeSet::new();
    for round in 0..30 {
        let code = round % 7;
        let done = run(&set, sh(&format!("ls /proc/self/fd >&2; echo {round}; exit {code}")), Limits::new()).await;
        let done = done.expect("starts");
        assert_eq!((done.stdout.clone(), done.ending()), (format!("{round}\n").into_bytes(), Ending::Exited(code)));
        assert_eq!(done.stderr, b"0\n1\n2\n3\n", "nothing is open that was not asked for");
        eventually("its tree is gone", || set.is_empty()).await;
        seen.extend(supervisors());
    }
    assert!(seen.len() <= 2, "one after the other needs one supervisor: {seen:?}");

    let mut many = Vec::new();
    for _ in 0..40 {
        many.push(set.spawn(sh("read line").stdin(Stdin::Stream), Limits::new()).await.expect("starts"));
    }
    assert!(supervisors().len() >= 40);
    for mut one in many {
        one.controller().close_stdin().await;
        assert_eq!(within(seconds(5), collect(&mut one)).await.ending(), Ending::Exited(1));
    }
    eventually("those beyond four have ended", || set.is_empty() && supervisors().len() <= 4).await;

    let (command, mark) = marked("setsid sleep 300 & echo up; sleep 300");
    let mut process = set.spawn(command, Limits::new()).await.expect("starts");
    assert!(matches!(process.next_event().await, Some(Event::Stdout(_))));
    eventually("all of it runs", || mark.alive() == 3).await;
    set.rest();
    assert_eq!(mark.alive(), 3, "rest is for a set that is empty");
    process.controller().kill_tree();
    within(seconds(5), collect(&mut process)).await;
    eventually("nobody is left", || set.is_empty() && mark.alive() == 0).await;
    set.rest();
    eventually("the nursery and all spares have ended", || children(std::process::id()).is_empty()).await;
    let done = run(&set, sh("echo again"), Limits::new()).await.expect("a new nursery starts it");
    assert_eq!(done.stdout, b"again\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_nursery_is_replaced_and_running_trees_stay_in_hand() {
    let _alone = ALONE.lock().await;
    let set = ProcessSet::new();
    let (command, mark) = marked("setsid sleep 300 & echo up; sleep 300");
    let mut process = set.spawn(command, Limits::new()).await.expect("starts");
    assert!(matches!(process.next_event().await, Some(Event::Stdout(_))));
    let nursery = children(std::process::id());
    assert_eq!(nursery.len(), 1);
    let killed = std::process::Command::new("kill").args(["-9", &nursery[0].to_string()]).status();
    assert!(killed.expect("kill runs").success());
    eventually("it is reaped", || children(std::process::id()).is_empty()).await;
    let done = run(&set, sh("echo again"), Limits::new()).await.expect("a new nursery starts it");
    assert_eq!(done.stdout, b"again\n");
    assert_eq!(mark.alive(), 3, "the running tree is not touched");
    process.controller().kill_tree();
    assert_eq!(within(seconds(2), collect(&mut process)).await.ending(), Ending::Killed);
    eventually("nobody is left", || set.is_empty()).await;
    assert_eq!(mark.alive(), 0);
}
