//! Workers under a deadline: nothing of them is left, and the receipt says so.

use std::time::Duration;

use sandbox_api::{AsyncSandbox, ErrorKind, SandboxSpec};

use crate::on::{On, on_each};

on_each! {
    what_a_worker_left_is_ended_with_it_and_its_code_is_its_own,
    a_deadline_asks_first_and_then_kills,
    a_worker_that_is_not_there_and_wrong_limits_are_told,
    a_worker_ends_with_whoever_waits_for_it,
    a_deadline_holds_when_nobody_is_there_to_keep_it,
}

// Without jobs a shell around the worker does it, and the receipts are the same.
on_each! { @in without_jobs, BareLocal:
    what_a_worker_left_is_ended_with_it_and_its_code_is_its_own,
    a_deadline_asks_first_and_then_kills,
    a_worker_that_is_not_there_and_wrong_limits_are_told
}

const LONG: Duration = Duration::from_secs(60);

async fn sleeps(sandbox: &AsyncSandbox) -> String {
    let count = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 44[4]' || true";
    sandbox.run(count).await.unwrap().stdout_text().trim().to_owned()
}

async fn until_no_sleep_is_left(sandbox: &AsyncSandbox) {
    let end = std::time::Instant::now() + LONG;
    while sleeps(sandbox).await != "0" {
        assert!(std::time::Instant::now() < end, "it still runs");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn a_worker_ends_with_whoever_waits_for_it(on: On) {
    let place = on.place();
    let sandbox = std::sync::Arc::new(place.start().await);
    let waiting = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.supervise(["sh", "-c", "setsid sleep 444 & sleep 444"], LONG, LONG).await }
    });
    while sleeps(&sandbox).await == "0" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    until_no_sleep_is_left(&sandbox).await;
    sandbox.stop().await.unwrap();
}

async fn a_deadline_holds_when_nobody_is_there_to_keep_it(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let (limit, cleanup) = (Duration::from_secs(2), Duration::from_secs(1));
    {
        let mut waiting = Box::pin(sandbox.supervise(["sleep", "444"], limit, cleanup));
        let early = tokio::time::timeout(Duration::from_millis(500), &mut waiting).await;
        assert!(early.is_err(), "it runs");
        // As a process that is killed: nothing of it is dropped, and nothing goes on.
        std::mem::forget(waiting);
    }
    until_no_sleep_is_left(&sandbox).await;
    sandbox.stop().await.unwrap();
}

#[test]
fn a_worker_needs_no_shell_where_the_sandbox_keeps_it() {
    crate::on::run(|| async {
        let place = On::LinkedDocker.place();
        let sandbox = place.start_with(SandboxSpec::image("sandbox-test/static:1")).await;
        let done = sandbox.supervise(["/bin/busybox", "echo", "here"], LONG, LONG).await.unwrap();
        assert_eq!((done.receipt.return_code, done.receipt.cleanup_confirmed), (Some(0), true));
        assert_eq!(done.output.stdout_text(), "here\n");
        sandbox.stop().await.unwrap();
    });
}

async fn what_a_worker_left_is_ended_with_it_and_its_code_is_its_own(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let script = "echo out; echo err >&2; setsid sleep 444 >/dev/null 2>&1 & (setsid sleep 444 &) ; exit 7";
    let done = sandbox.supervise(["sh", "-c", script], LONG, LONG).await.unwrap();
    let receipt = &done.receipt;
    assert!(receipt.cleanup_confirmed && !receipt.timed_out, "{receipt:?}");
    assert_eq!((receipt.return_code, receipt.error.as_deref()), (Some(7), None));
    assert_eq!((&*done.output.stdout_text(), &*done.output.stderr_text()), ("out\n", "err\n"));
    assert_eq!(sleeps(&sandbox).await, "0");
    let json = sandbox_api::serde_json::to_value(receipt).unwrap();
    assert_eq!(json["return_code"], 7);
    sandbox.stop().await.unwrap();
}

async fn a_deadline_asks_first_and_then_kills(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let polite = "trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.05; done";
    let done = sandbox.supervise(["sh", "-c", polite], Duration::from_secs(1), LONG).await.unwrap();
    assert!(done.receipt.timed_out && done.receipt.cleanup_confirmed, "{:?}", done.receipt);
    assert_eq!((done.receipt.return_code, &*done.output.stdout_text()), (Some(9), "up\nbye\n"));
    let stubborn = "trap '' TERM; setsid sleep 444 & echo up; while :; do sleep 0.05; done";
    let cleanup = Duration::from_secs(2);
    let done = sandbox.supervise(["sh", "-c", stubborn], Duration::from_secs(1), cleanup).await.unwrap();
    assert!(done.receipt.timed_out && done.receipt.cleanup_confirmed, "{:?}", done.receipt);
    assert_eq!((done.receipt.return_code, &*done.output.stdout_text()), (None, "up\n"));
    assert_eq!(sleeps(&sandbox).await, "0");
    sandbox.stop().await.unwrap();
}

async fn a_worker_that_is_not_there_and_wrong_limits_are_told(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let done = sandbox.supervise(["/no/such/program"], LONG, LONG).await.unwrap();
    assert!(done.receipt.cleanup_confirmed, "{:?}", done.receipt);
    assert_eq!(done.receipt.return_code, Some(127));
    for (argv, limit) in [(vec!["true"], Duration::ZERO), (vec![], LONG)] {
        assert_eq!(sandbox.supervise(argv, limit, LONG).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    sandbox.stop().await.unwrap();
}
