//! Nothing is left: no zombie, no descriptor, no process. One test, alone in its binary, because it counts.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use common::{eventually, open_fds, run, seconds, sh, zombies};
use sandbox_process::{Ending, Limits, ProcessSet};

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_orphaning_commands_leave_nothing() {
    let at_start = open_fds();
    let set = ProcessSet::new();
    run(&set, sh("true"), Limits::new()).await.expect("starts");
    eventually("the first is gone", || set.is_empty()).await;
    let before = open_fds();
    for _ in 0..300 {
        let done = run(&set, sh("(sleep 0.05 &) ; true"), Limits::new().drain_grace(std::time::Duration::ZERO)).await;
        assert_eq!(done.expect("starts").ending(), Ending::Exited(0));
    }
    for index in 0..100 {
        let failed =
            sandbox_process::Command::new(["/no/such/program"]).cwd(if index % 2 == 0 { "/" } else { "/nope" });
        assert!(set.spawn(failed, Limits::new()).await.is_err());
    }
    eventually("every tree is empty", || set.is_empty()).await;
    assert_eq!(zombies(), 0);
    assert_eq!(open_fds(), before);
    assert_eq!(set.kill_all(seconds(1)).await, 0);
    let nursery = common::children(std::process::id());
    assert_eq!(nursery.len(), 1, "the set's own process");
    eventually("only the supervisor of the next command is left", || common::children(nursery[0]).len() <= 1).await;
    drop(set);
    eventually("the set's own process is gone", || common::children(std::process::id()).is_empty()).await;
    eventually("no descriptor is left", || open_fds() == at_start).await;
}
