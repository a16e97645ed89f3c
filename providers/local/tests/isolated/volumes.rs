//! What a spec mounts: files of this machine, memory, named volumes, shared storage.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use sandbox_core::{
    ErrorKind, SandboxProvider, SandboxSpec, SharedStorage, VolumeMount, VolumeRequest, VolumeSource, Volumes,
    serde_json::json,
};

use crate::{
    agent,
    support::{isolated, provider},
};

fn with(volumes: impl IntoIterator<Item = (VolumeSource, &'static str, bool)>) -> SandboxSpec {
    let mount = |(source, target, read_only): (VolumeSource, &str, bool)| VolumeMount {
        source,
        target: target.to_owned(),
        read_only,
    };
    let mut spec = SandboxSpec::default();
    spec.volumes = volumes.into_iter().map(mount).collect();
    spec
}

fn bind(path: &Path) -> VolumeSource {
    VolumeSource::Bind(path.to_str().unwrap().to_owned())
}

fn named(name: &str) -> VolumeSource {
    VolumeSource::Named(name.to_owned())
}

/// A folder with a file, both of an ordinary user, or of this one where it has no privileges.
fn folder(parent: &Path, name: &str, owner: Option<u32>) -> PathBuf {
    let path = parent.canonicalize().unwrap().join(name);
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("f"), name).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
    if let Some(owner) = owner.filter(|_| !agent::is_nobody()) {
        chown(path.join("f"), Some(owner), Some(owner)).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
    }
    path
}

async fn folders_of_this_machine() {
    let temp = tempfile::tempdir().unwrap();
    let (open, fixed) = (folder(temp.path(), "open", Some(4711)), folder(temp.path(), "fixed", Some(4712)));
    let local = isolated(json!({}));
    let spec = with([
        (bind(&open), "/workspace/deep/open", false),
        (bind(&fixed), "/opt/fixed", true),
        (bind(&open.join("f")), "/opt/one", true),
    ]);
    let handle = local.create_with(spec).await;
    let owner = if agent::is_nobody() { "0 0" } else { "1000 1000" };
    let script = "cd deep/open; echo new > new; mkdir sub; stat -c '%u %g' f new; cat /opt/fixed/f /opt/one; \
                  for path in /opt/fixed/x /opt/fixed/f /opt/one; do \
                  echo x 2>/dev/null > $path && echo written; done; echo";
    assert_eq!(local.text(&handle, script).await, format!("{owner}\n{owner}\nfixedopen"));
    let made = std::fs::metadata(open.join("new")).unwrap();
    let expected = std::fs::metadata(&open).unwrap();
    assert_eq!((made.uid(), made.gid()), (expected.uid(), expected.gid()));
    assert!(!fixed.join("x").exists());
    // A link in it leads to what is inside.
    symlink("/etc/shadow", open.join("link")).unwrap();
    symlink(temp.path(), open.join("up")).unwrap();
    let script = "cat deep/open/link deep/open/up/fixed/f 2>/dev/null || echo none";
    assert_eq!(local.text(&handle, script).await, "none");
    local.provider.close(&handle).await.unwrap();
    assert!(local.remains().is_empty());
    assert!(open.join("new").exists());
    // What is on the way may not be a link.
    symlink(&open, temp.path().join("by-link")).unwrap();
    for (path, kind) in [("by-link", ErrorKind::InvalidInput), ("missing", ErrorKind::NotFound)] {
        let path = temp.path().canonicalize().unwrap().join(path);
        let error = local.provider.create(with([(bind(&path), "/x", true)])).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (kind, Some("volumes[0]")), "{error}");
        assert!(error.message().contains(path.to_str().unwrap()), "{error}");
    }
    let error =
        local.provider.create(with([(bind(&open), "/x", true), (bind(&fixed), "/x/", true)])).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("volumes[1].target")), "{error}");
    assert!(local.remains().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_of_this_machine_are_seen_with_their_owner_as_the_sandboxs_user() {
    folders_of_this_machine().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_roots_on_this_machine_is_never_written_to_from_inside() {
    let temp = tempfile::tempdir().unwrap();
    let roots = folder(temp.path(), "roots", None);
    let local = isolated(json!({}));
    for user in ["root", "sandbox"] {
        let spec = with([(bind(&roots), "/roots", false)]).with_user(user);
        let error = local.provider.create(spec).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("volumes[0]")), "{error}");
        assert!(error.help().unwrap().contains("chown"), "{error}");
        // To be read by everybody, it is read.
        let handle = local.create_with(with([(bind(&roots), "/roots", true)]).with_user(user)).await;
        assert_eq!(local.text(&handle, "cat /roots/f 2>/dev/null || stat -c %u /roots").await, "65534");
    }
    // Within a folder of an ordinary user, too.
    let mixed = folder(temp.path(), "mixed", Some(4711));
    std::fs::set_permissions(&mixed, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(mixed.join("roots"), "root's").unwrap();
    std::fs::set_permissions(mixed.join("roots"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let handle = local.create_with(with([(bind(&mixed), "/mixed", false)]).with_user("root")).await;
    let script = "cat /mixed/roots 2>/dev/null || stat -c %u /mixed/roots /mixed/f; \
                  chmod 4755 /mixed/roots 2>/dev/null || echo no";
    assert_eq!(local.text(&handle, script).await, "65534\n0\nno");
}

async fn memory() {
    let local = isolated(json!({}));
    let spec = with([(VolumeSource::Tmpfs(Some(2)), "/cache", false), (VolumeSource::Tmpfs(None), "/opt/empty", true)]);
    let handle = local.create_with(spec).await;
    let script = "df -k /cache | tail -n 1 | awk '{print $2}'; \
                  head -c 3000000 /dev/zero 2>/dev/null > /cache/big || echo full; \
                  touch /opt/empty/x 2>/dev/null || echo read-only; grep -c ' /cache tmpfs .*nosuid' /proc/mounts";
    assert_eq!(local.text(&handle, script).await, "2048\nfull\nread-only\n1");
    for mib in [0, 1 << 21, u64::MAX] {
        let error = local.provider.create(with([(VolumeSource::Tmpfs(Some(mib)), "/cache", false)])).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("volumes")), "{error}");
    }
    let error = local.provider.create(with([(VolumeSource::Tmpfs(None), "/proc/x", false)])).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("volumes")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_mounted_within_its_size() {
    memory().await;
}

async fn named_volumes() {
    let local = isolated(json!({}));
    let make = |name: &str| VolumeRequest {
        name: name.to_owned(),
        metadata: [("app".to_owned(), "db".to_owned())].into(),
        ..VolumeRequest::default()
    };
    let missing = local.provider.create(with([(named("data"), "/data", false)])).await.unwrap_err();
    assert_eq!((missing.kind(), missing.field()), (ErrorKind::NotFound, Some("volumes[0].source")), "{missing}");
    let made = local.provider.create_volume(make("data")).await.unwrap();
    assert_eq!(local.provider.create_volume(make("data")).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(local.provider.list_volumes().await.unwrap(), [made]);
    let spec = || with([(named("data"), "/data", false)]);
    let first = local.create_with(spec()).await;
    assert_eq!(local.text(&first, "echo kept > /data/f; stat -c %u /data/f; ls /data").await.lines().last(), Some("f"));
    // Seen by another one at the same time, and read-only by a third.
    let second = local.create_with(spec()).await;
    assert_eq!(local.text(&second, "cat /data/f; echo more >> /data/f").await, "kept");
    let third = local.create_with(with([(named("data"), "/data", true)])).await;
    assert_eq!(local.text(&third, "cat /data/f; touch /data/x 2>/dev/null || echo no").await, "kept\nmore\nno");
    let other = provider(local.temp(), json!({}));
    for user in [&local.provider, &other] {
        let error = user.remove_volume("data".to_owned()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    }
    for handle in [first, second, third] {
        local.provider.close(&handle).await.unwrap();
    }
    let again = local.create_with(spec()).await;
    assert_eq!(local.text(&again, "cat /data/f").await, "kept\nmore");
    local.provider.close(&again).await.unwrap();
    for _ in 0..2 {
        other.remove_volume("data".to_owned()).await.unwrap();
    }
    assert_eq!(local.provider.list_volumes().await.unwrap(), []);
    assert_eq!(std::fs::read_dir(local.temp().join("root/.volumes")).unwrap().count(), 0);
    for bad in ["", "..", "../x", "a/b", ".hidden", &"n".repeat(64)] {
        assert_eq!(local.provider.create_volume(make(bad)).await.unwrap_err().field(), Some("name"), "{bad}");
        assert_eq!(local.provider.remove_volume(bad.to_owned()).await.unwrap_err().field(), Some("name"), "{bad}");
    }
    let sized = VolumeRequest { size_gib: Some(1), ..make("sized") };
    assert_eq!(local.provider.create_volume(sized).await.unwrap_err().field(), Some("size_gib"));
}

#[tokio::test(flavor = "multi_thread")]
async fn h12_a_named_volume_outlives_its_sandboxes_and_stays_while_one_has_it() {
    named_volumes().await;
}

async fn shared_storage() {
    let temp = tempfile::tempdir().unwrap();
    let root = folder(temp.path(), "shared", Some(4711));
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
    let local = isolated(json!({ "shared_root": root }));
    let spec = async |source: Option<&str>, target: &str, read_only| {
        let source = source.map(str::to_owned);
        let options = local.provider.shared_volume_options(source, target.to_owned(), read_only).await.unwrap();
        let mut spec = SandboxSpec::default();
        spec.provider_options = options.as_object().unwrap().clone();
        spec.metadata.extend(local.provider.shared_volume_metadata().await.unwrap());
        spec
    };
    let writer = local.create_with(spec(Some("claims/one"), "/claim", false).await).await;
    let reader = local.create_with(spec(Some("claims/one"), "/workspace/claim", true).await).await;
    let other = local.create_with(spec(Some("claims/two"), "/claim", false).await).await;
    local.text(&writer, "echo hello > /claim/f").await;
    assert_eq!(local.text(&reader, "cat claim/f; touch claim/x 2>/dev/null || echo no").await, "hello\nno");
    assert_eq!(local.text(&other, "ls -A /claim").await, "");
    // A link that was made inside leads nobody out, now or at the next mount.
    local.text(&writer, "ln -s /etc /claim/out; ln -s ../.. /claim/up").await;
    assert_eq!(local.text(&reader, "cat claim/up/f claim/up/claims/two/f 2>/dev/null || echo none").await, "none");
    for way in ["claims/one/out", "claims/one/up/claims"] {
        let error = local.provider.create(spec(Some(way), "/claim", true).await).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("source")), "{error}");
    }
    let whole = local.create_with(spec(None, "/all", true).await).await;
    assert_eq!(local.text(&whole, "cat /all/f; ls /all").await, "sharedclaims\nf");
    let mut wrong = SandboxSpec::default();
    wrong.provider_options.insert("shared_volume".to_owned(), json!({}));
    let error = local.provider.create(wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("shared_volumes"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_storage_is_seen_by_every_sandbox_of_a_claim_and_by_no_other() {
    shared_storage().await;
}

/// Runs as another program, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_as_nobody() {
    if agent::is_nobody() {
        folders_of_this_machine().await;
        memory().await;
        named_volumes().await;
        shared_storage().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_work_without_privileges_too() {
    agent::as_nobody("volumes::volumes_as_nobody");
}
