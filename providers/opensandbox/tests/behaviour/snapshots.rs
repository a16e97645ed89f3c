//! Snapshots and egress rules.

use opensandbox_double::{ControlOptions, Fault};
use sandbox_core::{ErrorKind, NetworkPolicy, PolicyRule, SandboxHandle, SandboxProvider, SandboxSpec, Snapshot};
use serde_json::json;

use crate::support::{World, options, soon};

async fn snapshot(world: &World, handle: &SandboxHandle, name: &str) -> sandbox_core::Result<Snapshot> {
    soon(world.provider.as_snapshots().unwrap().create_snapshot(handle, name.to_owned())).await
}

#[tokio::test]
async fn a_snapshot_is_waited_for_listed_made_a_sandbox_of_and_removed() {
    let states = ["Creating", "Creating", "creating"].map(str::to_owned).to_vec();
    let world = World::with(ControlOptions { states_before_ready: states, ..options() }, json!({})).await;
    let handle = world.sandbox().await;
    let made = snapshot(&world, &handle, "first").await.unwrap();
    assert_eq!(made.name, "first");
    assert!(made.created_at_ms.is_some(), "{made:?}");
    assert!(world.calls("GET", "/v1/snapshots/") >= 3, "it was ready when it was handed out");
    let snapshots = world.provider.as_snapshots().unwrap();
    assert_eq!(soon(snapshots.list_snapshots()).await.unwrap(), std::slice::from_ref(&made));
    // As an image, or as an option.
    let id = made.id.strip_prefix("snapshot:").unwrap().to_owned();
    let mut by_option = SandboxSpec::default();
    by_option.provider_options.insert("snapshot_id".to_owned(), json!(id));
    for spec in [SandboxSpec::image(&made.id), by_option] {
        let restored = soon(world.provider.create(spec)).await.unwrap();
        let sent = world.control.created_with(&restored.sandbox_id).unwrap();
        assert_eq!((&sent["snapshotId"], &sent["image"]), (&json!(id), &json!(null)));
        // What a sandbox was made of stays as long as that is there.
        let error = soon(snapshots.remove_snapshot(made.id.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidState, "{error:?}");
        soon(world.provider.close(&restored)).await.unwrap();
    }
    soon(snapshots.remove_snapshot(made.id.clone())).await.unwrap();
    soon(snapshots.remove_snapshot(made.id.clone())).await.unwrap();
    assert_eq!(soon(snapshots.list_snapshots()).await.unwrap(), []);
    let mut gone = SandboxSpec::image(&made.id);
    gone.name = Some("none".to_owned());
    assert_eq!(soon(world.provider.create(gone)).await.unwrap_err().kind(), ErrorKind::NotFound);
    world.control.end().await;
}

#[tokio::test]
async fn both_an_image_and_a_snapshot_are_refused_before_anything_is_asked() {
    let world = World::new(json!({})).await;
    let mut spec = SandboxSpec::image("img");
    spec.provider_options.insert("snapshot_id".to_owned(), json!("s"));
    let error = world.provider.create(spec).await.unwrap_err();
    assert_eq!(error.field(), Some("provider_options.snapshot_id"));
    assert!(world.control.seen().is_empty());
    world.control.end().await;
}

#[tokio::test]
async fn a_snapshot_that_fails_is_told_with_its_reason_and_leaves_nothing() {
    let world = World::with(
        ControlOptions { states_before_ready: vec!["Creating".to_owned(); 2], ..options() },
        json!({ "operations": { "retries": 0 } }),
    )
    .await;
    let handle = world.sandbox().await;
    let failed = json!({ "id": "x", "status": { "state": "Failed", "message": "no space left" } }).to_string();
    let failed = Fault::Answer { status: 200, headers: Vec::new(), body: failed };
    world.control.faults().plan("GET", "/v1/snapshots/", failed, 1);
    let error = snapshot(&world, &handle, "n").await.unwrap_err();
    assert!(error.to_string().contains("no space left"), "{error}");
    assert_eq!(soon(world.provider.as_snapshots().unwrap().list_snapshots()).await.unwrap(), []);
    world.control.faults().plan("POST", "/snapshots", Fault::error(409, "SNAPSHOT::INVALID_SOURCE_STATE"), 1);
    assert_eq!(snapshot(&world, &handle, "n").await.unwrap_err().kind(), ErrorKind::InvalidState);
    world.control.faults().plan("POST", "/snapshots", Fault::error(501, "SNAPSHOT::NOT_SUPPORTED"), 1);
    assert_eq!(snapshot(&world, &handle, "n").await.unwrap_err().kind(), ErrorKind::Unsupported);
    world.control.end().await;
}

#[tokio::test]
async fn a_snapshot_that_takes_too_long_is_not_waited_for_and_does_not_stay() {
    let states = vec!["Creating".to_owned(); 10_000];
    let world = World::with(
        ControlOptions { states_before_ready: states, ..options() },
        json!({ "operations": { "pause_resume_timeout_s": 0.3 } }),
    )
    .await;
    let handle = world.sandbox().await;
    let error = snapshot(&world, &handle, "slow").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert_eq!(world.calls("DELETE", "/v1/snapshots/"), 1, "what nobody can use is removed");
    world.control.end().await;
}

#[tokio::test]
async fn every_page_of_snapshots_is_read() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    for number in 0..103 {
        snapshot(&world, &handle, &format!("n{number}")).await.unwrap();
    }
    let all = soon(world.provider.as_snapshots().unwrap().list_snapshots()).await.unwrap();
    assert_eq!(all.len(), 103);
    world.control.end().await;
}

#[tokio::test]
async fn egress_rules_are_set_and_read_where_the_sandbox_was_made_with_some() {
    let world = World::new(json!({})).await;
    let mut spec = SandboxSpec::default();
    let policy = json!({ "defaultAction": "deny", "egress": [{ "action": "allow", "target": "a.example" }] });
    spec.provider_options.insert("network_policy".to_owned(), policy.clone());
    let handle = soon(world.provider.create(spec)).await.unwrap();
    assert_eq!(world.control.created_with(&handle.sandbox_id).unwrap()["networkPolicy"], policy);
    let policies = world.provider.as_network_policy().unwrap();
    let rule = |allow: bool, target: &str| PolicyRule { allow, target: target.to_owned(), ports: Vec::new() };
    let found = soon(policies.network_policy(&handle)).await.unwrap();
    assert_eq!(found, NetworkPolicy { default_allow: false, rules: vec![rule(true, "a.example")] });
    let wanted = NetworkPolicy { default_allow: true, rules: vec![rule(false, "*.b.example")] };
    soon(policies.set_network_policy(&handle, wanted.clone())).await.unwrap();
    assert_eq!(soon(policies.network_policy(&handle)).await.unwrap(), wanted);
    let mut with_ports = wanted;
    with_ports.rules[0].ports = vec![443];
    let error = soon(policies.set_network_policy(&handle, with_ports)).await.unwrap_err();
    assert_eq!(error.field(), Some("rules[0].ports"));
    let plain = world.sandbox().await;
    let error = soon(policies.network_policy(&plain)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error:?}");
    assert!(error.help().unwrap().contains("network_policy"), "{error:?}");
    world.control.end().await;
}
