//! The defects of the model's provider that show only at the level of HTTP. The others are beside the code that has none of
//! them: 5, 6 and 15 in `options.rs`, 12 in `wire.rs`, 16 in `client.rs`.

use sandbox_core::{
    ErrorKind, ExecOutcome, ExecRequest, PauseResume, SandboxProvider, SandboxSpec, SandboxStatus, StartFailure,
};

use crate::support::{Service, labelled, provider};

#[tokio::test]
async fn defect_01_status_of_a_running_sandbox_is_running() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    assert_eq!(service.provider.status(&sandbox).await.unwrap(), SandboxStatus::Running);
}

#[tokio::test]
async fn defect_02_a_create_that_takes_too_long_leaves_nothing() {
    let service = Service::new().await;
    let mut spec = labelled("x-delay", "600");
    spec.image = Some("debian:12".to_owned());
    spec.ready_timeout_s = Some(0.5);
    let error = service.provider.create(spec).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(service.requests("POST", "/sandbox").len(), 1);
    service.expect_empty().await;
}

#[tokio::test]
async fn defect_03_a_create_that_ends_in_error_leaves_nothing_and_tells_why() {
    let service = Service::new().await;
    for end in ["error", "build_failed"] {
        let error = service.provider.create(labelled("x-fail", end)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Create);
        assert!(error.message().contains("image pull failed"), "{error}");
        service.expect_empty().await;
    }
}

#[tokio::test]
async fn defect_04_an_unanswered_create_is_adopted_and_has_no_twin() {
    let service = Service::new().await;
    service.fault("POST", "/api/sandbox", |fault| fault.drop_after = true);
    let sandbox = service.sandbox().await;
    assert_eq!(service.double.faults_left(), 0, "the fault happened");
    assert_eq!(service.double.sandboxes().await.len(), 1);
    assert_eq!(service.sh(&sandbox, "echo usable").await, "usable\n");

    // One that never arrived is made again, under the same name.
    service.fault("POST", "/api/sandbox", |fault| fault.drop_before = true);
    service.sandbox().await;
    assert_eq!(service.double.sandboxes().await.len(), 2);
    let names: Vec<_> =
        service.requests("POST", "/sandbox").into_iter().map(|one| one.json.unwrap()["name"].clone()).collect();
    assert_eq!(names.len(), 3);
    assert_eq!(names[1], names[2]);
}

#[tokio::test]
async fn defect_07_a_time_limit_of_parts_of_a_second_is_kept() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let quick = service.run(&sandbox, ExecRequest::shell("echo ran").with_timeout_s(20.5)).await;
    assert_eq!((quick.stdout_text().as_ref(), quick.return_code()), ("ran\n", 0));
    let slow = service.run(&sandbox, ExecRequest::shell("echo part; sleep 60").with_timeout_s(0.7)).await;
    assert_eq!(*slow.outcome(), ExecOutcome::TimedOut { idle: false });
    assert_eq!(slow.stdout_text(), "part\n");
}

#[tokio::test]
async fn defect_08_each_failure_has_its_own_kind() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let run = async || service.provider.exec(&sandbox, ExecRequest::shell("true")).await.map(drop);

    let stranger = provider(&service.double, "wrong", serde_json::json!({}));
    let error = stranger.exec(&sandbox, ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    // What passes by itself is no failure at all.
    service.fault("POST", "/process/execute", |fault| fault.status = Some(502));
    run().await.unwrap();
    service.fault("POST", "/process/execute", |fault| fault.drop_after = true);
    run().await.unwrap();
    assert_eq!(service.double.faults_left(), 0, "the faults happened");

    service.provider.pause(&sandbox).await.unwrap();
    assert_eq!(run().await.unwrap_err().kind(), ErrorKind::InvalidState);
    service.provider.close(&sandbox).await.unwrap();
    assert_eq!(run().await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn defect_09_status_of_a_deleted_sandbox_is_stopped_and_of_an_unreachable_service_unknown() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    service.provider.close(&sandbox).await.unwrap();
    assert_eq!(service.provider.status(&sandbox).await.unwrap(), SandboxStatus::Stopped);
    let stranger = provider(&service.double, "wrong", serde_json::json!({}));
    assert_eq!(stranger.status(&sandbox).await.unwrap(), SandboxStatus::Unknown, "401 is not 404");
    let Service { double, provider } = service;
    double.stop().await;
    assert_eq!(provider.status(&sandbox).await.unwrap(), SandboxStatus::Unknown);
}

#[tokio::test]
async fn defect_10_a_missing_local_file_is_told_at_once() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let upload = service.provider.upload_file(&sandbox, "/no/such/file".as_ref(), &"x".into()).await;
    assert_eq!(upload.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(service.requests("POST", "/bulk-upload").is_empty());
}

#[tokio::test]
async fn defect_11_streams_are_apart_and_bytes_are_bytes() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let result = service.run(&sandbox, ExecRequest::shell("printf 'a\\000\\377'; printf '\\376' >&2; exit 9")).await;
    assert_eq!((result.stdout.as_slice(), result.stderr.as_slice()), (&b"a\0\xff"[..], &b"\xfe"[..]));
    assert_eq!(result.return_code(), 9);
}

#[tokio::test]
async fn defect_13_a_user_is_never_silently_someone_else() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let id = |user: &str| ExecRequest::shell("id -u; id -g").with_user(user).with_cwd("/");
    assert_eq!(service.run(&sandbox, id("root")).await.stdout_text(), "0\n0\n");
    assert_eq!(service.run(&sandbox, id("12345:23456")).await.stdout_text(), "12345\n23456\n");
    let unknown = service.run(&sandbox, id("nobody-of-this-name")).await;
    let ExecOutcome::StartFailed { reason, message } = unknown.outcome() else { panic!("{:?}", unknown.outcome()) };
    assert_eq!(*reason, StartFailure::UnknownUser);
    assert!(message.contains("nobody-of-this-name"));
    // Who is not root becomes nobody else.
    let nested = "setpriv --reuid=12345 --regid=12345 --clear-groups true && echo can";
    assert_eq!(service.sh(&sandbox, nested).await, "can\n");
}

#[tokio::test]
async fn defect_14_deleting_amid_a_transition_is_asked_again_until_it_is_done() {
    let service = Service::new().await;
    // The service refuses to delete while it makes the sandbox.
    let mut spec: SandboxSpec = labelled("x-delay", "3");
    spec.ready_timeout_s = Some(0.3);
    assert_eq!(service.provider.create(spec).await.unwrap_err().kind(), ErrorKind::TimedOut);
    let answers: Vec<_> = service.double.requests().into_iter().filter(|one| one.method == "DELETE").collect();
    assert_eq!(answers.first().and_then(|one| one.status), Some(409), "the refusal happened");
    service.expect_empty().await;
}
