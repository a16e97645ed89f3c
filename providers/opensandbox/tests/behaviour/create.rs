//! Making sandboxes.

use std::time::Duration;

use opensandbox_double::{ControlOptions, Fault};
use sandbox_core::{ErrorKind, ExecRequest, SandboxProvider, SandboxSpec, SandboxStatus};
use serde_json::json;

use crate::support::{KEY, World, eventually, options, soon};

#[tokio::test]
async fn what_is_asked_for_is_in_the_servers_words() {
    let world = World::new(json!({ "attribution": { "team": "a team!" } })).await;
    let spec = SandboxSpec::from_json(json!({
        "image": "img:1", "ttl_s": 90.5, "env": {"A": "b"}, "metadata": {"k": "v w"}, "name": "n",
        "resources": {"cpu": 1.5, "memory_mib": 64}, "entrypoint": ["sleep", "9"],
        "provider_options": {"platform": {"os": "linux", "arch": "amd64"}, "resource_requests": "limits",
                             "image_auth": {"username": "u", "password": "p"}, "extensions": {"x": "y"}},
    }))
    .unwrap();
    let handle = soon(world.provider.create(spec)).await.unwrap();
    let sent = world.control.created_with(&handle.sandbox_id).unwrap();
    assert_eq!(sent["image"], json!({"uri": "img:1", "auth": {"username": "u", "password": "p"}}));
    assert_eq!(sent["entrypoint"], json!(["sleep", "9"]));
    assert_eq!((&sent["timeout"], &sent["env"]["A"]), (&json!(91), &json!("b")));
    assert_eq!(sent["resourceLimits"], json!({"cpu": "1500m", "memory": "64Mi"}));
    assert_eq!(sent["resourceRequests"], sent["resourceLimits"]);
    assert_eq!((&sent["metadata"]["k"], &sent["metadata"]["sandbox/team"]), (&json!("v_w"), &json!("a_team")));
    assert_eq!(sent["extensions"]["imagePullPolicy"], json!("IfNotPresent"));
    assert_eq!((&sent["extensions"]["x"], &sent["platform"]["arch"]), (&json!("y"), &json!("amd64")));
    world.control.end().await;
}

#[tokio::test]
async fn nothing_is_asked_for_without_an_image_or_with_a_bad_option() {
    let world = World::new(json!({ "create": { "default_image": null } })).await;
    let error = world.provider.create(SandboxSpec::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("image")));
    let mut spec = SandboxSpec::image("i");
    spec.provider_options.insert("no_such".to_owned(), json!(1));
    let error = world.provider.create(spec).await.unwrap_err();
    assert_eq!(error.field(), Some("provider_options.no_such"));
    assert!(world.control.seen().is_empty());
    world.control.end().await;
}

#[tokio::test]
async fn states_on_the_way_and_a_missing_address_are_waited_for() {
    let states = ["Pending", "Allocated", "Allocated"].map(str::to_owned).to_vec();
    let world = World::with(ControlOptions { states_before_running: states, ..options() }, json!({})).await;
    world.control.faults().plan("GET", "/endpoints/", Fault::error(404, "KUBERNETES::POD_IP_NOT_AVAILABLE"), 2);
    let handle = world.sandbox().await;
    assert_eq!(world.text(&handle, "echo up").await, "up\n");
    world.control.end().await;
}

#[tokio::test]
async fn f03_what_passes_is_tried_again_and_what_does_not_is_told() {
    let world = World::new(json!({ "create": { "retries": 3 } })).await;
    for fault in [Fault::error(503, "BUSY"), Fault::html(503), Fault::error(429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED")]
    {
        world.control.faults().plan("POST", "/v1/sandboxes", fault.with_header("retry-after", "0"), 1);
    }
    world.sandbox().await;
    for (fault, kind) in [
        (Fault::error(401, "INVALID_API_KEY"), ErrorKind::Unauthorized),
        (Fault::error(403, "X"), ErrorKind::PermissionDenied),
        (Fault::error(409, "X"), ErrorKind::InvalidState),
        (Fault::error(500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED"), ErrorKind::NotFound),
        (Fault::error(500, "GENERAL::UNKNOWN_ERROR"), ErrorKind::Create),
        (Fault::html(413), ErrorKind::InvalidInput),
    ] {
        let before = world.creates();
        world.control.faults().plan("POST", "/v1/sandboxes", fault.clone(), 1);
        let error = soon(world.provider.create(SandboxSpec::default())).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}: {error:?}");
        assert_eq!(world.creates(), before + 1, "{fault:?}");
        assert!(!error.to_string().contains(KEY), "{error}");
    }
    assert_eq!(world.control.ids().len(), 1);
    world.control.end().await;
}

#[tokio::test]
async fn a_create_whose_answer_is_lost_is_found_by_its_label_and_made_once() {
    let world = World::new(json!({})).await;
    world.control.faults().plan("POST", "/v1/sandboxes", Fault::DropAfter, 1);
    let handle = world.sandbox().await;
    assert_eq!(world.control.ids(), std::slice::from_ref(&handle.sandbox_id));
    assert_eq!(world.text(&handle, "echo up").await, "up\n");
    world.control.end().await;
}

#[tokio::test]
async fn a_failed_probe_removes_what_was_made() {
    let world = World::new(json!({ "probe": { "command": "exit 5", "deadline_s": 0.3 } })).await;
    let error = soon(world.provider.create(SandboxSpec::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CreateVerification, "{error:?}");
    assert!(error.to_string().contains("it ended with 5"), "{error}");
    eventually(|| world.control.ids().is_empty()).await;
    assert_eq!(world.creates(), 2, "one repetition");
    world.control.end().await;
}

#[tokio::test]
async fn the_probe_must_succeed_as_often_as_asked_in_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("n");
    // It fails at the third run: two good ones before it count for nothing.
    let command = format!("echo x >>{0}; test $(wc -l <{0}) -ne 3 && echo ready", file.display());
    let probe = json!({ "command": command, "expected_stdout": "ready", "stable_count": 3, "deadline_s": 30 });
    let world = World::new(json!({ "probe": probe })).await;
    world.sandbox().await;
    assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 6);
    world.control.end().await;
}

#[tokio::test]
async fn a_sandbox_that_dies_on_its_way_is_told_with_the_servers_reason() {
    let states = vec!["Failed".to_owned()];
    let world = World::with(ControlOptions { states_before_running: states, ..options() }, json!({})).await;
    let error = soon(world.provider.create(SandboxSpec::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CreateVerification, "{error:?}");
    eventually(|| world.control.ids().is_empty()).await;
    world.control.end().await;
}

#[tokio::test]
async fn a_create_that_is_not_wanted_any_more_leaves_nothing() {
    for (method, path) in [
        ("POST", "/v1/sandboxes"),
        ("GET", "/endpoints/"),
        ("GET", "/proxy/44772/ping"),
        ("POST", "/proxy/44772/command"),
    ] {
        let world = World::new(json!({})).await;
        world.control.faults().plan(method, path, Fault::Delay(Duration::from_millis(600)), 1);
        let create = world.provider.create(SandboxSpec::default());
        tokio::time::timeout(Duration::from_millis(300), create).await.expect_err("it was delayed");
        // It goes on without anybody, and takes away what it has made.
        eventually(|| world.calls("DELETE", "/v1/sandboxes/") == 1 && world.control.ids().is_empty()).await;
        world.control.end().await;
    }
}

#[tokio::test]
async fn it_is_not_waited_for_longer_than_asked() {
    let states = vec!["Pending".to_owned(); 10_000];
    let world = World::with(ControlOptions { states_before_running: states, ..options() }, json!({})).await;
    let mut spec = SandboxSpec::default();
    spec.ready_timeout_s = Some(0.4);
    let error = soon(world.provider.create(spec)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    eventually(|| world.control.ids().is_empty()).await;
    world.control.end().await;
}

#[tokio::test]
async fn the_expiry_is_moved_as_long_as_the_maker_lives_and_a_failure_is_told() {
    let world = World::new(json!({ "create": { "renew_interval_s": 0.1 } })).await;
    let error = world.provider.create(SandboxSpec::default()).await.unwrap_err();
    assert_eq!(error.field(), Some("ttl_s"));
    let handle = soon(world.provider.create(SandboxSpec::default().with_ttl_s(100.0))).await.unwrap();
    eventually(|| world.calls("POST", "renew-expiration") >= 2).await;
    world.control.faults().plan("POST", "renew-expiration", Fault::error(400, "X"), 1);
    let refused = async {
        loop {
            if let Err(error) = world.provider.exec(&handle, ExecRequest::shell("true")).await {
                return error;
            }
        }
    };
    let error = soon(refused).await;
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    assert!(error.to_string().contains("expiry"), "{error}");
    soon(world.provider.close(&handle)).await.unwrap();
    assert_eq!(soon(world.provider.status(&handle)).await.unwrap(), SandboxStatus::Stopped);
    world.control.end().await;
}

#[tokio::test]
async fn a_short_life_is_refused_by_a_server_that_only_makes_it_longer() {
    let world = World::with(ControlOptions { only_extends: true, ..options() }, json!({})).await;
    let error = soon(world.provider.create(SandboxSpec::default().with_ttl_s(5.0))).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("ttl_s")), "{error:?}");
    eventually(|| world.control.ids().is_empty()).await;
    world.control.end().await;
}
