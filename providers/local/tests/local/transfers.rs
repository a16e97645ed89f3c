//! Bytes, names, modes and owners on their way.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use sandbox_core::{
    ByteString, ErrorKind, ExecRequest, FileKind, Files, ReadRange, SandboxProvider, SandboxSpec, WriteOptions,
    serde_json::json,
};

use crate::support::{eventually, local};

const NAMES: [&[u8]; 8] =
    [b"a b", b"a\nb", b"-rf", b"q'\"", b"%2e%2e", "日本 é".as_bytes(), b"x\xff\xfey", &[b'n'; 255]];

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_mib_arrive_and_come_back_unchanged() {
    let local = local(json!({}));
    let handle = local.create().await;
    let (source, back) = (local.temp().join("source"), local.temp().join("back"));
    let mut state = 1_u64;
    let data: Vec<u8> = (0..64 << 17)
        .flat_map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state.to_le_bytes()
        })
        .collect();
    assert_eq!(data.len(), 64 << 20);
    std::fs::write(&source, &data).unwrap();
    local.provider.upload_file(&handle, &source, &"deep/er/file".into()).await.unwrap();
    local.provider.download_file(&handle, &"deep/er/file".into(), &back).await.unwrap();
    assert!(std::fs::read(&back).unwrap() == data);
    // Over a border of file systems too, where there is one.
    if Path::new("/dev/shm").is_dir() {
        let far = tempfile::tempdir_in("/dev/shm").unwrap();
        let far = far.path().join("far");
        local.provider.download_file(&handle, &"deep/er/file".into(), &far).await.unwrap();
        assert!(std::fs::read(&far).unwrap() == data);
    }
    for size in [0, 1, 65_536] {
        std::fs::write(&source, &data[..size]).unwrap();
        local.provider.upload_file(&handle, &source, &"small".into()).await.unwrap();
        let read = local.provider.read_file(&handle, "small".into(), ReadRange::default()).await.unwrap();
        assert!(read == data[..size], "{size}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_name_is_kept_byte_by_byte() {
    let local = local(json!({}));
    let handle = local.create().await;
    let source = local.temp().join("source");
    for name in NAMES {
        let remote = ByteString::new(name);
        std::fs::write(&source, name).unwrap();
        local.provider.upload_file(&handle, &source, &remote).await.unwrap();
        let shown = local.run(&handle, ExecRequest::argv([b"cat".as_slice(), b"--", name])).await;
        assert_eq!(shown.stdout, name);
        let back = local.temp().join(remote.as_path());
        local.provider.download_file(&handle, &remote, &back).await.unwrap();
        assert_eq!(std::fs::read(&back).unwrap(), name);
    }
    let listed = local.provider.list_dir(&handle, ".".into()).await.unwrap();
    let mut expected: Vec<&[u8]> = NAMES.to_vec();
    expected.sort_unstable();
    assert_eq!(listed.iter().map(|entry| entry.name.as_bytes()).collect::<Vec<_>>(), expected);
    for name in NAMES {
        local.provider.remove(&handle, ByteString::new(name), false).await.unwrap();
    }
    assert!(local.provider.list_dir(&handle, ".".into()).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_are_kept_and_special_bits_do_not_come_out() {
    let local = local(json!({}));
    let handle = local.create().await;
    let (source, back) = (local.temp().join("source"), local.temp().join("back"));
    std::fs::write(&source, "x").unwrap();
    for bits in [0o600, 0o755, 0o4711, 0o444] {
        set_mode(&source, bits);
        local.provider.upload_file(&handle, &source, &"f".into()).await.unwrap();
        assert_eq!(mode(&local.workspace(&handle).join("f")), bits);
        local.provider.download_file(&handle, &"f".into(), &back).await.unwrap();
        assert_eq!(mode(&back), bits & 0o777);
    }
    let write = |options| local.provider.write_file(&handle, "w".into(), "x".into(), options);
    write(WriteOptions::default()).await.unwrap();
    assert_eq!(mode(&local.workspace(&handle).join("w")), 0o644);
    write(WriteOptions { mode: Some(0o640), ..Default::default() }).await.unwrap();
    write(WriteOptions::default()).await.unwrap();
    assert_eq!(mode(&local.workspace(&handle).join("w")), 0o640);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_transfer_leaves_the_old_file_and_nothing_else() {
    let local = local(json!({}));
    let handle = local.create().await;
    local.text(&handle, "echo old > f; mkdir d").await;
    let missing = local.temp().join("missing");
    let refused = local.provider.upload_file(&handle, &missing, &"f".into()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    // A source that cannot be read to its end.
    let broken = Path::new("/proc/self/mem");
    assert!(local.provider.upload_file(&handle, broken, &"f".into()).await.is_err());
    assert_eq!(local.text(&handle, "cat f; ls -A").await, "old\nd\nf");
    let target = local.temp().join("out/old");
    std::fs::create_dir(local.temp().join("out")).unwrap();
    std::fs::write(&target, "old").unwrap();
    for remote in ["missing", "d", broken.to_str().unwrap()] {
        assert!(local.provider.download_file(&handle, &remote.into(), &target).await.is_err(), "{remote}");
    }
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(local.temp().join("out")).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_is_dropped_or_whose_sandbox_is_closed_ends_at_once() {
    let local = local(json!({}));
    let handle = local.create().await;
    // Large enough to be still under way, and without blocks of its own.
    let source = local.temp().join("source");
    std::fs::File::create(&source).unwrap().set_len(16 << 30).unwrap();
    let workspace = local.workspace(&handle);
    let entries = || std::fs::read_dir(&workspace).map_or(0, Iterator::count);
    let remote = "f".into();
    let upload = local.provider.upload_file(&handle, &source, &remote);
    tokio::select! {
        done = upload => panic!("it ended: {done:?}"),
        () = eventually("it did not begin", || entries() == 1) => {}
    }
    eventually("a dropped upload left something", || entries() == 0).await;

    let upload = local.provider.upload_file(&handle, &source, &remote);
    let close = async {
        eventually("it did not begin", || entries() == 1).await;
        local.provider.close(&handle).await
    };
    let begin = std::time::Instant::now();
    let (uploaded, closed) = tokio::join!(upload, close);
    assert_eq!(uploaded.unwrap_err().kind(), ErrorKind::NotFound);
    closed.unwrap();
    assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
    assert!(local.remains().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_belong_to_the_user_of_the_sandbox() {
    if !std::fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0) {
        println!("needs root: this process cannot give files away");
        return;
    }
    let local = local(json!({}));
    set_mode(local.temp(), 0o755);
    let source = local.temp().join("source");
    std::fs::write(&source, "#!/bin/sh\n").unwrap();
    set_mode(&source, 0o700);
    let handle = local.provider.create(SandboxSpec::default().with_user("54321:54322")).await.unwrap();
    local.provider.upload_file(&handle, &source, &"new/deep/f".into()).await.unwrap();
    local.provider.write_file(&handle, "made/w".into(), "x".into(), WriteOptions::default()).await.unwrap();
    local.provider.make_dir(&handle, "folder".into()).await.unwrap();
    local.provider.upload_dir(&handle, &local.root(), &"tree".into()).await.unwrap_or_default();
    let script =
        "id -u; ./new/deep/f && touch new/g new/deep/g made/g folder/g && echo \"$HOME\" && stat -c %u:%g . made/w";
    assert_eq!(local.text(&handle, script).await, "54321\n/\n54321:54322\n54321:54322");
    let options = WriteOptions { owner: Some("0".to_owned()), ..Default::default() };
    local.provider.write_file(&handle, "made/root".into(), "x".into(), options).await.unwrap();
    assert_eq!(local.provider.stat(&handle, "made/root".into()).await.unwrap().uid, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_travel_with_links_as_links_and_nothing_is_followed() {
    let local = local(json!({}));
    let handle = local.create().await;
    let tree = local.temp().join("tree");
    std::fs::create_dir_all(tree.join("b/c")).unwrap();
    std::fs::create_dir(tree.join("closed")).unwrap();
    std::fs::write(tree.join("f"), "f").unwrap();
    std::fs::write(tree.join("b/c/g"), "g").unwrap();
    std::fs::write(tree.join("closed/h"), "h").unwrap();
    for (link, target) in [("in", "f"), ("out", "/etc/hostname"), ("dangling", "nope"), ("dir", "."), ("b/up", "../f")]
    {
        symlink(target, tree.join(link)).unwrap();
    }
    set_mode(&tree.join("b/c/g"), 0o640);
    set_mode(&tree.join("closed"), 0o500);
    local.provider.upload_dir(&handle, &tree, &"d/e".into()).await.unwrap();
    local.provider.upload_dir(&handle, &tree, &"d/e".into()).await.unwrap();
    let there = local.text(&handle, "cd d/e; find . -type l -printf '%p %l\\n' | sort; find . ! -type l | sort").await;
    let expected = "./b/up ../f\n./dangling nope\n./dir .\n./in f\n./out /etc/hostname\n\
                    .\n./b\n./b/c\n./b/c/g\n./closed\n./closed/h\n./f";
    assert_eq!(there, expected);
    assert_eq!(mode(&local.workspace(&handle).join("d/e/b/c/g")), 0o640);
    assert_eq!(mode(&local.workspace(&handle).join("d/e/closed")), 0o500);
    let back = local.temp().join("back/deep");
    let refused = local.provider.download_dir(&handle, &"d/e".into(), &back).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("out"), "{refused}");
    local.text(&handle, "rm d/e/out; chmod u+s d/e/f").await;
    local.provider.download_dir(&handle, &"d/e".into(), &back).await.unwrap();
    assert_eq!(std::fs::read_link(back.join("b/up")).unwrap(), Path::new("../f"));
    assert_eq!(std::fs::read(back.join("b/c/g")).unwrap(), b"g");
    assert_eq!((mode(&back.join("f")) & 0o7000, mode(&back.join("closed"))), (0, 0o500));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_folder_is_refused() {
    let local = local(json!({}));
    let handle = local.create().await;
    let outside = local.temp().join("outside");
    std::fs::create_dir(&outside).unwrap();
    for (number, script) in
        ["mkfifo t/fifo", "ln -s ../x t/up", "ln -s sub/../../x t/up", "ln -s / t/root"].iter().enumerate()
    {
        local.text(&handle, &format!("rm -rf t; mkdir -p t/sub; {script}")).await;
        let target = local.temp().join(format!("in-{number}"));
        let refused = local.provider.download_dir(&handle, &"t".into(), &target).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{script}: {refused}");
    }
    // A link that is in the target already is not followed either.
    local.text(&handle, "rm -rf t; mkdir -p t/sub; echo x > t/sub/f").await;
    let target = local.temp().join("linked");
    std::fs::create_dir(&target).unwrap();
    symlink(&outside, target.join("sub")).unwrap();
    local.provider.download_dir(&handle, &"t".into(), &target).await.unwrap_err();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    let missing = local.provider.download_dir(&handle, &"nothing".into(), &local.temp().join("none")).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!local.temp().join("none").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_are_read_and_folders_are_told_from_files() {
    let local = local(json!({}));
    let handle = local.create().await;
    let files = &local.provider;
    files.write_file(&handle, "sub/f".into(), "0123456789".into(), WriteOptions::default()).await.unwrap();
    for (offset, length, expected) in
        [(0, None, "0123456789"), (3, Some(4), "3456"), (8, Some(9), "89"), (20, None, "")]
    {
        let read = files.read_file(&handle, "sub/f".into(), ReadRange { offset, length }).await.unwrap();
        assert_eq!(read, expected, "{offset} {length:?}");
    }
    files.make_dir(&handle, "a/b/c".into()).await.unwrap();
    files.make_dir(&handle, "a/b/c".into()).await.unwrap();
    assert_eq!(files.stat(&handle, "a/b".into()).await.unwrap().kind, FileKind::Directory);
    assert_eq!(files.make_dir(&handle, "sub/f".into()).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(files.list_dir(&handle, "sub/f".into()).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(files.list_dir(&handle, "none".into()).await.unwrap_err().kind(), ErrorKind::NotFound);
    let stat = files.stat(&handle, "sub/f".into()).await.unwrap();
    assert_eq!((stat.kind, stat.size, stat.mode), (FileKind::File, 10, 0o644));
    let path = local.workspace(&handle).join("sub/f");
    assert_eq!(stat.modified_ms / 1000, std::fs::metadata(path).unwrap().mtime());
}
