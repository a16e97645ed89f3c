//! Dropping a started sandbox: never blocks, never leaks, wherever it happens.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::fake::{Fake, Gate};
use sandbox_api::{AsyncSandbox, Ownership};
use sandbox_core::{Capability, ErrorKind, SandboxSpec};

/// Longer than any drop may take.
const AT_ONCE: Duration = Duration::from_secs(1);

async fn started(fake: &Arc<Fake>) -> AsyncSandbox {
    let sandbox = AsyncSandbox::new(fake.clone());
    sandbox.start(Some(SandboxSpec::default())).await.unwrap();
    sandbox
}

fn drop_at_once(sandbox: AsyncSandbox) {
    let began = Instant::now();
    drop(sandbox);
    assert!(began.elapsed() < AT_ONCE);
}

#[tokio::test]
async fn in_a_current_thread_runtime() {
    // A close that hangs would hold a drop that waits for it.
    let gate = Gate::shut();
    let fake = Arc::new(Fake { close_gate: Some(gate.clone()), ..Fake::default() });
    drop_at_once(started(&fake).await);
    fake.until("close", |seen| seen.calls.contains(&"close 1".to_owned())).await;
    gate.open();
    fake.until("aclose", |seen| seen.open.is_empty() && seen.calls.contains(&"aclose".to_owned())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_multi_thread_runtime() {
    let fake = Fake::with(&[]);
    drop_at_once(started(&fake).await);
    fake.until("close", |seen| seen.open.is_empty()).await;
}

#[test]
fn after_its_runtime_was_shut_down() {
    let fake = Fake::with(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let sandbox = runtime.block_on(started(&fake));
    drop(runtime);
    drop_at_once(sandbox);
    fake.wait_all_closed(1);
}

#[test]
fn with_the_runtime_that_holds_it() {
    let fake = Fake::with(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let sandbox = runtime.block_on(started(&fake));
    runtime.spawn(async move {
        let _sandbox = sandbox;
        std::future::pending::<()>().await;
    });
    drop(runtime);
    fake.wait_all_closed(1);
}

#[tokio::test]
async fn while_a_panic_unwinds() {
    let fake = Fake::with(&[]);
    let sandbox = started(&fake).await;
    let task = tokio::spawn(async move {
        let _sandbox = sandbox;
        panic!("on purpose");
    });
    assert!(task.await.unwrap_err().is_panic());
    fake.until("close", |seen| seen.open.is_empty()).await;
}

#[test]
fn two_hundred_at_once() {
    let gate = Gate::shut();
    let fake = Arc::new(Fake { close_gate: Some(gate.clone()), ..Fake::default() });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let sandboxes = runtime.block_on(async {
        let mut sandboxes = Vec::new();
        for _ in 0..200 {
            let sandbox = AsyncSandbox::new(fake.clone()).with_ownership(Ownership::Shared);
            sandbox.start(Some(SandboxSpec::default())).await.unwrap();
            sandboxes.push(sandbox);
        }
        sandboxes
    });
    let began = Instant::now();
    std::thread::scope(|scope| {
        for sandbox in sandboxes {
            scope.spawn(move || drop(sandbox));
        }
    });
    assert!(began.elapsed() < AT_ONCE);
    fake.wait("as many as may close at once", |seen| seen.closing_at_once == 32);
    gate.open();
    fake.wait_all_closed(200);
    assert_eq!(fake.seen().most_closing_at_once, 32);
    assert!(!fake.calls().contains(&"aclose".to_owned()), "a shared provider stays");
}

#[tokio::test]
async fn a_close_that_may_be_retried_is_retried() {
    let fake = Fake::with(&[]);
    {
        let mut seen = fake.seen();
        seen.fail_close = 2;
        seen.close_kind = Some(ErrorKind::Unavailable);
    }
    drop_at_once(started(&fake).await);
    fake.until("third close", |seen| seen.open.is_empty()).await;
    assert_eq!(fake.calls().iter().filter(|call| *call == "close 1").count(), 3);
}

#[tokio::test]
async fn only_what_this_object_made_is_closed() {
    let fake = Fake::with(&[Capability::Connect]);
    let sandbox = started(&fake).await;
    let descriptor = sandbox.serialize(None).await.unwrap();
    drop(AsyncSandbox::connect(fake.clone(), descriptor).await.unwrap());
    fake.until("aclose", |seen| seen.calls.contains(&"aclose".to_owned())).await;
    assert!(!fake.calls().contains(&"close 1".to_owned()), "a borrower only disconnects");
    sandbox.stop().await.unwrap();
    let calls = fake.calls().len();
    drop(sandbox);
    drop(AsyncSandbox::new(fake.clone()));
    // The lane is a queue: when the next one is through, nothing of those two is to come.
    let marker = Fake::with(&[]);
    drop(started(&marker).await);
    marker.until("aclose", |seen| seen.calls.contains(&"aclose".to_owned())).await;
    assert_eq!(fake.calls().len(), calls, "stopped and never started ones need nothing");
}

#[tokio::test]
async fn a_provider_that_panics_while_closing_does_not_stop_the_lane() {
    let panicking = Arc::new(Fake { close_panics: true, ..Fake::default() });
    drop(started(&panicking).await);
    panicking.until("close", |seen| seen.calls.contains(&"close 1".to_owned())).await;
    let fake = Fake::with(&[]);
    drop(started(&fake).await);
    fake.until("close", |seen| seen.open.is_empty()).await;
}
