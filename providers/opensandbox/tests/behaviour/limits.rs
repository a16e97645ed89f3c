//! How long a create may take, and each of its steps; what is handed out early on request.

use std::time::{Duration, Instant};

use opensandbox_double::{ControlOptions, Fault};
use sandbox_core::{ErrorKind, SandboxProvider, SandboxSpec};
use serde_json::{Value, json};

use crate::support::{World, eventually, options, soon};

fn with(option: &str, value: Value) -> SandboxSpec {
    let mut spec = SandboxSpec::default();
    spec.provider_options.insert(option.to_owned(), value);
    spec
}

#[tokio::test]
async fn one_try_of_a_create_takes_no_longer_than_is_set_and_leaves_nothing() {
    let world = World::new(json!({ "create": { "timeout_s": 0.5, "retries": 1, "ready_timeout_s": 60 } })).await;
    world.control.faults().plan("GET", "/proxy/44772/ping", Fault::Delay(Duration::from_secs(60)), 2);
    let started = Instant::now();
    let error = soon(world.provider.create(SandboxSpec::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(world.creates(), 2, "one repetition");
    eventually(|| world.control.ids().is_empty()).await;
    world.control.end().await;
}

#[tokio::test]
async fn the_answer_to_a_create_is_waited_for_as_long_as_is_set_and_what_it_made_is_found() {
    let world = World::new(json!({ "create": { "request_timeout_s": 2.0 } })).await;
    // It is made at once, and its answer stops half-way.
    world.control.faults().plan("POST", "/v1/sandboxes", Fault::Stall(5), 1);
    let handle = world.sandbox().await;
    assert_eq!((world.creates(), world.control.ids()), (1, vec![handle.sandbox_id.clone()]));
    world.control.end().await;
}

#[tokio::test]
async fn one_try_to_reach_a_new_sandbox_takes_no_longer_than_is_set() {
    let world = World::new(json!({ "create": { "connect_attempt_timeout_s": 0.3 } })).await;
    world.control.faults().plan("GET", "/proxy/44772/ping", Fault::Delay(Duration::from_secs(60)), 1);
    let handle = world.sandbox().await;
    assert_eq!(world.text(&handle, "echo up").await, "up\n");
    world.control.end().await;
}

#[tokio::test]
async fn a_daemon_that_refuses_its_clients_is_told_at_once() {
    let world = World::new(json!({})).await;
    world.control.faults().plan("GET", "/proxy/44772/ping", Fault::error(401, "Unauthorized"), 100);
    let error = soon(world.provider.create(SandboxSpec::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
    assert_eq!(world.calls("GET", "/proxy/44772/ping"), 1);
    eventually(|| world.control.ids().is_empty()).await;
    world.control.end().await;
}

#[tokio::test]
async fn a_sandbox_is_handed_out_before_its_daemon_answers_only_on_request() {
    for (settings, spec) in [
        (json!({ "create": { "skip_health_check": true } }), SandboxSpec::default()),
        (json!({}), with("skip_health_check", json!(true))),
    ] {
        let world = World::new(settings).await;
        world.control.faults().plan("GET", "/proxy/44772/ping", Fault::error(502, "BACKEND_CONNECTION_FAILED"), 3);
        let handle = soon(world.provider.create(spec)).await.unwrap();
        assert_eq!(world.calls("GET", "/proxy/"), 0, "nobody has asked the daemon");
        // What is asked of it is waited for now.
        assert_eq!(world.text(&handle, "echo up").await, "up\n");
        world.control.end().await;
    }
    // The option of a spec goes before the setting.
    let world = World::new(json!({ "create": { "skip_health_check": true } })).await;
    soon(world.provider.create(with("skip_health_check", json!(false)))).await.unwrap();
    assert!(world.calls("GET", "/proxy/44772/ping") > 0);
    world.control.end().await;
}

#[tokio::test]
async fn the_pull_policy_stands_where_servers_look_for_it_unless_it_is_null_or_given() {
    const KEYS: [&str; 2] = ["imagePullPolicy", "opensandbox.extensions.image-pull-policy"];
    let never = with("extensions", json!({ "imagePullPolicy": "Never" }));
    for (policy, spec, expected) in [
        (json!("Always"), SandboxSpec::default(), [json!("Always"), json!("Always")]),
        (json!(null), SandboxSpec::default(), [json!(null), json!(null)]),
        (json!("Always"), never, [json!("Never"), json!("Always")]),
    ] {
        let world = World::new(json!({ "create": { "image_pull_policy": policy } })).await;
        let handle = soon(world.provider.create(spec)).await.unwrap();
        let sent = world.control.created_with(&handle.sandbox_id).unwrap();
        assert_eq!(KEYS.map(|key| sent["extensions"][key].clone()), expected);
        world.control.end().await;
    }
}

#[tokio::test]
async fn a_create_is_given_up_at_every_step_without_a_trace() {
    let spec = || {
        let mut spec = SandboxSpec::default().with_workdir("/tmp").with_ttl_s(90.5);
        spec.ready_timeout_s = Some(60.0);
        spec
    };
    for (method, path) in [
        ("POST", "/v1/sandboxes"),
        ("GET", "/v1/sandboxes/"),
        ("GET", "/endpoints/"),
        ("GET", "/proxy/44772/ping"),
        ("POST", "/proxy/44772/command"),
        ("POST", "/renew-expiration"),
    ] {
        let states = vec!["Pending".to_owned()];
        let world = World::with(ControlOptions { states_before_running: states, ..options() }, json!({})).await;
        world.control.faults().plan(method, path, Fault::Delay(Duration::from_millis(700)), 1);
        let create = world.provider.create(spec());
        tokio::time::timeout(Duration::from_millis(350), create).await.expect_err("it was delayed");
        eventually(|| world.calls("DELETE", "/v1/sandboxes/") == 1 && world.control.ids().is_empty()).await;
        world.control.end().await;
    }
    // A failure at every step leaves as little, where nothing of it passes.
    for (method, path) in [
        ("GET", "/v1/sandboxes/"),
        ("GET", "/endpoints/"),
        ("POST", "/proxy/44772/command"),
        ("POST", "/renew-expiration"),
    ] {
        let world = World::new(json!({ "create": { "retries": 0 } })).await;
        world.control.faults().plan(method, path, Fault::error(403, "NO"), 1);
        let error = soon(world.provider.create(spec())).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::CreateVerification), "{error:?}");
        eventually(|| world.creates() == 1 && world.control.ids().is_empty()).await;
        world.control.end().await;
    }
}

#[tokio::test]
async fn a_clean_up_that_fails_hides_the_reason_of_no_create() {
    let world = World::new(json!({ "probe": { "command": "exit 5" }, "create": { "retries": 0 },
                                   "operations": { "retries": 0 } }))
    .await;
    world.control.faults().plan("DELETE", "/v1/sandboxes/", Fault::error(500, "GENERAL::UNKNOWN_ERROR"), 1);
    let error = soon(world.provider.create(SandboxSpec::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CreateVerification, "{error:?}");
    assert!(error.to_string().contains("it ended with 5"), "{error}");
    world.control.end().await;
}

#[tokio::test]
async fn a_resource_that_nobody_knows_is_refused_by_name() {
    let error = SandboxSpec::from_json(json!({ "resources": { "tpu": 1 } })).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(format!("{error} {:?}", error.field()).contains("tpu"), "{error:?}");
}
