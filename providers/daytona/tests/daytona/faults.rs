//! Faults of the service and of the way to it.

use std::time::{Duration, Instant};

use sandbox_core::{CaptureLimits, ErrorKind, ExecOutcome, ExecRequest, SandboxProvider, SandboxSpec};

use crate::support::{LATE, Service, labelled, provider};

#[tokio::test]
async fn f02_a_rate_limit_is_waited_for_as_long_as_the_service_asks() {
    let service = Service::new().await;
    service.fault("POST", "/api/sandbox", |fault| {
        fault.status = Some(429);
        fault.headers.insert("Retry-After".to_owned(), "60".to_owned());
        // The one for what is counted goes first.
        fault.headers.insert("Retry-After-sandbox-create".to_owned(), "1".to_owned());
    });
    let started = Instant::now();
    let (one, two) = tokio::join!(service.sandbox(), service.sandbox());
    assert!(started.elapsed() >= Duration::from_secs(1), "it came after {:?}", started.elapsed());
    assert_ne!(one.sandbox_id, two.sandbox_id);
    assert_eq!(service.double.faults_left(), 0, "the fault happened");
}

#[tokio::test]
async fn f02_a_limit_beyond_the_deadline_is_told_with_its_time() {
    let service = Service::new().await;
    service.fault("POST", "/api/sandbox", |fault| {
        fault.status = Some(429);
        fault.headers.insert("Retry-After".to_owned(), "86400".to_owned());
    });
    let mut spec = SandboxSpec::default();
    spec.ready_timeout_s = Some(5.0);
    let started = Instant::now();
    let error = service.provider.create(spec).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(error.retry_after().is_some_and(|after| after > Duration::from_secs(80_000)), "{error}");
    assert!(started.elapsed() < LATE);
    service.expect_empty().await;
}

#[tokio::test]
async fn f03_a_refused_credential_fails_at_once() {
    let service = Service::new().await;
    let stranger = provider(&service.double, "wrong", serde_json::json!({}));
    let error = stranger.create(SandboxSpec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    assert!(error.help().is_some_and(|help| help.contains("DAYTONA_API_KEY")));
    assert_eq!(service.requests("POST", "/sandbox").len(), 1);
}

#[tokio::test]
async fn f03_a_gateway_that_fails_for_ever_ends_the_create_and_one_that_recovers_does_not() {
    let service = Service::new().await;
    let html = |fault: &mut sandbox_daytona_double::Fault| {
        fault.status = Some(502);
        fault.body = "<html>bad gateway</html>".to_owned();
        fault.times = 2;
    };
    service.fault("POST", "/api/sandbox", html);
    service.sandbox().await;
    service.fault("POST", "/api/sandbox", |fault| {
        html(fault);
        fault.times = 3;
    });
    let error = service.provider.create(SandboxSpec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Create);
    assert!(error.message().contains("502"), "{error}");
    assert_eq!(service.double.faults_left(), 0, "the faults happened");
}

#[tokio::test]
async fn f04_a_cut_connection_is_neither_a_time_limit_nor_an_end() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    // The launch is done, and its answer is lost; then every second answer is.
    for skip in [0, 1, 1] {
        service.fault("POST", "/process/execute", |fault| {
            fault.drop_after = true;
            fault.skip = skip;
        });
    }
    let script = "echo ran >> runs; for i in 1 2 3; do echo $i; sleep 0.6; done; exit 3";
    let result = service.run(&sandbox, ExecRequest::shell(script)).await;
    assert_eq!(*result.outcome(), ExecOutcome::Exited(3));
    assert_eq!(result.stdout_text(), "1\n2\n3\n");
    assert_eq!(service.double.faults_left(), 0, "the faults happened");
    assert_eq!(service.sh(&sandbox, "cat runs").await, "ran\n", "it ran once");
}

#[tokio::test]
async fn f08_the_same_exec_id_from_another_process_joins_the_command() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let mut request = ExecRequest::shell("echo ran >> runs; sleep 1; echo done; exit 6");
    request.exec_id = "one/../id".replace('/', ":");
    let first = service.provider.exec(&sandbox, request.clone()).await.unwrap();
    let other = provider(&service.double, sandbox_daytona_double::KEY, serde_json::json!({}));
    let second = other.exec(&sandbox, request).await.unwrap().collect(CaptureLimits::default()).await.unwrap();
    assert_eq!((second.return_code(), second.stdout_text().as_ref()), (6, "done\n"));
    let first = first.collect(CaptureLimits::default()).await.unwrap();
    assert_eq!((first.return_code(), first.stdout_text().as_ref()), (6, "done\n"));
    assert_eq!(service.sh(&sandbox, "cat runs").await, "ran\n");
}

#[tokio::test]
async fn a_create_that_nobody_waits_for_leaves_nothing() {
    let service = Service::new().await;
    service.fault("POST", "/api/sandbox", |fault| fault.delay_ms = 200);
    let create = service.provider.create(labelled("x-delay", "0.3"));
    tokio::time::timeout(Duration::from_millis(100), create).await.expect_err("it is not made yet");
    let end = Instant::now() + LATE;
    // The request is answered after that, and what it made is deleted.
    while !service.double.requests().iter().any(|one| one.method == "DELETE" && one.status == Some(200)) {
        assert!(Instant::now() < end, "it was never deleted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    service.expect_empty().await;
}

#[tokio::test]
async fn a_command_whose_start_was_dropped_never_runs_on() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    // The answer to the launch comes late, and nobody waits for it.
    service.fault("POST", "/process/execute", |fault| fault.delay_ms = 600);
    let exec = service.provider.exec(&sandbox, ExecRequest::shell("echo ran >> runs; sleep 60"));
    tokio::time::timeout(Duration::from_millis(150), exec).await.expect_err("it has not started");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let left = service.sh(&sandbox, "cat runs 2>/dev/null; ps ax -o args | grep -c '[s]leep 60'").await;
    assert!(left.ends_with("0\n"), "{left}");
}

#[tokio::test]
async fn a_download_that_breaks_off_is_made_again_and_a_failed_one_leaves_the_old_file() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    service.sh(&sandbox, "seq 1 50000 > numbers").await;
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().join("numbers");
    std::fs::write(&local, b"old").unwrap();
    service.fault("GET", "/files/download", |fault| {
        fault.truncate = true;
        fault.times = 10;
    });
    service.provider.download_file(&sandbox, &"numbers".into(), &local).await.unwrap_err();
    assert_eq!(std::fs::read(&local).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    while service.double.faults_left() > 0 {
        let _ = service.provider.download_file(&sandbox, &"numbers".into(), &local).await;
    }
    service.fault("GET", "/files/download", |fault| fault.truncate = true);
    service.provider.download_file(&sandbox, &"numbers".into(), &local).await.unwrap();
    assert!(std::fs::read(&local).unwrap().ends_with(b"\n50000\n"));
    assert_eq!(service.double.faults_left(), 0, "the fault happened");
}

#[tokio::test]
async fn an_upload_that_fails_in_passing_is_made_again_whole() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![b'x'; 300_000]).unwrap();
    service.fault("POST", "/files/bulk-upload", |fault| fault.status = Some(503));
    service.fault("POST", "/files/bulk-upload", |fault| fault.drop_after = true);
    service.provider.upload_file(&sandbox, file.path(), &"deep/er/file".into()).await.unwrap();
    assert_eq!(service.sh(&sandbox, "wc -c < deep/er/file; ls -A deep/er").await, "300000\nfile\n");
    assert_eq!(service.double.faults_left(), 0, "the faults happened");
}

#[tokio::test]
async fn the_address_of_the_toolbox_is_asked_for_where_it_did_not_come() {
    let service = Service::new().await;
    let sandbox = service.provider.create(labelled("x-no-proxy-url", "1")).await.unwrap();
    assert_eq!(service.sh(&sandbox, "echo usable").await, "usable\n");
    assert_eq!(service.requests("GET", "/toolbox-proxy-url").len(), 1);
}

fn named(id: &str, script: &str) -> ExecRequest {
    let mut request = ExecRequest::shell(script);
    id.clone_into(&mut request.exec_id);
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ending_a_command_leaves_one_alone_whose_id_begins_like_its_own() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let longer = async { service.run(&sandbox, named("xy", "touch up; sleep 2; echo lives")).await };
    let shorter = async {
        let script = "until [ -e up ]; do sleep 0.05; done; sleep 60";
        service.run(&sandbox, named("x", script).with_timeout_s(0.8)).await
    };
    let (longer, shorter) = tokio::join!(longer, shorter);
    assert_eq!(shorter.exit.outcome, ExecOutcome::TimedOut { idle: false });
    assert_eq!((&longer.exit.outcome, longer.stdout_text().as_ref()), (&ExecOutcome::Exited(0), "lives\n"));
    service.provider.close(&sandbox).await.unwrap();
    service.double.stop().await;
}
