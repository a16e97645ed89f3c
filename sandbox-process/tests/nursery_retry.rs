//! The set's own process dies with a command in its queue. One test, alone in its binary, because it looks at this
//! process's children.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use common::{children, collect, eventually, run, seconds, sh, state, within};
use sandbox_process::{Ending, Limits, ProcessSet};

fn signal(name: &str, pids: &[u32]) {
    let pids = pids.iter().map(u32::to_string);
    let sent = std::process::Command::new("kill").arg(format!("-{name}")).args(pids).status();
    assert!(sent.expect("kill runs").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_a_killed_nursery_has_not_begun_is_begun_by_the_next_one() {
    let set = ProcessSet::new();
    let done = run(&set, sh("echo first"), Limits::new()).await.expect("starts");
    assert_eq!(done.ending(), Ending::Exited(0));
    for _ in 0..20 {
        let nursery = children(std::process::id());
        assert_eq!(nursery.len(), 1);
        eventually("there is a spare, and nobody else", || children(nursery[0]).len() == 1).await;
        let both = [nursery[0], children(nursery[0])[0]];
        signal("STOP", &both);
        eventually("they stand still", || both.iter().all(|pid| state(*pid) == Some(b'T'))).await;
        let mut starting = Box::pin(set.spawn(sh("echo again"), Limits::new()));
        tokio::select! {
            biased;
            started = &mut starting => panic!("nobody could start it: {started:?}"),
            () = tokio::task::yield_now() => {}
        }
        // The command is in the queue of a nursery that dies with its spare.
        signal("KILL", &both);
        let mut process = within(seconds(30), starting).await.expect("the next nursery starts it");
        let done = within(seconds(30), collect(&mut process)).await;
        assert_eq!((done.stdout.as_slice(), done.ending()), (&b"again\n"[..], Ending::Exited(0)));
        eventually("the dead one is reaped", || children(std::process::id()).len() == 1).await;
        eventually("nothing is left", || set.is_empty()).await;
    }
}
