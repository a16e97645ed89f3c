//! The state table, stopping, and the thin calls.

use std::{sync::Arc, time::Duration};

use crate::fake::{Fake, Gate};
use sandbox_api::{AsyncSandbox, ControlTimeouts, Ownership};
use sandbox_core::{Capability, ErrorKind, Field, Result, SandboxSpec, SandboxStatus};
use serde_json::json;

async fn started(fake: &Arc<Fake>, spec: SandboxSpec) -> AsyncSandbox {
    let sandbox = AsyncSandbox::new(fake.clone());
    sandbox.start(Some(spec)).await.unwrap();
    sandbox
}

fn text<T: std::fmt::Debug>(result: Result<T>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    error.to_string()
}

#[tokio::test]
async fn status_follows_the_state_table() {
    let fake = Fake::with(&[Capability::Connect]);
    let new = AsyncSandbox::new(fake.clone());
    assert_eq!(new.status().await.unwrap(), SandboxStatus::Unknown);
    assert!(text(new.run("x").await).contains("has not been started"));
    assert!(text(new.handle()).contains("has not been started"));
    assert!(fake.calls().is_empty(), "the provider is not asked");

    let sandbox = started(&fake, SandboxSpec::default()).await;
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Running);
    let descriptor = sandbox.serialize(None).await.unwrap();

    fake.seen().fail_close = 1;
    assert_eq!(sandbox.stop().await.unwrap_err().to_string(), "scripted close failure");
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Running, "a failed stop changes nothing");
    sandbox.run("x").await.expect("commands still work");
    assert!(!fake.calls().contains(&"aclose".to_owned()));

    let connected = AsyncSandbox::connect(fake.clone(), descriptor.clone()).await.unwrap();
    assert_eq!(connected.status().await.unwrap(), SandboxStatus::Running);
    assert!(text(connected.start(Some(SandboxSpec::default())).await).contains("already started"));
    connected.disconnect().await.unwrap();
    connected.disconnect().await.expect("twice is fine");
    connected.stop().await.expect("and so is stop");
    let asked = fake.calls().len();
    assert_eq!(connected.status().await.unwrap(), SandboxStatus::Unknown);
    assert!(text(connected.run("x").await).contains("not been started"));
    assert!(text(connected.start(None).await).contains("stopped"));

    sandbox.stop().await.unwrap();
    let asked_by_stop = fake.calls().len();
    assert_eq!(asked_by_stop, asked + 2, "close and aclose");
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Stopped);
    assert!(text(sandbox.run("x").await).contains("not been started"));
    assert!(text(sandbox.start(None).await).contains("stopped"));
    assert_eq!(fake.calls().len(), asked_by_stop, "the provider is not asked");

    new.stop().await.unwrap();
    assert_eq!(new.status().await.unwrap(), SandboxStatus::Stopped);
    assert!(text(new.start(None).await).contains("stopped"));
}

#[tokio::test]
async fn stop_is_idempotent_and_ends_only_an_owned_provider() {
    let fake = Fake::with(&[]);
    let sandbox = started(&fake, SandboxSpec::default()).await;
    sandbox.stop().await.unwrap();
    sandbox.stop().await.unwrap();
    assert_eq!(fake.calls(), ["create", "created 1", "close 1", "aclose"]);
    let shared = AsyncSandbox::new(fake.clone()).with_ownership(Ownership::Shared);
    shared.start(Some(SandboxSpec::default())).await.unwrap();
    shared.stop().await.unwrap();
    shared.stop().await.unwrap();
    assert_eq!(fake.calls().iter().filter(|call| *call == "aclose").count(), 1);
}

#[tokio::test]
async fn a_provider_that_could_not_be_ended_is_tried_again_without_closing_twice() {
    let fake = Fake::with(&[]);
    let sandbox = started(&fake, SandboxSpec::default()).await;
    fake.seen().fail_aclose = 1;
    assert_eq!(sandbox.stop().await.unwrap_err().to_string(), "scripted aclose failure");
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Stopped);
    sandbox.stop().await.unwrap();
    assert_eq!(fake.calls()[2..], ["close 1", "aclose", "aclose"]);
}

#[tokio::test]
async fn ten_stops_at_once_all_succeed() {
    let gate = Gate::shut();
    let fake = Arc::new(Fake { close_gate: Some(gate.clone()), ..Fake::default() });
    let sandbox = Arc::new(started(&fake, SandboxSpec::default()).await);
    let stops: Vec<_> = (0..10)
        .map(|_| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { sandbox.stop().await })
        })
        .collect();
    fake.until("all under way", |seen| seen.closing_at_once == 10).await;
    gate.open();
    for stop in stops {
        stop.await.unwrap().unwrap();
    }
    assert!(fake.seen().open.is_empty());
}

#[tokio::test]
async fn a_dropped_stop_can_be_repeated() {
    let gate = Gate::shut();
    let fake = Arc::new(Fake { close_gate: Some(gate.clone()), ..Fake::default() });
    let sandbox = started(&fake, SandboxSpec::default()).await;
    tokio::select! {
        _ = sandbox.stop() => unreachable!("the gate is shut"),
        () = fake.until("close", |seen| seen.calls.contains(&"close 1".to_owned())) => {}
    }
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Running);
    gate.open();
    sandbox.stop().await.unwrap();
    assert!(fake.seen().open.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_control_call_that_hangs_fails_with_its_name_and_limit() {
    let fake = Arc::new(Fake { close_gate: Some(Gate::shut()), status_gate: Some(Gate::shut()), ..Fake::default() });
    let sandbox = started(&fake, SandboxSpec::default()).await;
    let error = sandbox.status().await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TimedOut, "status did not finish within 15 s"));
    let error = sandbox.stop().await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TimedOut, "close did not finish within 60 s"));
    assert_eq!(error.provider(), Some("fake"));
    let mut timeouts = ControlTimeouts::default();
    timeouts.status = Duration::from_millis(1500);
    let sandbox = sandbox.with_timeouts(timeouts);
    assert!(sandbox.status().await.unwrap_err().to_string().ends_with("1.5 s"));
    fake.close_gate.as_ref().unwrap().open();
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn endpoint_checks_number_declaration_capability_and_state_in_this_order() {
    let without = Fake::with(&[]);
    let spec = || SandboxSpec::default().with_ports([80]);
    let new = AsyncSandbox::new(without).with_spec(spec());
    let error = new.endpoint(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = new.endpoint(81).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("81") && error.to_string().contains("[80]"), "{error}");
    let error = new.endpoint(80).await.unwrap_err();
    assert_eq!((error.kind(), error.provider()), (ErrorKind::Unsupported, Some("fake")));

    let fake = Fake::with(&[Capability::Endpoint]);
    let sandbox = AsyncSandbox::new(fake.clone()).with_spec(spec());
    assert_eq!(sandbox.endpoint(80).await.unwrap_err().kind(), ErrorKind::InvalidState);
    sandbox.start(Some(SandboxSpec::default().with_ports([90]))).await.unwrap();
    assert_eq!(sandbox.endpoint(80).await.unwrap_err().kind(), ErrorKind::InvalidInput, "the started spec counts");
    fake.seen().endpoint = Some(" http://h:90 ".into());
    let endpoint = sandbox.endpoint(90).await.unwrap();
    assert_eq!((endpoint.endpoint.as_str(), endpoint.headers["x"].as_str()), ("http://h:90", "y"));
    fake.seen().endpoint = Some("h:90".into());
    assert_eq!(sandbox.endpoint(90).await.unwrap_err().kind(), ErrorKind::Internal);
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn pause_resume_and_renew_check_state_before_capability() {
    let without = Fake::with(&[]);
    let sandbox = AsyncSandbox::new(without.clone());
    for error in [sandbox.pause().await.unwrap_err(), sandbox.resume().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidState);
    }
    assert_eq!(sandbox.renew(1.0).await.unwrap_err().kind(), ErrorKind::InvalidState);
    sandbox.start(Some(SandboxSpec::default())).await.unwrap();
    assert_eq!(sandbox.pause().await.unwrap_err().capability(), Some("sandbox.pause_resume/1"));
    assert_eq!(sandbox.resume().await.unwrap_err().capability(), Some("sandbox.pause_resume/1"));
    assert_eq!(sandbox.renew(1.0).await.unwrap_err().capability(), Some("sandbox.renew/1"));
    sandbox.stop().await.unwrap();

    let fake = Fake::with(&[Capability::PauseResume, Capability::Renew]);
    let sandbox = started(&fake, SandboxSpec::default()).await;
    sandbox.pause().await.unwrap();
    sandbox.resume().await.unwrap();
    assert_eq!(sandbox.handle().unwrap().generation, 1, "resume refreshes the handle");
    assert_eq!(sandbox.renew(f64::NAN).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(sandbox.renew(5.0).await.unwrap(), 17);
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn a_descriptor_carries_what_a_borrower_needs_and_connect_checks_it_first() {
    let fake = Fake::with(&[Capability::Connect, Capability::Endpoint]);
    let new = AsyncSandbox::new(fake.clone());
    assert_eq!(new.serialize(None).await.unwrap_err().kind(), ErrorKind::InvalidState);
    let spec = SandboxSpec::default().with_workdir("/w").with_ports([80]).with_ttl_s(60.0);
    let sandbox = started(&fake, spec).await;
    sandbox.set_default_user(Some("app")).unwrap();
    sandbox.set_default_workdir(Some("/d")).unwrap();
    let descriptor = sandbox.serialize(Some("s")).await.unwrap();
    for (key, value) in [
        ("id", json!("1")),
        ("scope", json!("s")),
        ("workdir", json!("/w")),
        ("ports", json!([80])),
        ("default_user", json!("app")),
        ("default_workdir", json!("/d")),
    ] {
        assert_eq!(descriptor[key], value, "{key}");
    }
    assert!(descriptor["expires_at_ms"].is_u64());

    let connected = AsyncSandbox::connect(fake.clone(), descriptor.clone()).await.unwrap();
    assert_eq!(fake.seen().descriptors[0], json!({"id": "1", "scope": "s", "workdir": "/w", "ports": [80]}));
    connected.endpoint(80).await.unwrap();
    connected.run("x").await.unwrap();
    let request = fake.seen().requests[0].clone();
    assert_eq!((request.cwd.unwrap().as_str(), request.user.as_deref()), (Some("/d"), Some("app")));
    assert!(request.timeout_s.is_some_and(|timeout_s| timeout_s < 60.0), "the expiry came along");

    for bad in [
        json!(1),
        json!({"id": "1", "ports": "80"}),
        json!({"id": "1", "ports": [0]}),
        json!({"id": "1", "workdir": "rel"}),
        json!({"id": "1", "default_user": ""}),
    ] {
        let error = AsyncSandbox::connect(fake.clone(), bad.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
    }
    assert_eq!(fake.seen().descriptors.len(), 1, "the provider hears of none of them");
    let plain = AsyncSandbox::connect(fake.clone(), json!({"id": "1", "ports": null})).await.unwrap();
    assert_eq!(plain.endpoint(80).await.unwrap_err().kind(), ErrorKind::InvalidInput);

    assert_eq!(sandbox.disconnect().await.unwrap_err().kind(), ErrorKind::InvalidState);
    fake.seen().fail_aclose = 1;
    connected.disconnect().await.unwrap_err();
    connected.run("x").await.expect("a failed disconnect leaves it connected");
    connected.disconnect().await.unwrap();
    assert!(fake.seen().open.contains("1"), "the sandbox lives on");
    plain.stop().await.unwrap();
    assert!(fake.seen().open.is_empty(), "stop on a connected one removes it");
    sandbox.stop().await.unwrap();

    let without = Fake::with(&[]);
    let new = AsyncSandbox::new(without.clone());
    assert_eq!(new.serialize(None).await.unwrap_err().kind(), ErrorKind::Unsupported, "capability before state");
    let error = AsyncSandbox::connect(without, json!(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn default_user_and_directory_need_a_started_sandbox_and_a_provider_that_takes_them() {
    let fake = Arc::new(Fake { refused: vec![Field::ExecUser, Field::ExecCwd], ..Fake::default() });
    let sandbox = AsyncSandbox::new(fake.clone());
    assert_eq!(sandbox.set_default_user(None).unwrap_err().kind(), ErrorKind::InvalidState);
    assert_eq!(sandbox.set_default_workdir(None).unwrap_err().kind(), ErrorKind::InvalidState);
    sandbox.start(Some(SandboxSpec::default())).await.unwrap();
    assert_eq!(sandbox.set_default_user(Some("a b")).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(sandbox.set_default_workdir(Some("rel")).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(sandbox.set_default_user(Some("a")).unwrap_err().field(), Some("exec.user"));
    assert_eq!(sandbox.set_default_workdir(Some("/a")).unwrap_err().field(), Some("exec.cwd"));
    sandbox.stop().await.unwrap();
}
