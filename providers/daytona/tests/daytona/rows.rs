//! Rows of `CASES.md` that nothing else proves: what of the model's behaviour is kept, and what is done better.

use std::time::{Duration, Instant};

use sandbox_core::{
    ByteString, Connect, Endpoint, ErrorKind, ExecOutcome, ExecRequest, Files, ListFilter, ListSweep, ReadRange,
    SandboxProvider, SandboxSpec, WriteOptions,
};
use sandbox_daytona_double::KEY;
use serde_json::{Value, json};

use crate::support::{LATE, Service, provider};

#[tokio::test]
async fn a_jwt_goes_with_its_organization_and_a_key_without() {
    let service = Service::new().await;
    let connection = json!({"api_key": null, "jwt_token": KEY, "organization_id": "org-1"});
    let with_jwt = provider(&service.double, KEY, json!({"connection": connection}));
    let with_key = provider(&service.double, KEY, json!({"connection": {"organization_id": "org-1"}}));
    for (provider, organization) in [(with_jwt, Some("org-1")), (with_key, None)] {
        provider.list(ListFilter::default()).await.unwrap();
        let asked = service.requests("GET", "/sandbox").pop().unwrap();
        assert_eq!(asked.headers.get("x-daytona-organization-id").map(String::as_str), organization);
    }
}

#[tokio::test]
async fn a_redirect_takes_the_credential_nowhere() {
    let service = Service::new().await;
    let elsewhere = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = elsewhere.local_addr().unwrap();
    service.fault("GET", "/api/sandbox", |fault| {
        fault.status = Some(307);
        fault.headers.insert("Location".to_owned(), format!("http://{address}/api/sandbox"));
    });
    service.provider.list(ListFilter::default()).await.unwrap_err();
    assert_eq!(service.double.faults_left(), 0, "the fault happened");
    // Whoever followed it has connected before the call was over.
    let visit = tokio::time::timeout(Duration::from_millis(1), elsewhere.accept()).await;
    assert!(visit.is_err(), "the redirect was followed");
}

#[tokio::test]
async fn what_the_service_refuses_for_good_is_asked_once() {
    let service = Service::new().await;
    for (status, message, kind) in [
        (400, "bad request", ErrorKind::InvalidInput),
        (400, "Total disk limit exceeded. Maximum allowed: 30GiB", ErrorKind::Exhausted),
        (403, "suspended", ErrorKind::Unauthorized),
        (409, "Sandbox with this name already exists", ErrorKind::AlreadyExists),
        (422, "not supported", ErrorKind::Unsupported),
    ] {
        let before = service.requests("POST", "/sandbox").len();
        service.fault("POST", "/api/sandbox", |fault| {
            fault.status = Some(status);
            fault.body = json!({"statusCode": status, "message": message}).to_string();
        });
        let error = service.provider.create(SandboxSpec::default()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{status}: {error}");
        assert!(error.message().contains(message), "{error}");
        assert_eq!(service.requests("POST", "/sandbox").len() - before, 1, "{status}");
    }
    service.expect_empty().await;
}

#[tokio::test]
async fn a_question_is_asked_again_where_the_answer_may_come_and_else_never() {
    let service = Service::new().await;
    let sandbox = service.provider.create(SandboxSpec::default().with_ports([3000])).await.unwrap();
    let asked = || service.requests("GET", "/preview-url").len();
    for status in [408, 425, 429, 500, 502, 503, 504] {
        let before = asked();
        service.fault("GET", "/preview-url", |fault| {
            fault.status = Some(status);
            fault.headers.insert("Retry-After".to_owned(), "0".to_owned());
        });
        service.provider.endpoint(&sandbox, 3000).await.unwrap_or_else(|error| panic!("{status}: {error}"));
        assert_eq!(asked() - before, 2, "{status}");
    }
    for (status, kind) in [(400, ErrorKind::InvalidInput), (401, ErrorKind::Unauthorized), (404, ErrorKind::NotFound)] {
        let before = asked();
        service.fault("GET", "/preview-url", |fault| fault.status = Some(status));
        let error = service.provider.endpoint(&sandbox, 3000).await.unwrap_err();
        assert_eq!((error.kind(), asked() - before), (kind, 1), "{status}");
    }
    // Attempts have an end.
    service.fault("GET", "/preview-url", |fault| {
        fault.status = Some(503);
        fault.times = 4;
    });
    let error = service.provider.endpoint(&sandbox, 3000).await.unwrap_err();
    assert_eq!((error.kind(), service.double.faults_left()), (ErrorKind::Lost, 0), "{error}");
}

#[tokio::test]
async fn a_sandbox_of_somebody_else_under_the_name_is_neither_adopted_nor_deleted() {
    let service = Service::new().await;
    service.fault("POST", "/api/sandbox", |fault| fault.status = Some(409));
    service.fault("GET", "", |fault| {
        fault.status = Some(200);
        let theirs =
            json!({"id": "theirs", "name": "sandbox-x", "state": "started", "labels": {"sandbox.nonce": "other"}});
        fault.body = theirs.to_string();
    });
    let error = service.provider.create(SandboxSpec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert_eq!(service.double.faults_left(), 0, "the faults happened");
    assert!(!service.double.requests().iter().any(|request| request.method == "DELETE"));
}

#[tokio::test]
async fn a_sandbox_in_which_no_command_runs_is_deleted_and_told() {
    let service = Service::with(json!({"probe": {"timeout_s": 1.0, "deadline_s": 0.3}})).await;
    service.fault("POST", "/process/execute", |fault| {
        fault.status = Some(502);
        fault.times = 10_000;
    });
    let error = service.provider.create(SandboxSpec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CreateVerification, "{error}");
    assert!(!service.requests("POST", "/process/execute").is_empty());
    service.expect_empty().await;
}

#[tokio::test]
async fn no_more_sandboxes_are_made_at_once_than_is_set() {
    let service = Service::with(json!({"batch": {"concurrency": 1}})).await;
    let create = || service.provider.create(SandboxSpec::default());
    let (one, two, three) = tokio::join!(create(), create(), create());
    for made in [one, two, three] {
        made.unwrap();
    }
    // Each is ready, which its first command shows, before the next one is asked for.
    let order: Vec<_> = service
        .double
        .requests()
        .into_iter()
        .filter_map(|request| match (request.method.as_str(), request.path.rsplit('/').next()) {
            ("POST", Some("sandbox")) => Some("asked"),
            ("POST", Some("execute")) => Some("ready"),
            _ => None,
        })
        .collect();
    assert_eq!(order, ["asked", "ready", "asked", "ready", "asked", "ready"]);
}

#[tokio::test]
async fn a_file_that_takes_too_long_is_given_up() {
    let service = Service::with(json!({"operations": {"file_timeout_s": 0.3}})).await;
    let sandbox = service.sandbox().await;
    let folder = tempfile::tempdir().unwrap();
    let (local, remote) = (folder.path().join("file"), "file".into());
    std::fs::write(&local, b"x").unwrap();
    let started = Instant::now();
    service.fault("POST", "/files/bulk-upload", |fault| fault.delay_ms = 600_000);
    let error = service.provider.upload_file(&sandbox, &local, &remote).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    service.sh(&sandbox, "echo there > file").await;
    service.fault("GET", "/files/download", |fault| fault.delay_ms = 600_000);
    let error = service.provider.download_file(&sandbox, &remote, &local).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(started.elapsed() < LATE);
    assert_eq!(std::fs::read(&local).unwrap(), b"x");
}

#[tokio::test]
async fn a_file_whose_name_is_no_text_is_read_again_when_it_breaks_off() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let name = ByteString::new(b"na\xffme".to_vec());
    service.provider.write_file(&sandbox, name.clone(), "whole".into(), WriteOptions::default()).await.unwrap();
    service.fault("GET", "/files/download", |fault| fault.truncate = true);
    let read = service.provider.read_file(&sandbox, name, ReadRange::default()).await.unwrap();
    assert_eq!((read.as_ref(), service.double.faults_left()), (&b"whole"[..], 0));
}

#[tokio::test]
async fn connecting_asks_and_changes_nothing() {
    let service = Service::new().await;
    let sandbox = service.provider.create(SandboxSpec::default().with_ttl_s(600.0)).await.unwrap();
    let descriptor = service.provider.serialize_handle(&sandbox, None).await.unwrap();
    let before = service.double.requests().len();
    let other = provider(&service.double, KEY, Value::Null);
    assert_eq!(other.connect(descriptor).await.unwrap().sandbox_id, sandbox.sandbox_id);
    let asked = service.double.requests().split_off(before);
    assert!(!asked.is_empty() && asked.iter().all(|request| request.method == "GET"), "{asked:?}");
}

#[tokio::test]
async fn a_command_that_the_services_own_call_could_not_start_has_no_exit_code() {
    let service = Service::with(json!({"operations": {"exec_mode": "direct"}})).await;
    let sandbox = service.sandbox().await;
    let result = service.run(&sandbox, ExecRequest::shell("true").with_cwd("/no/such/folder")).await;
    assert!(matches!(result.outcome(), ExecOutcome::StartFailed { .. }), "{:?}", result.outcome());
}
