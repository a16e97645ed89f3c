//! Where paths may lead (L8), and what links do.

use std::{os::unix::fs::symlink, path::Path};

use sandbox_core::{
    ByteString, ErrorKind, FileKind, Files, ReadRange, SandboxHandle, SandboxProvider, serde_json::json,
};

use crate::support::{Local, local};

async fn put(local: &Local, handle: &SandboxHandle, remote: impl Into<ByteString>) -> Result<(), ErrorKind> {
    let source = local.temp().join("source");
    std::fs::write(&source, "x").unwrap();
    local.provider.upload_file(handle, &source, &remote.into()).await.map_err(|error| error.kind())
}

async fn get(local: &Local, handle: &SandboxHandle, remote: impl Into<ByteString>) -> Result<Vec<u8>, ErrorKind> {
    let target = local.temp().join("got");
    let result = local.provider.download_file(handle, &remote.into(), &target).await;
    let bytes = std::fs::read(&target);
    assert_eq!(result.is_ok(), bytes.is_ok());
    let _ = std::fs::remove_file(&target);
    result.map(|()| bytes.unwrap()).map_err(|error| error.kind())
}

#[tokio::test(flavor = "multi_thread")]
async fn l08_relative_paths_never_leave_the_workspace() {
    let local = local(json!({}));
    let handle = local.create().await;
    let workspace = local.workspace(&handle);
    std::fs::write(local.root().join("secret"), "x").unwrap();
    std::fs::create_dir(workspace.join("sub")).unwrap();
    symlink("..", workspace.join("up")).unwrap();
    symlink(local.root(), workspace.join("absolute")).unwrap();
    symlink("/proc/self/root", workspace.join("magic")).unwrap();
    let below = |path: &str| format!("{}/{path}", workspace.display());
    for path in ["../secret", "sub/../../secret", "up/secret", "absolute/secret", "up/new/deep/secret", "magic/etc/x"] {
        for path in [path.to_owned(), below(path)] {
            assert_eq!(put(&local, &handle, path.as_str()).await, Err(ErrorKind::InvalidInput), "{path}");
            assert_eq!(get(&local, &handle, path.as_str()).await, Err(ErrorKind::InvalidInput), "{path}");
            let removed = local.provider.remove(&handle, path.as_str().into(), true).await;
            assert_eq!(removed.unwrap_err().kind(), ErrorKind::InvalidInput, "{path}");
        }
    }
    assert_eq!(std::fs::read(local.root().join("secret")).unwrap(), b"x");
    let mut names: Vec<_> = std::fs::read_dir(local.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".records", &handle.sandbox_id, "secret"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_followed_as_long_as_they_stay_inside() {
    let local = local(json!({}));
    let handle = local.create().await;
    let script =
        "mkdir sub; echo f > sub/f; ln -s sub/f rel; ln -s $PWD/sub/f abs; ln -s sub dir; ln -s ../new sub/link";
    local.text(&handle, script).await;
    for path in ["rel", "abs", "dir/f", "sub/../rel"] {
        assert_eq!(get(&local, &handle, path).await.unwrap(), b"f\n", "{path}");
    }
    put(&local, &handle, "sub/link").await.unwrap();
    assert_eq!(local.text(&handle, "cat new; readlink sub/link").await, "x../new");
    put(&local, &handle, "abs").await.unwrap();
    assert_eq!(local.text(&handle, "cat sub/f; test -L abs && echo link").await, "xlink");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_absolute_paths_are_this_machines_own() {
    let local = local(json!({}));
    let handle = local.create().await;
    let outside = local.temp().join("outside/deep/file");
    put(&local, &handle, outside.as_path()).await.unwrap();
    assert_eq!(std::fs::read(&outside).unwrap(), b"x");
    assert_eq!(get(&local, &handle, outside.as_path()).await.unwrap(), b"x");
    assert_eq!(get(&local, &handle, "/proc/self/root/etc/passwd").await, Err(ErrorKind::InvalidInput));
    assert_eq!(put(&local, &handle, "/dev/null").await, Err(ErrorKind::InvalidInput));
    assert_eq!(put(&local, &handle, local.temp()).await, Err(ErrorKind::InvalidInput));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_regular_files_move_and_nothing_waits() {
    let local = local(json!({}));
    let handle = local.create().await;
    local.text(&handle, "mkfifo fifo; mkdir dir; ln -s fifo link").await;
    for path in ["fifo", "dir", "link", ".", "dir/"] {
        assert_eq!(get(&local, &handle, path).await, Err(ErrorKind::InvalidInput), "{path}");
        assert_eq!(put(&local, &handle, path).await, Err(ErrorKind::InvalidInput), "{path}");
        let read = local.provider.read_file(&handle, path.into(), ReadRange::default()).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::InvalidInput, "{path}");
    }
    for source in [local.workspace(&handle).join("fifo"), local.temp().to_owned(), Path::new("/dev/zero").to_owned()] {
        let uploaded = local.provider.upload_file(&handle, &source, &"new".into()).await;
        assert_eq!(uploaded.unwrap_err().kind(), ErrorKind::InvalidInput, "{}", source.display());
    }
    for target in ["/dev/null", "/dev/zero"] {
        put(&local, &handle, "f").await.unwrap();
        let downloaded = local.provider.download_file(&handle, &"f".into(), Path::new(target)).await;
        assert_eq!(downloaded.unwrap_err().kind(), ErrorKind::InvalidInput, "{target}");
    }
    assert_eq!(local.text(&handle, "ls -A").await, "dir\nf\nfifo\nlink");
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_described_and_removed_themselves() {
    let local = local(json!({}));
    let handle = local.create().await;
    local.text(&handle, "mkdir kept; echo x > kept/f; ln -s kept dir; ln -s /etc/passwd out; ln -s nowhere gone").await;
    let files = &local.provider;
    for (name, target) in [("dir", "kept"), ("out", "/etc/passwd"), ("gone", "nowhere")] {
        let stat = files.stat(&handle, name.into()).await.unwrap();
        assert_eq!((stat.kind, stat.link_target), (FileKind::Symlink, Some(target.into())), "{name}");
        files.remove(&handle, name.into(), true).await.unwrap();
    }
    assert_eq!(local.text(&handle, "ls -R").await, ".:\nkept\n\n./kept:\nf");
    for path in [".", "", "kept/..", "/"] {
        assert_eq!(files.remove(&handle, path.into(), true).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    for above in [local.root(), local.temp().join("root/.records/../../root")] {
        let refused = files.remove(&handle, ByteString::from(above), true).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(files.remove(&handle, "kept".into(), false).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    files.remove(&handle, "kept".into(), true).await.unwrap();
}
