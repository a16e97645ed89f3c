//! Files that move as descriptors: copied by the kernel, and nothing of them stays inside.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use crate::support::{Agent, default_config, eventually, numbered, seconds, sh, within};
use sandbox_core::{ErrorKind, FileKind, ReadRange, WriteOptions};
use sandbox_protocol::methods::{self, BytesMoved, FileWriteFd};
use serde_json::json;

fn write_only(path: &std::path::Path) -> File {
    OpenOptions::new().write(true).create(true).truncate(true).open(path).unwrap()
}

fn descriptors(agent: &Agent) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", agent.child.id())).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_goes_in_and_comes_out_whole_with_its_mode_and_owner() {
    let agent = Agent::start(json!({ "workdir": "/tmp", "user": "65534:65534" }));
    let client = agent.connect_unix().await;
    assert!(client.passes_descriptors());
    let (outside, inside) = (agent.folder().join("outside"), agent.folder().join("new/folder/inside"));
    let content = numbered(2_000_000);
    std::fs::write(&outside, &content).unwrap();
    let options = WriteOptions { mode: Some(0o640), ..WriteOptions::default() };
    let source = File::open(&outside).unwrap();
    let path = inside.to_str().unwrap();
    let moved = within(seconds(60), client.write_file_from(path, options, &source)).await.unwrap();
    assert_eq!(moved.bytes, content.len() as u64);
    assert!(std::fs::read(&inside).unwrap() == content);
    let found = std::fs::metadata(&inside).unwrap();
    assert_eq!((found.permissions().mode() & 0o7777, found.uid()), (0o640, 65534));
    assert_eq!(std::fs::metadata(inside.parent().unwrap()).unwrap().uid(), 65534);
    // A part of it comes back, and the file keeps what is behind.
    let back = agent.folder().join("back");
    let mut range = ReadRange::default();
    (range.offset, range.length) = (9_000_001, Some(5_000_000));
    let done = within(seconds(60), client.read_file_into(path, range, &write_only(&back))).await.unwrap();
    assert_eq!((done.bytes, done.stat.unwrap().size), (5_000_000, content.len() as u64));
    assert!(std::fs::read(&back).unwrap() == content[9_000_001..14_000_001]);
    // A file that is larger than it says.
    let done = client.read_file_into("/proc/cpuinfo", ReadRange::default(), &write_only(&back)).await.unwrap();
    assert!(done.bytes > 0 && done.bytes == std::fs::metadata(&back).unwrap().len());
    assert_eq!(done.stat.unwrap().kind, FileKind::File);
    let error = client.read_file_into("/no/such", ReadRange::default(), &write_only(&back)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = client.write_file_from("/proc/x", WriteOptions::default(), &source).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test]
async fn only_a_regular_file_with_the_one_access_is_passed() {
    let agent = Agent::start(default_config());
    let client = agent.connect_unix().await;
    let path = agent.folder().join("file");
    let both = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let folder = File::open(agent.folder()).unwrap();
    let device = File::open("/dev/zero").unwrap();
    let readable = File::open(&path).unwrap();
    for file in [&both, &folder, &device] {
        let error = client.write_file_from("/tmp/never", WriteOptions::default(), file).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("file")));
    }
    for file in [&both, &readable] {
        let error = client.read_file_into("/etc/passwd", ReadRange::default(), file).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("file")));
    }
    // A descriptor that has not come is nobody else's.
    let request = FileWriteFd { path: "/tmp/never".into(), descriptor: 0, ..FileWriteFd::default() };
    let error = client.call::<BytesMoved>(methods::FILE_WRITE_FD, &request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    // A connection that does not pass them says so before anything is sent.
    let plain = agent.connect().await;
    assert!(!plain.passes_descriptors());
    let error = plain.write_file_from("/tmp/never", WriteOptions::default(), &readable).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(!std::path::Path::new("/tmp/never").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_descriptor_stays_with_the_agent_or_reaches_a_command() {
    let agent = Agent::start(default_config());
    let watcher = agent.connect().await;
    sh(&watcher, "true").await;
    let before = descriptors(&agent);
    let client = agent.connect_unix().await;
    let path = agent.folder().join("source");
    std::fs::write(&path, numbered(10_000)).unwrap();
    let source = File::open(&path).unwrap();
    let target = agent.folder().join("target").to_str().unwrap().to_owned();
    for _ in 0..50 {
        client.write_file_from(target.as_str(), WriteOptions::default(), &source).await.unwrap();
        assert_eq!(sh(&client, "ls /proc/$$/fd; true").await, "0\n1\n2\n");
    }
    // Those whose request was given up at once are bounded, and end with the connection.
    for _ in 0..200 {
        let mut call = Box::pin(client.write_file_from(target.as_str(), WriteOptions::default(), &source));
        tokio::select! { biased; _ = &mut call => {} () = std::future::ready(()) => {} }
    }
    assert_eq!(sh(&client, "ls /proc/$$/fd; true").await, "0\n1\n2\n");
    eventually("few are held", async || descriptors(&agent) <= before + 70).await;
    client.close().await;
    drop(client);
    eventually("none is left", async || descriptors(&agent) <= before).await;
    let folder = std::fs::read_dir(agent.folder()).unwrap().flatten();
    let left: Vec<_> =
        folder.filter(|entry| entry.file_name().to_string_lossy().starts_with(".sandbox-part")).collect();
    assert!(left.is_empty(), "{left:?}");
}
