//! The rights that the provider says it needs are enough, and each that is missing is told.

use std::collections::BTreeSet;

use fargate_double::Options;
use sandbox_core::{ErrorKind, SandboxProvider, from_json};
use sandbox_provider_fargate::{FargateConfig, needs};
use serde_json::{Value, json};

use crate::support::{Service, provider, settings, spec};

/// The policy for these settings.
fn policy(settings: Value) -> Value {
    let config: FargateConfig = from_json(settings, "config").expect("the settings are good");
    needs(&config, &[]).expect("they can be meant").orchestrator
}

/// What a policy allows.
fn actions(policy: &Value) -> BTreeSet<String> {
    let statements = policy["Statement"].as_array().unwrap().iter();
    let actions = statements.flat_map(|statement| statement["Action"].as_array().unwrap());
    actions.map(|action| action.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy_that_is_printed_is_enough_and_not_too_much() {
    let more = json!({"address": "public", "assign_public_ip": true, "tags": {"team": "x"}});
    let asked =
        policy(json!({"region": "us-east-1", "address": "public", "assign_public_ip": true, "tags": {"team": "x"}}));
    let service = Service::with(Options { policy: asked.clone(), ..Options::default() }, more).await;
    let sandbox = service.sandbox().await;
    assert_eq!(service.sh(&sandbox, "echo works").await, "works\n");
    let status = service.provider.status(&sandbox).await.expect("it may be asked");
    assert_eq!(status, sandbox_core::SandboxStatus::Running);
    let sweep = service.provider.as_list_sweep().expect("it sweeps");
    let listed = sweep.list(Default::default()).await.expect("it may list");
    assert_eq!(listed.len(), 1);
    service.provider.close(&sandbox).await.expect("it is closed");
    // Every right was used, but for that to pass a role, which AWS checks by itself.
    let mut unused = actions(&asked);
    for operation in service.double.operations() {
        assert_eq!(
            service.double.answers(&operation, 400) + service.double.answers(&operation, 403),
            refusals(&operation, &service),
            "{operation}"
        );
        unused.retain(|action| action.split(':').nth(1) != Some(operation.as_str()));
    }
    unused.remove("iam:PassRole");
    // Tags of a sandbox change when it is renewed only.
    unused.remove("ecs:TagResource");
    assert_eq!(unused, BTreeSet::new(), "rights that nothing needed");
    service.ends_empty().await;
}

/// Refusals that are answers: a definition is looked for before it is registered.
fn refusals(operation: &str, service: &Service) -> u64 {
    if operation == "DescribeTaskDefinition" { service.double.answers(operation, 400) } else { 0 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_and_a_wrong_key_fail_at_once() {
    let service = Service::new().await;
    let account = service.double.account();
    let key = |id: &str, secret: &str| json!({"credentials": {"access_key_id": id, "secret_access_key": secret}});
    let stranger = key(&account.stranger.access_key_id, &account.stranger.secret_access_key);
    let forged = key(&account.operator.access_key_id, "0123456789012345678901234567890123456789");
    for (name, more, kinds) in [
        ("stranger", stranger, [ErrorKind::PermissionDenied, ErrorKind::Unauthorized]),
        ("forged", forged, [ErrorKind::Unauthorized, ErrorKind::Unauthorized]),
    ] {
        let before = service.double.operations().iter().map(|operation| service.double.calls(operation)).sum::<u64>();
        let error = provider(&service.double, &more).create(spec()).await.unwrap_err();
        assert!(kinds.contains(&error.kind()), "{name}: {:?} {error}", error.kind());
        let after = service.double.operations().iter().map(|operation| service.double.calls(operation)).sum::<u64>();
        assert_eq!(after - before, 1, "{name}: it was asked once");
    }
    assert!(settings(&service.double, &json!({})).is_object());
    service.ends_empty().await;
}
