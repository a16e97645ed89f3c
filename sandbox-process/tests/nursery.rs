//! The set's own process dies. One test, alone in its binary, because it looks at this process's children.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use common::{children, collect, eventually, marked, run, seconds, sh, within};
use sandbox_process::{Ending, Event, Limits, ProcessSet};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_nursery_is_replaced_and_running_trees_stay_in_hand() {
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
