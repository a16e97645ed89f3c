//! Large files by way of a bucket.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt},
    time::Duration,
};

use fargate_double::{Fault, Options};
use sandbox_core::{ByteString, ErrorKind, SandboxHandle, SandboxProvider, SandboxSpec, from_json};
use sandbox_provider_fargate::needs;
use serde_json::{Value, json};

use crate::support::{LATE, Service};

fn settings() -> Value {
    json!({ "s3_bucket": "sandbox-staging", "s3_prefix": "some/where", "s3_threshold_bytes": 1_000_000 })
}

async fn service() -> Service {
    let mut asked = settings();
    asked["region"] = "us-east-1".into();
    let policy = needs(&from_json(asked, "settings").unwrap(), &[]).unwrap().orchestrator;
    Service::with(Options { policy, ..Options::default() }, settings()).await
}

async fn until_removed(service: &Service) {
    let end = std::time::Instant::now() + LATE;
    while !service.double.objects().is_empty() {
        assert!(std::time::Instant::now() < end, "left: {:?}", service.double.objects());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn bytes(count: u32) -> Vec<u8> {
    (0..count).map(|number| (number % 251) as u8).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_files_go_by_way_of_the_bucket_whole_with_their_mode_and_owner_and_leave_no_object() {
    let service = service().await;
    let mut spec = SandboxSpec::image(fargate_double::BASE_IMAGE);
    spec.user = Some("1000:1000".to_owned());
    let handle = service.provider.create(spec).await.expect("it is made");
    let folder = tempfile::tempdir().unwrap();
    let (file, back) = (folder.path().join("file"), folder.path().join("back"));
    let data = bytes(12_345_678);
    std::fs::write(&file, &data).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o751)).unwrap();
    let remote = ByteString::from("/tmp/new/file");
    service.provider.upload_file(&handle, &file, &remote).await.expect("it is uploaded");
    assert_eq!(
        service.sh(&handle, "stat -c '%s %a %u %g' /tmp/new/file; ls -A /tmp/new").await,
        "12345678 751 1000 1000\nfile\n"
    );
    service.provider.download_file(&handle, &remote, &back).await.expect("it is downloaded");
    assert!(std::fs::read(&back).unwrap() == data, "byte by byte");
    assert_eq!(std::fs::metadata(&back).unwrap().mode() & 0o777, 0o751);
    // One each for the way there and the way back, and none for what is small.
    let counts = |service: &Service| {
        ["PutObject", "GetObject", "DeleteObject"]
            .map(|name| service.double.answers(name, 200) + service.double.answers(name, 204))
    };
    assert_eq!(counts(&service), [2, 2, 2]);
    std::fs::write(&file, "small").unwrap();
    service.provider.upload_file(&handle, &file, &remote).await.expect("it is uploaded");
    service.provider.download_file(&handle, &remote, &back).await.expect("it is downloaded");
    assert_eq!(std::fs::read(&back).unwrap(), b"small");
    assert_eq!(counts(&service), [2, 2, 2]);
    assert_eq!(service.double.objects(), Vec::<String>::new());
    let keys = service.double.requests("PutObject");
    assert!(
        keys.iter().all(|key| key["path"].as_str().unwrap().starts_with("/sandbox-staging/some/where/")),
        "{keys:?}"
    );
    service.end(&handle).await;
}

async fn uploads(service: &Service, handle: &SandboxHandle, file: &std::path::Path) -> sandbox_core::Result<()> {
    let remote = ByteString::from("/tmp/there");
    tokio::time::timeout(LATE, service.provider.upload_file(handle, file, &remote)).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_or_is_given_up_leaves_the_old_file_and_no_object() {
    let service = service().await;
    let handle = service.sandbox().await;
    let folder = tempfile::tempdir().unwrap();
    let (file, back) = (folder.path().join("file"), folder.path().join("back"));
    std::fs::write(&file, bytes(3_000_000)).unwrap();
    service.sh(&handle, "echo old > /tmp/there; head -c 2000000 /dev/zero > /tmp/large").await;
    // A bucket that is busy for a moment is asked again.
    service.double.fault(Fault::refused("PutObject", 503, "SlowDown", "slow"));
    service.double.fault(Fault::refused("DeleteObject", 500, "InternalError", "later"));
    uploads(&service, &handle, &file).await.expect("the second time");
    assert_eq!(service.double.happened("refused"), 2);
    service.sh(&handle, "echo old > /tmp/there").await;
    // One that refuses is told, on either side.
    for (operation, kind) in [("PutObject", ErrorKind::PermissionDenied), ("GetObject", ErrorKind::PermissionDenied)] {
        service.double.fault(Fault::refused(operation, 403, "AccessDenied", "no"));
        let error = uploads(&service, &handle, &file).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{operation}: {error}");
        assert!(!error.to_string().contains("X-Amz"), "{error}");
    }
    service.double.fault(Fault::refused("GetObject", 403, "AccessDenied", "no"));
    let remote = ByteString::from("/tmp/large");
    std::fs::write(&back, "old").unwrap();
    let error = service.provider.download_file(&handle, &remote, &back).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    // Nobody waits, while the object is on its way, or while the task fetches it.
    for operation in ["PutObject", "GetObject"] {
        service.double.fault(Fault::late(operation, Duration::from_secs(4)));
        let remote = ByteString::from("/tmp/there");
        let upload = service.provider.upload_file(&handle, &file, &remote);
        let before = service.double.happened("late");
        let given_up = tokio::time::timeout(Duration::from_secs(2), upload).await;
        assert!(given_up.is_err(), "{operation} was not late");
        assert_eq!(service.double.happened("late"), before + 1);
    }
    until_removed(&service).await;
    assert_eq!(std::fs::read(&back).unwrap(), b"old");
    assert_eq!(service.sh(&handle, "cat /tmp/there; ls -A /tmp").await, "old\nlarge\nthere\n");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
    service.end(&handle).await;
}
