//! Nothing is left: no zombie, no descriptor, no process. One test, alone in its binary, because it counts.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use common::{eventually, open_fds, run, seconds, sh, zombies};
use sandbox_process::{Ending, Limits, ProcessSet, Stdin};

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

    // What is made ahead of a command is held once, is as good as new, and goes when the set rests.
    let set = ProcessSet::new();
    run(&set, sh("true"), Limits::new()).await.expect("starts");
    eventually("the first is gone", || set.is_empty()).await;
    let without = open_fds();
    set.prepare().expect("it is there");
    let with_next = open_fds();
    // Two sockets, two pipes and an input.
    assert_eq!(with_next, without + 7);
    for round in 0..50 {
        let command = if round % 2 == 0 { sh("cat; echo out; echo err >&2") } else { sh("ls /proc/self/fd >&2") };
        let command = if round % 4 == 0 { command.stdin(Stdin::Bytes("in\n".into())) } else { command };
        let done = run(&set, command, Limits::new()).await.expect("starts");
        let expected: (&[u8], &[u8]) = match round % 4 {
            0 => (b"in\nout\n", b"err\n"),
            2 => (b"out\n", b"err\n"),
            _ => (b"", b"0\n1\n2\n3\n"),
        };
        assert_eq!((&done.stdout[..], &done.stderr[..]), expected);
    }
    eventually("one is made ahead and no more", || set.is_empty() && open_fds() == with_next).await;
    set.rest();
    eventually("what was made ahead is gone", || open_fds() == at_start).await;
}
