//! A given root folder below an overlay.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::{Bench, CALLERS, Caller};
use sandbox_agent::{LaunchConfig, Root, Stage};

/// A tiny system: busybox, and what images usually hold.
fn rootfs(bench: &Bench) -> PathBuf {
    assert!(Path::new("/usr/bin/busybox").exists(), "apt-get install busybox-static");
    let root = bench.folder.path().join("rootfs");
    for folder in ["", "bin", "etc", "usr", "usr/lib", "proc", "tmp", "var", "run"] {
        fs::create_dir(root.join(folder)).unwrap();
    }
    fs::copy("/usr/bin/busybox", root.join("bin/busybox")).unwrap();
    for applet in ["sh", "cat", "id", "ls", "rm", "mkdir", "chmod", "stat", "touch", "chown"] {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
    symlink("/run/systemd/resolve/stub-resolv.conf", root.join("etc/resolv.conf")).unwrap();
    symlink("../run", root.join("var/run")).unwrap();
    fs::write(root.join("usr/lib/file"), "lower").unwrap();
    give_tree(bench, &root);
    root
}

fn give_tree(bench: &Bench, path: &Path) {
    bench.give(path);
    if fs::symlink_metadata(path).unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap().flatten() {
            give_tree(bench, &entry.path());
        }
    }
}

fn config(bench: &Bench, lower: &Path) -> LaunchConfig {
    let upper = bench.folder.path().join("upper");
    if !upper.exists() {
        fs::create_dir(&upper).unwrap();
        bench.give(&upper);
    }
    LaunchConfig { root: Root::Rootfs { lower: lower.to_path_buf(), upper }, ..bench.config() }
}

/// Path → mode, owner, time and content.
fn contents(path: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![path.to_path_buf()];
    while let Some(path) = folders.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            folders.extend(fs::read_dir(&path).unwrap().flatten().map(|entry| entry.path()));
        }
        let text = if metadata.is_file() { fs::read(&path).unwrap().len() } else { 0 };
        let state =
            format!("{:o} {} {} {}.{}", metadata.mode(), metadata.uid(), text, metadata.mtime(), metadata.mtime_nsec());
        found.insert(path, state);
    }
    found
}

#[test]
fn everything_can_be_written_and_the_given_folder_never_changes() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let lower = rootfs(&bench);
        let before = contents(&lower);
        let script = "set -e; echo new > /usr/lib/new; echo changed > /usr/lib/file; chmod 700 /usr/lib/file; rm /bin/ls
            mkdir /opt; echo x > /etc/x; echo x > /tmp/x; cat /usr/lib/file; stat -c %u /etc/passwd /usr/lib/new; cat /etc/hostname; id -u
            echo x > /workspace/x";
        let said = bench.run(config(&bench, &lower), &["/bin/sh", "-c", script]);
        assert_eq!(said.text, "changed\n0\n0\nsandbox\n0\n", "{caller:?}");
        assert_eq!(said.code, 0);
        assert_eq!(contents(&lower), before, "{caller:?}");
        let written = fs::metadata(bench.folder.path().join("upper/upper/usr/lib/new")).unwrap();
        assert_eq!(written.uid(), said.report.ids.outside_uid);
        // The same upper folder again, although nothing was synced.
        let said = bench
            .run(config(&bench, &lower), &["/bin/sh", "-c", "cat /usr/lib/new; cat /bin/ls 2>/dev/null || echo gone"]);
        assert_eq!(said.text, "new\ngone\n", "{caller:?}");
    }
}

#[test]
fn proc_and_dev_are_the_sandboxs_own_there_too() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let lower = rootfs(&bench);
        let script = "cat /proc/kallsyms; echo x > /dev/null && echo null; echo x 2>/dev/null > /proc/sys/kernel/hostname || echo shut
            for d in /dev/mem /dev/vda /sys/fs; do test -e $d && echo $d; done; echo $(cat /proc/1/comm)";
        let said = bench.run(config(&bench, &lower), &["/bin/busybox", "sh", "-c", script]);
        assert_eq!(said.text, "null\nshut\nbusybox\n", "{caller:?}");
        assert!(said.report.masked_paths.contains(&"/proc/kallsyms".to_owned()));
    }
}

#[test]
fn links_of_a_hostile_root_folder_lead_nowhere_outside_it() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let lower = rootfs(&bench);
        let outside = bench.folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        bench.give(&outside);
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o777)).unwrap();
        // /etc of the image leads to a folder of the host, by an absolute and by a climbing link.
        let climbing = PathBuf::from(format!("../../../../../..{}", outside.display()));
        for target in [outside.clone(), climbing] {
            fs::remove_dir_all(lower.join("etc")).or_else(|_| fs::remove_file(lower.join("etc"))).unwrap();
            symlink(&target, lower.join("etc")).unwrap();
            let mut config = config(&bench, &lower);
            config.init = Some(vec!["/bin/sh".into(), "-c".into(), "ls /etc/".into()]);
            let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            if let Ok(mut launched) = bench.launch(&config, theirs.into()) {
                launched.wait().unwrap();
            }
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{caller:?}: {target:?}");
        }
    }
}

#[test]
fn a_root_folder_whose_proc_is_a_link_is_refused() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let lower = rootfs(&bench);
        fs::remove_dir(lower.join("proc")).unwrap();
        symlink("/tmp", lower.join("proc")).unwrap();
        let mut config = config(&bench, &lower);
        config.init = Some(vec!["/bin/sh".into()]);
        let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let error = bench.launch(&config, theirs.into()).expect_err("masks would be put elsewhere");
        assert_eq!(error.stage(), Stage::Proc, "{error:?}");
    }
}

#[test]
fn an_upper_folder_below_the_lower_one_is_refused() {
    let bench = Bench::new(Caller::Root);
    let lower = rootfs(&bench);
    let root = Root::Rootfs { lower: lower.clone(), upper: lower.join("tmp") };
    let config = LaunchConfig { root, init: Some(vec!["/bin/sh".into()]), ..bench.config() };
    let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let error = bench.launch(&config, theirs.into()).expect_err("it would change the lower folder");
    assert!(error.to_string().contains("root.upper"), "{error}");
}
