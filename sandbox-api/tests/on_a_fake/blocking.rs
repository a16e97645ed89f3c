//! The blocking facade.

use std::sync::Arc;

use crate::fake::Fake;
use sandbox_api::{AsyncSandbox, Sandbox};
use sandbox_core::{Capability, ErrorKind, ExecEvent, ExecRequest, SandboxSpec, SandboxStatus};

#[test]
fn the_verbs_are_those_of_the_async_one() {
    let fake = Fake::with(&[Capability::Files]);
    let sandbox = Sandbox::new(fake.clone()).unwrap().with_spec(SandboxSpec::default().with_file("/f", "x"));
    assert_eq!(sandbox.status().unwrap(), SandboxStatus::Unknown);
    assert_eq!(sandbox.run("x").unwrap_err().kind(), ErrorKind::InvalidState);
    sandbox.start(None).unwrap();
    assert_eq!(sandbox.run("x").unwrap().return_code(), 3);
    let events: Vec<_> = sandbox.exec_stream(ExecRequest::argv(["x"])).unwrap().map(Result::unwrap).collect();
    assert!(matches!(events[..], [ExecEvent::Stdout(_), ExecEvent::Stderr(_), ExecEvent::Exit(_)]));
    sandbox.write_file("/g", "y").unwrap();
    sandbox.stop().unwrap();
    sandbox.stop().unwrap();
    assert_eq!(sandbox.status().unwrap(), SandboxStatus::Stopped);
    assert_eq!(fake.calls()[..3], ["create", "created 1", "upload 1 /f"]);
}

#[test]
fn a_failed_stop_can_be_repeated() {
    let fake = Fake::with(&[]);
    fake.seen().fail_close = 1;
    let sandbox = Sandbox::new(fake.clone()).unwrap();
    sandbox.start(Some(SandboxSpec::default())).unwrap();
    sandbox.stop().unwrap_err();
    sandbox.run("x").expect("commands still work");
    sandbox.stop().unwrap();
    assert!(fake.seen().open.is_empty());
}

#[test]
fn a_dropped_one_is_closed_in_the_background() {
    let fake = Fake::with(&[]);
    let sandbox = Sandbox::new(fake.clone()).unwrap();
    sandbox.start(Some(SandboxSpec::default())).unwrap();
    drop(sandbox);
    fake.wait_all_closed(1);
}

fn assert_refused<T: std::fmt::Debug>(result: sandbox_core::Result<T>, verb: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    assert!(error.to_string().contains(verb) && error.to_string().contains("async code"), "{error}");
    assert!(error.help().is_some_and(|help| help.contains("AsyncSandbox")));
}

fn refused_in(runtime: &tokio::runtime::Runtime) {
    let fake = Fake::with(&[]);
    let sandbox = Arc::new(Sandbox::new(fake.clone()).unwrap());
    sandbox.start(Some(SandboxSpec::default())).unwrap();
    let check = {
        let (sandbox, fake) = (sandbox.clone(), fake.clone());
        move || {
            assert_refused(Sandbox::new(fake.clone()).map(drop), "new");
            assert_refused(sandbox.run("x"), "run");
            assert_refused(sandbox.stop(), "stop");
        }
    };
    runtime.block_on(async { check() });
    runtime.block_on(async { tokio::spawn(async move { check() }).await.unwrap() });
    // A thread for blocking work may block.
    let blocking = sandbox.clone();
    runtime.block_on(runtime.spawn_blocking(move || blocking.run("x").unwrap())).unwrap();
    sandbox.stop().expect("a refused stop loses nothing");
    assert!(fake.seen().open.is_empty());
}

#[test]
fn it_is_refused_in_async_code_and_works_where_blocking_is_allowed() {
    refused_in(&tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    let multi = tokio::runtime::Runtime::new().unwrap();
    refused_in(&multi);
    let fake = Fake::with(&[]);
    multi.block_on(async move {
        tokio::spawn(async move {
            tokio::task::block_in_place(|| {
                let sandbox = Sandbox::new(fake).unwrap();
                sandbox.start(Some(SandboxSpec::default())).unwrap();
                sandbox.stop().unwrap();
            });
        })
        .await
        .unwrap();
    });
}

#[tokio::test]
async fn being_refused_takes_nothing_from_the_budget_of_the_task() {
    let fake = Fake::with(&[]);
    for _ in 0..10 {
        assert_refused(Sandbox::new(fake.clone()).map(drop), "new");
    }
    assert!(tokio::task::coop::has_budget_remaining());
    let sandbox = AsyncSandbox::new(fake);
    sandbox.start(Some(SandboxSpec::default())).await.unwrap();
    sandbox.stop().await.unwrap();
}

#[test]
fn each_call_has_a_limit_and_is_cancelled_there() {
    let gate = crate::fake::Gate::shut();
    let fake = Arc::new(Fake { status_gate: Some(gate.clone()), ..Fake::default() });
    let sandbox = Sandbox::new(fake.clone()).unwrap();
    assert_eq!(sandbox_api::DEFAULT_OPERATION_TIMEOUT.as_secs(), 3600);
    let sandbox = sandbox.with_operation_timeout(Some(std::time::Duration::from_millis(50)));
    sandbox.start(Some(SandboxSpec::default())).unwrap();
    let error = sandbox.status().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("status") && error.to_string().contains("0.05 s"), "{error}");
    gate.open();
    assert!(!fake.calls().iter().any(|call| call.starts_with("status")), "it was cancelled");
    // A command whose own limit is longer is not cut; one without waits no longer than the operation may take.
    fake.seen().exec_never_ends = true;
    let error =
        sandbox.exec_with(ExecRequest::shell("x"), sandbox_api::ExecOptions::new().without_timeout()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    sandbox.stop().unwrap();
}

#[test]
fn setup_that_fails_or_panics_stops_the_sandbox() {
    let fake = Fake::with(&[]);
    let sandbox = Sandbox::new(fake.clone()).unwrap();
    let fails = |sandbox: &Sandbox| {
        sandbox.run("x")?;
        Err::<(), _>(sandbox_core::SandboxError::not_found("scripted"))
    };
    assert_eq!(sandbox.start_with_setup(Some(SandboxSpec::default()), fails).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(fake.seen().open.is_empty());
    let sandbox = Sandbox::new(fake.clone()).unwrap();
    let panics = |_: &Sandbox| -> sandbox_core::Result<()> { panic!("scripted") };
    let spec = Some(SandboxSpec::default());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sandbox.start_with_setup(spec, panics))).unwrap_err();
    fake.wait_all_closed(2);
    let sandbox = Sandbox::new(fake.clone()).unwrap();
    assert_eq!(sandbox.start_with_setup(Some(SandboxSpec::default()), |_| Ok(7)).unwrap(), 7);
    sandbox.stop().unwrap();
}

#[test]
fn many_threads_use_it_at_once() {
    let fake = Fake::with(&[]);
    let sandbox = Sandbox::new(fake.clone()).unwrap();
    sandbox.start(Some(SandboxSpec::default())).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(sandbox.run("x").unwrap().return_code(), 3);
                }
            });
        }
    });
    assert_eq!(fake.seen().requests.len(), 640);
    sandbox.stop().unwrap();
}
