//! Starting a sandbox: order, refusals, and that nothing of a start that goes wrong is left.

use std::{sync::Arc, time::Duration};

use crate::fake::{Fake, Gate};
use sandbox_api::{AsyncSandbox, Ownership};
use sandbox_core::{ErrorKind, Field, Owner, SandboxError, SandboxSidecarSpec, SandboxSpec, SandboxStatus};

fn sandbox(fake: &Arc<Fake>) -> AsyncSandbox {
    AsyncSandbox::new(fake.clone()).with_spec(SandboxSpec::default())
}

#[tokio::test]
async fn the_argument_beats_the_constructor_and_the_identity_is_filled_in() {
    let fake = Fake::with(&[]);
    let sandbox = AsyncSandbox::new(fake.clone()).with_spec(SandboxSpec::image("old"));
    sandbox.start(Some(SandboxSpec::image("new").with_ttl_s(60.0))).await.unwrap();
    let spec = fake.seen().specs[0].clone();
    assert_eq!(spec.image.as_deref(), Some("new"));
    let identity = spec.identity.unwrap();
    assert!(matches!(identity.owner, Owner::Process { pid, .. } if pid == std::process::id()));
    assert_eq!(identity.expires_at_ms, Some(identity.created_at_ms + 60_000));
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn a_spec_that_is_missing_wrong_or_not_honoured_is_refused_before_the_provider_hears_of_it() {
    let mut fake = Fake::default();
    fake.refused.push(Field::TtlS);
    let fake = Arc::new(fake);
    let sandbox = AsyncSandbox::new(fake.clone());
    let mut with_sidecar = SandboxSpec::default();
    with_sidecar.sidecars.push(SandboxSidecarSpec { name: "a".into(), image: "b".into(), ..Default::default() });
    let cases = [
        (None, ErrorKind::InvalidInput, Some("spec")),
        (Some(SandboxSpec::default().with_workdir("rel")), ErrorKind::InvalidInput, Some("workdir")),
        // Values first, then what the provider honours.
        (Some(SandboxSpec::default().with_ttl_s(-1.0)), ErrorKind::InvalidInput, Some("ttl_s")),
        (Some(SandboxSpec::default().with_ttl_s(1.0)), ErrorKind::Unsupported, Some("ttl_s")),
        (Some(with_sidecar), ErrorKind::Unsupported, None),
    ];
    for (spec, kind, field) in cases {
        let error = sandbox.start(spec).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (kind, field), "{error}");
    }
    assert!(fake.calls().is_empty());
    sandbox.start(Some(SandboxSpec::default())).await.expect("a refused start may be repeated");
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn a_failed_create_leaves_the_provider_open_and_may_be_repeated() {
    let fake = Fake::with(&[]);
    fake.seen().fail_create = 1;
    let sandbox = sandbox(&fake);
    let error = sandbox.start(None).await.unwrap_err();
    assert_eq!((error.kind(), error.provider()), (ErrorKind::Create, Some("fake")));
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Unknown);
    sandbox.start(None).await.unwrap();
    assert!(!fake.calls().contains(&"aclose".to_owned()));
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn of_two_starts_at_once_the_second_is_refused() {
    let gate = Gate::shut();
    let fake = Arc::new(Fake { create_gate: Some(gate.clone()), ..Fake::default() });
    let sandbox = Arc::new(sandbox(&fake));
    let first = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.start(None).await }
    });
    fake.until("create", |seen| seen.calls == ["create"]).await;
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Starting);
    for error in [sandbox.start(None).await.unwrap_err(), sandbox.stop().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidState);
        assert!(error.to_string().contains("starting"), "{error}");
    }
    gate.open();
    first.await.unwrap().unwrap();
    let error = sandbox.start(None).await.unwrap_err();
    assert!(error.to_string().contains("already started"), "{error}");
    sandbox.stop().await.unwrap();
    let error = sandbox.start(None).await.unwrap_err();
    assert!(error.to_string().contains("has been stopped"), "{error}");
}

#[tokio::test]
async fn a_dropped_start_leaks_nothing_and_may_be_repeated() {
    let gate = Gate::shut();
    let fake = Arc::new(Fake { create_gate: Some(gate.clone()), ..Fake::default() });
    let sandbox = Arc::new(sandbox(&fake));
    let start = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.start(None).await }
    });
    fake.until("create", |seen| seen.calls == ["create"]).await;
    start.abort();
    assert!(start.await.unwrap_err().is_cancelled());
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Unknown);
    gate.open();
    fake.until("close", |seen| seen.calls == ["create", "created 1", "close 1"] && seen.open.is_empty()).await;
    sandbox.start(None).await.unwrap();
    assert_eq!(sandbox.handle().unwrap().sandbox_id, "2");
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn an_owned_provider_is_not_ended_under_a_dropped_start() {
    let gate = Gate::shut();
    let fake = Arc::new(Fake { create_gate: Some(gate.clone()), ..Fake::default() });
    let sandbox = sandbox(&fake);
    tokio::select! {
        _ = sandbox.start(None) => unreachable!("the gate is shut"),
        () = fake.until("create", |seen| seen.calls == ["create"]) => {}
    }
    sandbox.stop().await.unwrap();
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Stopped);
    drop(sandbox);
    gate.open();
    fake.until("aclose", |seen| seen.calls == ["create", "created 1", "close 1", "aclose"]).await;
}

#[tokio::test]
async fn a_create_that_panics_is_over() {
    let fake = Arc::new(Fake { create_panics: true, ..Fake::default() });
    let sandbox = Arc::new(sandbox(&fake));
    let start = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.start(None).await }
    });
    assert!(start.await.unwrap_err().is_panic());
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Unknown);
    sandbox.stop().await.unwrap();
    assert_eq!(fake.calls(), ["create", "aclose"], "nothing is left to go on");
}

#[test]
fn a_create_whose_runtime_is_shut_down_goes_on_and_is_closed() {
    let gate = Gate::shut();
    let fake = Arc::new(Fake { create_gate: Some(gate.clone()), ..Fake::default() });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let sandbox = Arc::new(sandbox(&fake));
    runtime.spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.start(None).await }
    });
    fake.wait("create", |seen| seen.calls == ["create"]);
    drop(runtime);
    gate.open();
    fake.wait("close", |seen| seen.calls == ["create", "created 1", "close 1"] && seen.open.is_empty());
}

#[tokio::test]
async fn a_create_beyond_its_ready_timeout_is_given_up_and_closed_later() {
    let gate = Gate::shut();
    let fake = Arc::new(Fake { create_gate: Some(gate.clone()), ..Fake::default() });
    let sandbox = AsyncSandbox::new(fake.clone());
    let mut spec = SandboxSpec::default();
    spec.ready_timeout_s = Some(0.05);
    let error = sandbox.start(Some(spec)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.to_string(), "create did not finish within 0.05 s");
    gate.open();
    fake.until("close", |seen| seen.calls.contains(&"close 1".to_owned()) && seen.open.is_empty()).await;
}

#[tokio::test]
async fn startup_files_go_up_in_order_and_everybody_inside_can_read_them() {
    let fake = Fake::with(&[]);
    let sandbox = AsyncSandbox::new(fake.clone());
    let spec = SandboxSpec::default().with_file("/z", "1").with_file("rel/a", &b"\xff"[..]);
    sandbox.start(Some(spec)).await.unwrap();
    assert_eq!(fake.calls(), ["create", "created 1", "upload 1 /z", "upload 1 rel/a"]);
    assert_eq!(fake.seen().files["/z"], (b"1".to_vec(), 0o644));
    assert_eq!(fake.seen().files["rel/a"], (b"\xff".to_vec(), 0o644));
    assert!(fake.seen().specs[0].files.0.is_empty(), "they are not the provider's business");
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn a_startup_file_that_fails_stops_the_sandbox_and_its_error_is_told() {
    let fake = Fake::with(&[]);
    fake.seen().fail_upload_of = Some("b".into());
    let sandbox = AsyncSandbox::new(fake.clone());
    let spec = SandboxSpec::default().with_file("a", "").with_file("b", "").with_file("c", "");
    let error = sandbox.start(Some(spec)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert_eq!(fake.calls(), ["create", "created 1", "upload 1 a", "upload 1 b", "close 1", "aclose"]);
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Stopped);
}

#[tokio::test]
async fn when_closing_after_a_failed_file_fails_too_stop_can_be_repeated() {
    let fake = Fake::with(&[]);
    {
        let mut seen = fake.seen();
        seen.fail_upload_of = Some("b".into());
        seen.fail_close = 1;
    }
    let sandbox = AsyncSandbox::new(fake.clone());
    let error = sandbox.start(Some(SandboxSpec::default().with_file("b", ""))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "the original error");
    assert!(error.help().is_some_and(|help| help.contains("call stop() again")));
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Running);
    assert_eq!(sandbox.run("x").await.unwrap_err().kind(), ErrorKind::InvalidState);
    sandbox.stop().await.unwrap();
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Stopped);
    assert!(fake.seen().open.is_empty());
}

#[tokio::test]
async fn a_start_dropped_while_a_file_goes_up_closes_the_sandbox() {
    let gate = Gate::shut();
    let fake = Arc::new(Fake { upload_gate: Some(gate), ..Fake::default() });
    let sandbox = AsyncSandbox::new(fake.clone());
    let start = sandbox.start(Some(SandboxSpec::default().with_file("a", "")));
    tokio::select! {
        _ = start => unreachable!("the gate is shut"),
        () = fake.until("upload", |seen| seen.calls.len() == 3) => {}
    }
    fake.until("close", |seen| seen.open.is_empty()).await;
    sandbox.stop().await.unwrap();
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Stopped);
}

#[tokio::test]
async fn a_setup_that_fails_or_is_dropped_stops_the_sandbox() {
    let fake = Fake::with(&[]);
    let failing = sandbox(&fake).with_ownership(Ownership::Shared);
    let setup = async |_: &AsyncSandbox| Err::<(), _>(SandboxError::not_found("tool"));
    let error = failing.start_with_setup(None, setup).await.unwrap_err();
    assert_eq!(error.to_string(), "tool");
    assert!(fake.seen().open.is_empty());
    let dropped = sandbox(&fake).with_ownership(Ownership::Shared);
    let hang = async |sandbox: &AsyncSandbox| {
        sandbox.run("x").await?;
        std::future::pending::<sandbox_core::Result<()>>().await
    };
    tokio::select! {
        _ = dropped.start_with_setup(None, hang) => unreachable!("it hangs"),
        () = fake.until("exec", |seen| seen.calls.contains(&"exec 2".to_owned())) => {}
    }
    fake.until("close", |seen| seen.open.is_empty()).await;
    let kept = sandbox(&fake).with_ownership(Ownership::Shared);
    let code = kept.start_with_setup(None, async |sandbox| Ok(sandbox.run("x").await?.return_code())).await.unwrap();
    assert_eq!(code, 3);
    kept.stop().await.unwrap();
}

#[test]
fn the_futures_can_be_sent_to_other_threads() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let sandbox = AsyncSandbox::new(Fake::with(&[]));
    drop(is_send(sandbox.start(None)));
    drop(is_send(sandbox.stop()));
    drop(is_send(sandbox.run("x")));
    drop(is_send(sandbox.write_file("a", "b")));
    drop(is_send(sandbox_api::flush_cleanup(Duration::ZERO)));
    is_send(sandbox);
}
