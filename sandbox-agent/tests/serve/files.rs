//! Files over the real agent.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::support::{Agent, numbered};
use sandbox_core::{ByteString, ErrorKind, FileKind, FileStat, ReadRange, Result, WriteOptions};
use sandbox_protocol::{
    Body, Client,
    methods::{self, BytesMoved, FileList, FilePath, FileRead, FileRemove, FileWrite, Nothing, TarIn},
};
use serde_json::json;

const LIMIT: usize = 64 << 20;

async fn write(client: &Client, path: impl Into<ByteString>, data: Vec<u8>, options: WriteOptions) -> Result<u64> {
    let request = FileWrite { path: path.into(), options };
    let moved: BytesMoved = client.call_with_body(methods::FILE_WRITE, &request, Body::from_bytes(data)).await?;
    Ok(moved.bytes)
}

async fn read(client: &Client, path: impl Into<ByteString>, range: ReadRange) -> Result<(FileStat, Vec<u8>)> {
    let request = FileRead { path: path.into(), range };
    let (stat, body) = client.call_for_body::<FileStat>(methods::FILE_READ, &request).await?;
    Ok((stat, body.collect(LIMIT).await?.to_vec()))
}

async fn stat(client: &Client, path: impl Into<ByteString>) -> Result<FileStat> {
    client.call(methods::FILE_STAT, &FilePath { path: path.into() }).await
}

fn agent() -> (Agent, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Agent::start(json!({ "workdir": folder.path().to_str().unwrap() })), folder)
}

#[tokio::test]
async fn every_size_comes_back_and_any_part_of_it() {
    let (agent, folder) = agent();
    let client = agent.connect().await;
    for size in [0, 1, 65_535, 65_536, 65_537, 262_144, 1_000_001, 32 << 20] {
        let mut data = numbered(size / 8 + 1);
        data.truncate(size);
        assert_eq!(write(&client, "a/b/file", data.clone(), WriteOptions::default()).await.unwrap(), size as u64);
        let (stat, back) = read(&client, "a/b/file", ReadRange::default()).await.unwrap();
        assert_eq!((stat.size, stat.mode), (size as u64, 0o644));
        assert!(back == data, "{size}");
        let range = ReadRange { offset: (size / 3) as u64, length: Some(70_000) };
        let (_, part) = read(&client, "a/b/file", range).await.unwrap();
        assert!(part == data[size / 3..(size / 3 + 70_000).min(size)]);
    }
    let names: Vec<_> = std::fs::read_dir(folder.path().join("a/b")).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "no temporary file is left");
    let (_, text) = read(&client, "/proc/self/status", ReadRange::default()).await.unwrap();
    assert!(text.starts_with(b"Name:"), "a file that says it is empty is read too");
}

#[tokio::test]
async fn mode_and_owner_are_kept_or_set() {
    let (agent, folder) = agent();
    let client = agent.connect().await;
    let options = WriteOptions { mode: Some(0o4750), owner: Some("1234:55".to_owned()) };
    write(&client, "file", b"x".to_vec(), options).await.unwrap();
    let found = std::fs::metadata(folder.path().join("file")).unwrap();
    assert_eq!((found.permissions().mode() & 0o7777, found.uid(), found.gid()), (0o4750, 1234, 55));
    write(&client, "file", b"y".to_vec(), WriteOptions::default()).await.unwrap();
    assert_eq!(std::fs::metadata(folder.path().join("file")).unwrap().permissions().mode() & 0o7777, 0o4750);
    let bad = WriteOptions { mode: None, owner: Some("nobody-knows".to_owned()) };
    let error = write(&client, "file", b"z".to_vec(), bad).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("owner")));
    assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), b"y");
}

#[tokio::test]
async fn a_default_user_owns_what_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(json!({ "workdir": folder.path().to_str().unwrap(), "user": "nobody" }));
    let client = agent.connect().await;
    write(&client, "new/file", b"x".to_vec(), WriteOptions::default()).await.unwrap();
    let _: Nothing = client.call(methods::FILE_MAKE_DIR, &FilePath { path: "d/e".into() }).await.unwrap();
    for path in ["new", "new/file", "d", "d/e"] {
        assert_eq!(std::fs::metadata(folder.path().join(path)).unwrap().uid(), 65534, "{path}");
    }
    assert!(crate::support::sh(&client, "id -un").await.contains("nobody"));
}

#[tokio::test]
async fn a_write_that_breaks_off_leaves_the_old_file_and_nothing_else() {
    let (agent, folder) = agent();
    let client = agent.connect().await;
    write(&client, "file", b"old".to_vec(), WriteOptions::default()).await.unwrap();
    let (sender, body) = Body::channel();
    let request = FileWrite { path: "file".into(), options: WriteOptions::default() };
    let sending = async {
        sender.send(vec![1; 300_000]).await;
        drop(sender);
    };
    let (result, ()) = tokio::join!(client.call_with_body::<BytesMoved>(methods::FILE_WRITE, &request, body), sending);
    result.unwrap_err();
    crate::support::eventually("nothing else is there", async || {
        std::fs::read_dir(folder.path()).unwrap().count() == 1
    })
    .await;
    assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), b"old");
}

#[tokio::test]
async fn names_are_any_bytes() {
    let (agent, _folder) = agent();
    let client = agent.connect().await;
    let names: [&[u8]; 7] = [b" ", b"a\nb", b"'\"$(x)`", "ä漢".as_bytes(), b"\xff\xfe", b"-rf", b"..."];
    for name in names {
        let path = [b"odd/", name].concat();
        write(&client, ByteString::new(path.clone()), name.to_vec(), WriteOptions::default()).await.unwrap();
        assert_eq!(read(&client, ByteString::new(path), ReadRange::default()).await.unwrap().1, name);
    }
    let list: FileList = client.call(methods::FILE_LIST, &FilePath { path: "odd".into() }).await.unwrap();
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    assert_eq!(list.entries.iter().map(|entry| entry.name.as_bytes()).collect::<Vec<_>>(), sorted);
    let remove = FileRemove { path: "odd".into(), recursive: false };
    let error = client.call::<Nothing>(methods::FILE_REMOVE, &remove).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let _: Nothing = client.call(methods::FILE_REMOVE, &FileRemove { recursive: true, ..remove }).await.unwrap();
    assert_eq!(stat(&client, "odd").await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn links_lead_where_they_lead_for_a_program_and_are_never_followed_by_remove() {
    let (agent, folder) = agent();
    let client = agent.connect().await;
    write(&client, "kept/file", b"1".to_vec(), WriteOptions::default()).await.unwrap();
    symlink("kept/file", folder.path().join("link")).unwrap();
    symlink("loop", folder.path().join("loop")).unwrap();
    symlink("kept", folder.path().join("folder-link")).unwrap();
    let found = stat(&client, "link").await.unwrap();
    assert_eq!((found.kind, found.link_target), (FileKind::Symlink, Some("kept/file".into())));
    write(&client, "link", b"2".to_vec(), WriteOptions::default()).await.unwrap();
    assert_eq!(std::fs::read(folder.path().join("kept/file")).unwrap(), b"2");
    assert_eq!(read(&client, "folder-link/../kept/file", ReadRange::default()).await.unwrap().1, b"2");
    for path in ["loop", "/proc/self/root/etc/passwd", "/proc/self/exe", "kept", "/dev/null", "kept/file/"] {
        read(&client, path, ReadRange::default()).await.expect_err(path);
    }
    let error = read(&client, "no/such", ReadRange::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let remove = FileRemove { path: "folder-link".into(), recursive: true };
    let _: Nothing = client.call(methods::FILE_REMOVE, &remove).await.unwrap();
    assert!(folder.path().join("kept/file").exists());
    let error = write(&client, "kept/file/below", b"".to_vec(), WriteOptions::default()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists), "{error}");
    let error =
        client.call::<Nothing>(methods::FILE_MAKE_DIR, &FilePath { path: "kept/file".into() }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
}

async fn tar_in(client: &Client, path: &str, tar: Vec<u8>) -> Result<BytesMoved> {
    let request = TarIn { path: path.into(), owner: None };
    client.call_with_body(methods::FILE_TAR_IN, &request, Body::from_bytes(tar)).await
}

#[tokio::test]
async fn a_tree_goes_out_and_comes_back_in() {
    let (agent, folder) = agent();
    let client = agent.connect().await;
    let long = "n".repeat(200);
    let big = numbered(500_000);
    for (path, data, mode) in [
        ("tree/a".to_owned(), b"a".to_vec(), 0o600),
        (format!("tree/deep/{long}/{long}"), b"long".to_vec(), 0o755),
        ("tree/big".to_owned(), big.clone(), 0o444),
        ("tree/empty".to_owned(), Vec::new(), 0o644),
    ] {
        write(&client, path, data, WriteOptions { mode: Some(mode), owner: None }).await.unwrap();
    }
    symlink("/no/such", folder.path().join("tree/link")).unwrap();
    std::fs::create_dir(folder.path().join("tree/nothing")).unwrap();
    std::fs::set_permissions(folder.path().join("tree/nothing"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let request = FilePath { path: "tree".into() };
    let (Nothing {}, body) = client.call_for_body(methods::FILE_TAR_OUT, &request).await.unwrap();
    let tar = body.collect(LIMIT).await.unwrap().to_vec();
    let size = tar.len() as u64;
    assert_eq!(tar_in(&client, "copy/of", tar).await.unwrap().bytes, size);
    crate::support::sh(&client, "diff -r --no-dereference tree copy/of").await;
    let mode = |path: &str| std::fs::symlink_metadata(folder.path().join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("copy/of/a"), mode("copy/of/big"), mode("copy/of/nothing")), (0o600, 0o444, 0o700));
    assert_eq!(std::fs::read(folder.path().join("copy/of/big")).unwrap(), big);
}

#[tokio::test]
async fn an_archive_makes_nothing_outside_of_its_folder() {
    let (agent, folder) = agent();
    let client = agent.connect().await;
    let outside = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(0o644);
        header.set_size(1);
        header
    };
    let link = |name: &str, target: &str, kind| {
        let mut header = file(name);
        header.set_entry_type(kind);
        header.set_size(0);
        header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header
    };
    let outside_path = outside.path().to_str().unwrap();
    let symlink = tar::EntryType::Symlink;
    let cases: Vec<Vec<tar::Header>> = vec![
        vec![file("../up")],
        vec![file("a/../../up")],
        vec![file("/tmp/absolute-of-a-test")],
        vec![link("out", outside_path, symlink), file("out/planted")],
        vec![link("up", "../..", symlink), file("up/planted")],
        vec![link("hard", "../../etc/passwd", tar::EntryType::Link)],
        vec![link("out", outside_path, symlink), link("out/hard", "out", tar::EntryType::Link)],
        vec![link("fifo", "", tar::EntryType::Fifo)],
        vec![link("device", "", tar::EntryType::Char)],
    ];
    for (index, headers) in cases.into_iter().enumerate() {
        let mut builder = tar::Builder::new(Vec::new());
        for mut header in headers {
            header.set_cksum();
            let size = header.size().unwrap() as usize;
            builder.append(&header, &b"x"[..size]).unwrap();
        }
        let target = format!("deep/er/target-{index}");
        let error = tar_in(&client, &target, builder.into_inner().unwrap()).await.expect_err(&target);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{index}: {error}");
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    tar_in(&client, "broken", vec![7; 5000]).await.unwrap_err();
    tar_in(&client, "empty", Vec::new()).await.unwrap();
}
