//! Sandboxes on tar files.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use sandbox_core::{ErrorKind, SandboxProvider, SandboxSpec, serde_json::json};

use crate::{
    agent,
    support::{isolated, provider, remains, run},
};

/// A whole system that is small, of busybox, as a tar file.
pub(crate) fn image(folder: &Path, mark: &str, packer: &str) -> PathBuf {
    let system = folder.join(format!("system-{mark}"));
    // The agent may not be static: `cargo xtask test` gives the one that is shipped, else the tests build their own.
    let script = "mkdir -p $0/bin $0/etc $0/tmp $0/dev && cp /bin/busybox $0/bin/ && \
                  for name in sh cat id ls stat touch chown; do ln -s busybox $0/bin/$name; done; \
                  libraries=$(ldd $1 2> /dev/null | grep -o '/[^ )]*' | grep -v : | sort -u); \
                  test -z \"$libraries\" || cp -L --parents $libraries $0; \
                  echo 'root:x:0:0::/root:/bin/sh' > $0/etc/passwd; echo $2 > $0/etc/mark; ln -s /etc/mark $0/etc/link; \
                  chmod 0644 $0/etc/mark; chmod 4755 $0/bin/busybox";
    let mut make = Command::new("sh");
    assert!(make.args(["-ec", script]).arg(&system).arg(agent::agent()).arg(mark).status().unwrap().success());
    let tar = folder.join(format!("{mark}.tar"));
    let mut pack = Command::new("sh");
    let script = format!(
        "tar -C $0 --owner=1000 --group=1001 -c ./etc/mark | tar -t > /dev/null; \
                          tar -C $0 --exclude=./etc/mark --owner=0 --group=0 -cf $1.1 . && \
                          tar -C $0 --owner=1000 --group=1001 -rf $1.1 ./etc/mark && {packer} < $1.1 > $1 && rm $1.1"
    );
    assert!(pack.args(["-ec", &script]).arg(&system).arg(&tar).status().unwrap().success());
    std::fs::remove_dir_all(system).unwrap();
    tar
}

fn spec(tar: &Path) -> SandboxSpec {
    SandboxSpec::image(format!("tar:{}", tar.display()))
}

fn unpacked(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("root/.images"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().is_dir())
        .count()
}

async fn a_tar_file_is_a_system() {
    let temp = tempfile::tempdir().unwrap();
    let local = isolated(json!({}));
    for (mark, packer) in [("plain", "cat"), ("gzip", "gzip -1"), ("again", "gzip -1")] {
        let tar = image(temp.path(), mark, packer);
        let (first, second) = tokio::join!(local.provider.create(spec(&tar)), local.provider.create(spec(&tar)));
        let (first, second) = (first.unwrap(), second.unwrap());
        let said = local
            .text(
                &first,
                "cat /etc/link; rm /etc/mark; echo new > /etc/mark; cat /etc/link; id -u; touch /bin/x; ls /tmp; pwd",
            )
            .await;
        assert_eq!(said, format!("{mark}\nnew\n0\n/workspace"));
        // What one has written, no other one sees.
        assert_eq!(
            local.text(&second, "cat /etc/mark; ls /bin/x 2>/dev/null || echo none").await,
            format!("{mark}\nnone")
        );
        if !agent::is_nobody() {
            let owners = "stat -c %u:%g:%a /etc/mark /etc/passwd /bin/busybox";
            assert_eq!(local.text(&second, owners).await, "1000:1001:644\n0:0:644\n0:0:755");
        }
        for handle in [first, second] {
            local.provider.close(&handle).await.unwrap();
        }
    }
    assert_eq!(unpacked(local.temp()), 3);
    assert_eq!(local.remains(), [".images"]);
    for (image, kind) in [
        ("tar:/no/such/file.tar".to_owned(), ErrorKind::NotFound),
        (format!("tar:{}", temp.path().display()), ErrorKind::InvalidInput),
        ("tar:/dev/zero".to_owned(), ErrorKind::InvalidInput),
        ("tar:/etc/hostname".to_owned(), ErrorKind::InvalidInput),
        ("tar:relative.tar".to_owned(), ErrorKind::Unsupported),
    ] {
        let error = local.provider.create(SandboxSpec::image(&image)).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (kind, Some("image")), "{image}: {error}");
        assert!(error.message().contains(image.strip_prefix("tar:/").unwrap_or("local")), "{image}: {error}");
    }
    assert_eq!(local.remains(), [".images"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tar_file_is_unpacked_once_and_every_sandbox_of_it_writes_apart() {
    a_tar_file_is_a_system().await;
}

/// Runs as another program, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn images_as_nobody() {
    if agent::is_nobody() {
        a_tar_file_is_a_system().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tar_file_is_a_system_without_privileges_too() {
    agent::as_nobody("images::images_as_nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_in_use_stays_when_another_one_needs_its_room() {
    let temp = tempfile::tempdir().unwrap();
    let (one, two) = (image(temp.path(), "one", "cat"), image(temp.path(), "two", "cat"));
    let size_mib = std::fs::metadata(&one).unwrap().len().div_ceil(1 << 20);
    let folder = tempfile::tempdir().unwrap();
    let settings = json!({ "image_cache_mib": size_mib + size_mib / 2 });
    let local = provider(folder.path(), settings.clone());
    let handle = local.create(spec(&one)).await.unwrap();
    // Another program sees who uses it.
    let other = provider(folder.path(), settings);
    let error = other.create(spec(&two)).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Exhausted, Some("image")), "{error}");
    assert_eq!(unpacked(folder.path()), 1);
    let cat = sandbox_core::ExecRequest::shell("cat /etc/mark");
    assert_eq!(run(&local, &handle, cat.clone()).await.stdout_text(), "one\n");
    local.close(&handle).await.unwrap();
    let handle = other.create(spec(&two)).await.unwrap();
    assert_eq!(run(&other, &handle, cat).await.stdout_text(), "two\n");
    assert_eq!(unpacked(folder.path()), 1);
    other.close(&handle).await.unwrap();
    assert_eq!(remains(folder.path()), [".images"]);
    let mode = std::fs::metadata(folder.path().join("root/.images")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}
