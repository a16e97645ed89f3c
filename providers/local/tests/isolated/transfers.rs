//! Tricks with links, in and out.

use std::os::unix::fs::{PermissionsExt, symlink};

use sandbox_core::{ErrorKind, Files, ReadRange, SandboxProvider, WriteOptions, serde_json::json};

use crate::support::isolated;

#[tokio::test(flavor = "multi_thread")]
async fn a_link_inside_leads_to_files_inside_only() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let planted = local.temp().join("planted");
    std::fs::write(&planted, "host").unwrap();
    let got = local.temp().join("got");
    local.text(&handle, &format!("ln -s {} out; ln -s /../../../../etc/shadow up", planted.display())).await;
    for name in ["out", "up", "../../../../../../etc/shadow"] {
        let refused = local.provider.download_file(&handle, &name.into(), &got).await;
        assert!(refused.is_err(), "{name}");
        assert!(!got.exists());
    }
    std::fs::write(local.temp().join("new"), "new").unwrap();
    // Through a link that names a file of this machine: whatever it does inside, nothing here changes.
    let _ = local.provider.upload_file(&handle, &local.temp().join("new"), &"out".into()).await;
    let _ = local.provider.write_file(&handle, "out".into(), "x".into(), WriteOptions::default()).await;
    assert_eq!(std::fs::read_to_string(&planted).unwrap(), "host");
    let deep = "../../../../tmp/by-dots";
    local.provider.write_file(&handle, deep.into(), "x".into(), WriteOptions::default()).await.unwrap();
    assert_eq!(local.text(&handle, "cat /tmp/by-dots").await, "x");
    assert!(!std::path::Path::new("/tmp/by-dots").exists());
    let read = local.provider.read_file(&handle, deep.into(), ReadRange::default()).await.unwrap();
    assert_eq!(read, "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_comes_out_holds_no_link_that_leads_out_and_no_special_file() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    for (name, make) in [
        ("absolute", "ln -s /etc/passwd absolute/link"),
        ("up", "mkdir up/s; ln -s ../../x up/s/link"),
        ("through", "mkdir through/s; ln -s s/../../x through/link"),
        ("fifo", "mkfifo fifo/f"),
    ] {
        local.text(&handle, &format!("mkdir {name}; {make}")).await;
        let target = local.temp().join(name);
        let refused = local.provider.download_dir(&handle, &name.into(), &target).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{name}: {refused}");
        assert!(std::fs::symlink_metadata(target.join("link")).is_err(), "{name}");
    }
    local
        .text(&handle, "mkdir -p good/s; echo x > good/s/f; chmod 4755 good/s/f; ln -s s/f good/link; touch file")
        .await;
    let target = local.temp().join("good");
    local.provider.download_dir(&handle, &"good".into(), &target).await.unwrap();
    assert_eq!(std::fs::read_to_string(target.join("link")).unwrap(), "x\n");
    assert_eq!(std::fs::metadata(target.join("s/f")).unwrap().permissions().mode() & 0o7777, 0o755);
    let refused = local.provider.download_dir(&handle, &"file".into(), &local.temp().join("no")).await;
    assert!(refused.is_err());
    assert!(!local.temp().join("no").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_the_target_on_this_machine_is_not_followed() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    local.text(&handle, "mkdir -p tree/sub; echo new > tree/sub/f; echo new > tree/g").await;
    let (target, kept) = (local.temp().join("target"), local.temp().join("kept"));
    std::fs::create_dir(&target).unwrap();
    std::fs::create_dir(&kept).unwrap();
    std::fs::write(kept.join("g"), "old").unwrap();
    symlink(&kept, target.join("sub")).unwrap();
    symlink(kept.join("g"), target.join("g")).unwrap();
    let refused = local.provider.download_dir(&handle, &"tree".into(), &target).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    assert!(!kept.join("f").exists());
    assert_eq!(std::fs::read_to_string(kept.join("g")).unwrap(), "old");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_goes_in_as_it_is_and_links_of_the_sandbox_lead_nowhere() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let source = local.temp().join("source");
    std::fs::create_dir_all(source.join("a/b")).unwrap();
    std::fs::write(source.join("a/b/run"), "#!/bin/sh\necho ran").unwrap();
    std::fs::set_permissions(source.join("a/b/run"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(source.join("name\n\u{e9}"), vec![7; 3_000_000]).unwrap();
    symlink("a/b/run", source.join("link")).unwrap();
    let long = format!("{}/{}", "l".repeat(200), "m".repeat(200));
    std::fs::create_dir_all(source.join(&long)).unwrap();
    local.provider.upload_dir(&handle, &source, &"in/deep".into()).await.unwrap();
    assert_eq!(
        local.text(&handle, "in/deep/link; cat in/deep/name* | wc -c; stat -c %u in/deep/a/b/run").await,
        "ran\n3000000\n1000"
    );
    assert_eq!(local.text(&handle, &format!("test -d in/deep/{long} && echo there")).await, "there");
    let socket = std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap();
    let refused = local.provider.upload_dir(&handle, &source, &"again".into()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    drop(socket);
}

/// Bytes that this process has read itself so far, by any system call.
fn bytes_read() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_file_is_copied_by_the_kernel_and_not_by_this_process() {
    const BYTES: usize = 48 << 20;
    let local = isolated(json!({}));
    let handle = local.create().await;
    let (source, back) = (local.temp().join("source"), local.temp().join("new/folder/back"));
    let content: Vec<u8> = (0..BYTES / 4).flat_map(|number| (number as u32).to_le_bytes()).collect();
    std::fs::write(&source, &content).unwrap();
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o750)).unwrap();
    let before = bytes_read();
    local.provider.upload_file(&handle, &source, &"in/deep/file".into()).await.unwrap();
    local.provider.download_file(&handle, &"in/deep/file".into(), &back).await.unwrap();
    assert!(bytes_read() - before < BYTES as u64 / 4, "the bytes went through this process");
    assert_eq!(local.text(&handle, "stat -c '%a %u' in in/deep/file | paste -s -d ,").await, "755 1000,750 1000");
    assert_eq!(std::fs::metadata(&back).unwrap().permissions().mode() & 0o7777, 0o750);
    assert!(std::fs::read(&back).unwrap() == content);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_that_fails_leaves_the_old_file_and_nothing_else() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let folder = local.temp().join("kept");
    std::fs::create_dir(&folder).unwrap();
    let old = folder.join("old");
    std::fs::write(&old, "old").unwrap();
    local.text(&handle, "mkdir folder; mkfifo pipe").await;
    for name in ["missing", "folder", "pipe", "/proc/1/mem", "/dev/zero"] {
        let refused = local.provider.download_file(&handle, &name.into(), &old).await.unwrap_err();
        assert_eq!(refused.provider(), Some("local"), "{name}: {refused}");
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "old", "{name}");
        let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["old"], "{name}");
        // The first read of memory is what fails, not its opening.
        if name != "/proc/1/mem" {
            local.provider.download_file(&handle, &name.into(), &local.temp().join("none/x")).await.unwrap_err();
            assert!(!local.temp().join("none").exists(), "{name}");
        }
    }
    // Set-user-id bits stay inside; what says that it is empty and is not comes whole.
    local.text(&handle, "echo run > run; chmod 4711 run").await;
    local.provider.download_file(&handle, &"run".into(), &old).await.unwrap();
    assert_eq!(std::fs::metadata(&old).unwrap().permissions().mode() & 0o7777, 0o711);
    local.provider.download_file(&handle, &"/proc/cpuinfo".into(), &old).await.unwrap();
    assert!(std::fs::read_to_string(&old).unwrap().contains("processor"));
}
