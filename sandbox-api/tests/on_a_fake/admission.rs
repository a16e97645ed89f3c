//! Limits that all sandboxes of a provider share.

use std::{sync::Arc, time::Duration};

use crate::fake::{Fake, Gate};
use sandbox_api::{Admission, AdmissionLimits, AsyncSandbox, Ownership};
use sandbox_core::{ErrorKind, ExecRequest, SandboxSpec};

fn limits(change: impl FnOnce(&mut AdmissionLimits)) -> Admission {
    let mut limits = AdmissionLimits::default();
    change(&mut limits);
    Admission::new(limits)
}

fn sandbox(fake: &Arc<Fake>, admission: &Admission) -> AsyncSandbox {
    let spec = SandboxSpec::default();
    AsyncSandbox::new(fake.clone()).with_ownership(Ownership::Shared).with_admission(admission).with_spec(spec)
}

#[tokio::test]
async fn never_more_than_the_limits_are_under_way_and_all_get_their_turn() {
    let fake = Arc::new(Fake { create_yields: 5, ..Fake::default() });
    fake.seen().exec_yields = 5;
    let admission = limits(|limits| {
        limits.sandboxes = Some(10);
        limits.creates = Some(3);
        limits.execs = Some(4);
    });
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let sandbox = sandbox(&fake, &admission);
        tasks.spawn(async move {
            sandbox.start(None).await.unwrap();
            for _ in 0..3 {
                sandbox.run("x").await.unwrap();
            }
            sandbox.stop().await.unwrap();
        });
    }
    tasks.join_all().await;
    let seen = fake.seen();
    assert_eq!((seen.most_creating_at_once, seen.most_execs_at_once), (3, 4));
    assert!(seen.most_open <= 10 && seen.open.is_empty(), "{}", seen.most_open);
    assert_eq!(seen.requests.len(), 150);
}

#[tokio::test]
async fn a_place_is_free_again_when_the_dropped_sandbox_is_gone_and_a_given_up_start_keeps_none() {
    let gate = Gate::shut();
    let fake = Arc::new(Fake { close_gate: Some(gate.clone()), ..Fake::default() });
    let admission = limits(|limits| {
        limits.sandboxes = Some(1);
        limits.wait = Duration::from_millis(50);
    });
    let first = sandbox(&fake, &admission);
    first.start(None).await.unwrap();
    drop(first);
    // It is being removed, and counts until it is.
    let second = sandbox(&fake, &admission);
    let error = second.start(None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.to_string().contains("at most 1 sandboxes"), "{error}");
    gate.open();
    while let Err(error) = second.start(None).await {
        assert_eq!(error.kind(), ErrorKind::Exhausted);
    }
    // One that waits and is given up takes nothing with it.
    let third = sandbox(&fake, &admission);
    tokio::select! {
        biased;
        result = third.start(None) => panic!("{result:?}"),
        () = tokio::task::yield_now() => {}
    }
    second.stop().await.unwrap();
    third.start(None).await.unwrap();
    third.stop().await.unwrap();
}

#[tokio::test]
async fn removing_never_waits_and_a_stream_holds_its_place_until_it_is_dropped() {
    let fake = Fake::with(&[]);
    let admission = limits(|limits| {
        limits.streams = Some(1);
        limits.execs = Some(1);
        limits.wait = Duration::from_millis(50);
    });
    let sandbox = sandbox(&fake, &admission);
    sandbox.start(None).await.unwrap();
    let stream = sandbox.exec_stream(ExecRequest::shell("x")).await.unwrap();
    let error = sandbox.exec_stream(ExecRequest::shell("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    sandbox.run("x").await.expect("commands have a lane of their own");
    drop(stream);
    drop(sandbox.exec_stream(ExecRequest::shell("x")).await.unwrap());
    // Somebody holds the lane of commands for good: what is removed goes all the same.
    fake.seen().exec_never_ends = true;
    tokio::select! {
        biased;
        _ = sandbox.run("x") => unreachable!("it never ends"),
        () = async { sandbox.stop().await.unwrap() } => {}
    }
}

#[tokio::test(start_paused = true)]
async fn j03_no_turn_is_held_over_a_pause_and_only_what_may_help_is_tried_again() {
    let fake = Fake::with(&[]);
    let admission = limits(|limits| {
        limits.creates = Some(1);
        limits.create_attempts = 3;
        limits.backoff = Duration::from_secs(10);
    });
    {
        let mut seen = fake.seen();
        (seen.fail_create, seen.create_kind) = (2, Some(ErrorKind::Exhausted));
    }
    let (first, second) = (sandbox(&fake, &admission), sandbox(&fake, &admission));
    let began = tokio::time::Instant::now();
    // Both fail once and pause; were the turn held, the second one could not even try.
    let (a, b) = tokio::join!(first.start(None), second.start(None));
    a.unwrap();
    b.unwrap();
    assert!((10..=20).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(fake.calls().iter().filter(|call| *call == "create").count(), 4);
    fake.seen().fail_create = 1;
    fake.seen().create_kind = Some(ErrorKind::Create);
    let third = sandbox(&fake, &admission);
    assert_eq!(third.start(None).await.unwrap_err().kind(), ErrorKind::Create);
    for sandbox in [first, second] {
        sandbox.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn creates_that_keep_failing_are_refused_for_a_while_and_one_looks_whether_they_work_again() {
    let fake = Fake::with(&[]);
    let admission = limits(|limits| {
        limits.breaker_failures = 3;
        limits.breaker_pause = Duration::from_secs(30);
    });
    fake.seen().fail_create = 4;
    let creates = || fake.calls().iter().filter(|call| *call == "create").count();
    let start = async || sandbox(&fake, &admission).start(None).await.unwrap_err();
    for _ in 0..3 {
        assert_eq!(start().await.kind(), ErrorKind::Create);
    }
    let error = start().await;
    assert_eq!((error.kind(), creates()), (ErrorKind::Unavailable, 3));
    assert!(error.retry_after().is_some_and(|after| after.as_secs() <= 30));
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(start().await.kind(), ErrorKind::Create, "one is let through");
    assert_eq!((start().await.kind(), creates()), (ErrorKind::Unavailable, 4));
    tokio::time::advance(Duration::from_secs(31)).await;
    let works = sandbox(&fake, &admission);
    works.start(None).await.unwrap();
    let next = sandbox(&fake, &admission);
    next.start(None).await.unwrap();
    for sandbox in [works, next] {
        sandbox.stop().await.unwrap();
    }
}
