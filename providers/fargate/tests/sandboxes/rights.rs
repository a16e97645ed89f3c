//! What is needed of AWS, and what is told where it is missing.

use fargate_double::{BASE_IMAGE, Options};
use sandbox_core::{
    Connect, ErrorKind, ExecRequest, ListFilter, ListSweep, Renew, SandboxProvider, SandboxSpec, from_json,
};
use sandbox_provider_fargate::needs;
use serde_json::json;

use crate::support::Service;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_that_are_printed_are_enough_for_everything() {
    let printed = needs(&from_json(json!({ "region": "us-east-1" }), "settings").unwrap(), &[]).unwrap();
    let options = Options { policy: printed.orchestrator, ..Options::default() };
    let service = Service::with(options, json!({})).await;
    let handle = service.sandbox().await;
    assert_eq!(service.sh(&handle, "echo hi").await, "hi\n");
    service.provider.renew(&handle, 600.0).await.expect("it is renewed");
    let listed = service.provider.list(ListFilter::default()).await.expect("it is listed");
    let ids: Vec<_> = listed.iter().map(|record| record.handle.sandbox_id.as_str()).collect();
    assert_eq!(ids, [handle.sandbox_id.as_str()]);
    service.end(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_do_nothing_and_who_has_a_wrong_key_are_told_so_and_make_nothing() {
    let service = Service::new().await;
    let stranger = service.double.account().stranger.clone();
    let credentials = |secret: &str| json!({ "access_key_id": stranger.access_key_id, "secret_access_key": secret });
    for (secret, kind) in
        [(stranger.secret_access_key.as_str(), ErrorKind::PermissionDenied), ("wrong", ErrorKind::Unauthorized)]
    {
        let provider = service.provider(json!({ "credentials": credentials(secret) }));
        let error = provider.create(SandboxSpec::image(BASE_IMAGE)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.help().is_some() && !error.to_string().contains(secret));
    }
    assert!(service.double.tasks().is_empty());
    service.double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_needs_the_same_key_and_a_descriptor_holds_none() {
    let service = Service::new().await;
    let handle = service.sandbox().await;
    let descriptor = service.provider.serialize_handle(&handle, None).await.unwrap();
    let key = std::fs::read_to_string(service.folder.path().join("key")).unwrap();
    assert!(!descriptor.to_string().contains(key.trim()));
    let same = service.provider(json!({}));
    let again = same.connect(descriptor.clone()).await.expect("with the same key");
    let result = same.exec(&again, ExecRequest::shell("echo hi")).await.unwrap().collect(Default::default()).await;
    assert_eq!(result.unwrap().stdout_text(), "hi\n");
    let other = service.provider(json!({ "key": { "file": service.folder.path().join("other") } }));
    let error = other.connect(descriptor.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::PermissionDenied, Some("key")), "{error}");
    // The SSH server's key is pinned: another one is not talked to.
    let mut forged = descriptor;
    forged["host_key"] = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".into();
    let error = service.provider(json!({})).connect(forged).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    service.end(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_reached_by_its_public_address() {
    let more = json!({ "assign_public_ip": true, "address": "public" });
    let service = Service::with(Options::default(), more).await;
    let handle = service.sandbox().await;
    assert_eq!(service.sh(&handle, "echo hi").await, "hi\n");
    assert!(service.double.calls("DescribeNetworkInterfaces") > 0);
    service.end(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_definition_serves_sandboxes_of_every_size() {
    let service = Service::new().await;
    let spec = |cpu: f64, ttl_s: f64| {
        SandboxSpec::from_json(json!({
            "image": BASE_IMAGE, "ttl_s": ttl_s, "resources": {"cpu": cpu}, "env": {"SIZE": cpu.to_string()},
        }))
        .unwrap()
    };
    let (one, two) = (
        service.provider.create(spec(0.25, 900.0)).await.unwrap(),
        service.provider.create(spec(1.5, 950.0)).await.unwrap(),
    );
    assert_eq!(service.sh(&one, "echo $SIZE").await, "0.25\n");
    assert_eq!(service.sh(&two, "echo $SIZE").await, "1.5\n");
    assert_eq!(service.double.calls("RegisterTaskDefinition"), 1);
    let sizes: Vec<_> = service.double.requests("RunTask").iter().map(|run| run["overrides"]["cpu"].clone()).collect();
    assert_eq!(sizes, ["256", "2048"]);
    service.provider.close(&one).await.unwrap();
    service.double.stopped(&service.arn(&one)).await;
    service.end(&two).await;
}
