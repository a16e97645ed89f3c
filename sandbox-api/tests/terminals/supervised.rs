//! Workers under a deadline: nothing of them is left, and the receipt says so.

use std::{
    fmt,
    process::id,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

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

/// A command that lasts, and is no other test's: some sandboxes see all processes of the machine.
struct Sleep(String);

impl Sleep {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(format!("1{:07}{:02}", id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    async fn is_seen(&self, sandbox: &AsyncSandbox) -> bool {
        // The command that looks is not what it looks for.
        let (most, last) = self.0.split_at(self.0.len() - 1);
        let look =
            format!("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep {most}[{last}]' || true");
        sandbox.run(look).await.unwrap().stdout_text().trim() != "0"
    }

    async fn ends(&self, sandbox: &AsyncSandbox) {
        let end = std::time::Instant::now() + LONG;
        while self.is_seen(sandbox).await {
            assert!(std::time::Instant::now() < end, "it still runs");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl fmt::Display for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sleep {}", self.0)
    }
}

async fn a_worker_ends_with_whoever_waits_for_it(on: On) {
    let place = on.place();
    let sandbox = std::sync::Arc::new(place.start().await);
    let sleep = Sleep::new();
    let waiting = tokio::spawn({
        let (sandbox, script) = (sandbox.clone(), format!("setsid {sleep} & {sleep}"));
        async move { sandbox.supervise(["sh", "-c", &script], LONG, LONG).await }
    });
    while !sleep.is_seen(&sandbox).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    sleep.ends(&sandbox).await;
    sandbox.stop().await.unwrap();
}

async fn a_deadline_holds_when_nobody_is_there_to_keep_it(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let (limit, cleanup) = (Duration::from_secs(2), Duration::from_secs(1));
    let sleep = Sleep::new();
    {
        let mut waiting = Box::pin(sandbox.supervise(["sleep", &sleep.0], limit, cleanup));
        let early = tokio::time::timeout(Duration::from_millis(500), &mut waiting).await;
        assert!(early.is_err(), "it runs");
        // As a process that is killed: nothing of it is dropped, and nothing goes on.
        std::mem::forget(waiting);
    }
    sleep.ends(&sandbox).await;
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
    let sleep = Sleep::new();
    let script = format!("echo out; echo err >&2; setsid {sleep} >/dev/null 2>&1 & (setsid {sleep} &) ; exit 7");
    let done = sandbox.supervise(["sh", "-c", &script], LONG, LONG).await.unwrap();
    let receipt = &done.receipt;
    assert!(receipt.cleanup_confirmed && !receipt.timed_out, "{receipt:?}");
    assert_eq!((receipt.return_code, receipt.error.as_deref()), (Some(7), None));
    assert_eq!((&*done.output.stdout_text(), &*done.output.stderr_text()), ("out\n", "err\n"));
    assert!(!sleep.is_seen(&sandbox).await);
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
    let sleep = Sleep::new();
    let stubborn = format!("trap '' TERM; setsid {sleep} & echo up; while :; do sleep 0.05; done");
    let cleanup = Duration::from_secs(2);
    let done = sandbox.supervise(["sh", "-c", &stubborn], Duration::from_secs(1), cleanup).await.unwrap();
    assert!(done.receipt.timed_out && done.receipt.cleanup_confirmed, "{:?}", done.receipt);
    assert_eq!((done.receipt.return_code, &*done.output.stdout_text()), (None, "up\n"));
    assert!(!sleep.is_seen(&sandbox).await);
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
