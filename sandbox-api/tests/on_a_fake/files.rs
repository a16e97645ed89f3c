//! Files, with and without the capability.

use std::sync::Arc;

use crate::fake::Fake;
use sandbox_api::AsyncSandbox;
use sandbox_core::{Capability, ErrorKind, ReadRange, SandboxSpec, WriteOptions};

async fn started(fake: &Arc<Fake>) -> AsyncSandbox {
    let sandbox = AsyncSandbox::new(fake.clone());
    sandbox.start(Some(SandboxSpec::default())).await.unwrap();
    sandbox
}

#[tokio::test]
async fn bytes_are_read_and_written_without_the_files_capability() {
    let fake = Fake::with(&[]);
    let sandbox = started(&fake).await;
    sandbox.write_file("/f", &b"a\xff\0b"[..]).await.unwrap();
    assert_eq!(fake.seen().files["/f"].1, 0o644);
    assert_eq!(&sandbox.read_file("/f").await.unwrap()[..], b"a\xff\0b");
    for (offset, length, expected) in
        [(1, Some(2), &b"\xff\0"[..]), (3, None, b"b"), (9, Some(1), b""), (2, Some(u64::MAX), b"\0b")]
    {
        let part = sandbox.read_file_range("/f", ReadRange { offset, length }).await.unwrap();
        assert_eq!(&part[..], expected, "{offset} {length:?}");
    }
    let options = WriteOptions { mode: Some(0o600), owner: None };
    sandbox.write_file_with("/g", "x", options).await.unwrap();
    assert_eq!(fake.seen().files["/g"].1, 0o600);
    let options = WriteOptions { mode: None, owner: Some("app".into()) };
    assert_eq!(sandbox.write_file_with("/g", "x", options).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(sandbox.read_file("/none").await.unwrap_err().kind(), ErrorKind::NotFound);
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn folder_operations_need_the_capability_and_a_started_sandbox() {
    let fake = Fake::with(&[]);
    let sandbox = AsyncSandbox::new(fake.clone());
    assert_eq!(sandbox.list("/").await.unwrap_err().kind(), ErrorKind::InvalidState);
    sandbox.start(Some(SandboxSpec::default())).await.unwrap();
    for error in [
        sandbox.list("/").await.map(drop),
        sandbox.stat("/").await.map(drop),
        sandbox.remove("/").await,
        sandbox.remove_all("/").await,
        sandbox.make_dir("/").await,
        sandbox.upload_dir("/", "/").await,
        sandbox.download_dir("/", "/").await,
    ] {
        let error = error.unwrap_err();
        assert_eq!((error.kind(), error.capability()), (ErrorKind::Unsupported, Some("sandbox.files/1")));
    }
    for path in ["", "a\0b"] {
        assert_eq!(sandbox.upload("/etc/hostname", path).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(sandbox.read_file(path).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn with_the_capability_the_provider_does_it_itself() {
    let fake = Fake::with(&[Capability::Files]);
    let sandbox = started(&fake).await;
    sandbox.write_file("/f", "x").await.unwrap();
    assert_eq!(sandbox.read_file("/f").await.unwrap(), "read /f");
    sandbox.list("d").await.unwrap();
    sandbox.stat("d").await.unwrap();
    sandbox.remove("d").await.unwrap();
    sandbox.remove_all("d").await.unwrap();
    sandbox.make_dir("d").await.unwrap();
    sandbox.upload_dir("/l", "d").await.unwrap();
    sandbox.download_dir("d", "/l").await.unwrap();
    let calls = fake.calls()[2..].join(",");
    assert_eq!(calls, "write /f,list d,stat d,remove d false,remove d true,make_dir d,upload_dir d,download_dir d");
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn a_file_goes_up_and_comes_down() {
    let fake = Fake::with(&[]);
    let sandbox = started(&fake).await;
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::write(&from, "x").unwrap();
    sandbox.upload(&from, "rel").await.unwrap();
    assert!(fake.seen().files.contains_key("rel"), "the provider resolves it against the workdir");
    sandbox.download("rel", &to).await.unwrap();
    assert_eq!(std::fs::read(&to).unwrap(), b"x");
    sandbox.stop().await.unwrap();
}
