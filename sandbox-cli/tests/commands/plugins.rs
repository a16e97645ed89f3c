//! A third party's plugin from nothing to a command that runs in it.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Command};

use crate::common::{Ran, checkout, products, run, sandboxctl};
use serde_json::Value;

fn tool(folder: &Path, args: &[&str]) -> Command {
    let mut command = sandboxctl(args);
    command.current_dir(folder).env("XDG_DATA_HOME", folder.join("data"));
    command
}

/// What a command says to a machine.
#[track_caller]
fn json(ran: &Ran) -> Value {
    let value: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {ran:?}"));
    assert_eq!((ran.code, value["schema"].as_str()), (0, Some("v1")), "{ran:?}");
    value
}

#[test]
fn a_new_plugin_is_built_verified_installed_used_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let checkout_path = checkout().to_str().unwrap();
    let ran = run(tool(folder, &["plugin", "new", "my-cloud2", "--sandbox-path", checkout_path, "-o", "json"]));
    assert_eq!(json(&ran)["name"], "my-cloud2");
    let krate = folder.join("sandbox-provider-my-cloud2");
    // The versions of the checkout, so that nothing has to be fetched.
    fs::copy(checkout().join("Cargo.lock"), krate.join("Cargo.lock")).unwrap();
    let target = products().parent().unwrap().join("fixtures/target");
    let cargo = |args: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(args).current_dir(&krate).env("CARGO_TARGET_DIR", &target);
        // As the fixtures of tests/abi in the same folder: what both need is built once, and in less time.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").output().unwrap()
    };
    let built = cargo(&["build", "--quiet"]);
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    assert!(built.stderr.is_empty(), "no warnings: {}", String::from_utf8_lossy(&built.stderr));
    // Its own test runs the same suite as `plugin verify` below.
    let tested = cargo(&["test", "--quiet", "--no-run"]);
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&tested.stderr));
    let formatted = cargo(&["fmt", "--check"]);
    assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stdout));

    let library = target.join("debug/libsandbox_provider_my_cloud2.so");
    let library = library.to_str().unwrap();
    let ran = run(tool(folder, &["plugin", "verify", library]));
    let last = ran.stdout.lines().last().unwrap_or_default().to_owned();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(last.contains(" passed, 0 failed, ") && last.ends_with(" skipped"), "{last}");
    for step in ["permissions", "manifest", "dlopen", "layout", "init"] {
        assert!(ran.stdout.lines().any(|line| line.starts_with("ok") && line.contains(step)), "{step}: {}", ran.stdout);
    }

    let ran = run(tool(folder, &["plugin", "install", library]));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("sha256 "), "{ran:?}");
    let ran = run(tool(folder, &["run", "-q", "--provider", "my-cloud2", "--", "echo", "hello"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "hello\n"), "{ran:?}");
    assert_eq!(run(tool(folder, &["plugin", "ls", "-q"])).stdout, "my-cloud2\n");
    assert_eq!(run(tool(folder, &["plugin", "install", library])).code, 1, "it is there already");
    let installed = folder.join("data/sandbox/plugins/libsandbox_provider_my_cloud2.so");
    let inode = || fs::metadata(&installed).unwrap().ino();
    let before = inode();
    let ran = run(tool(folder, &["plugin", "install", "--force", library, "-o", "json"]));
    assert_eq!(json(&ran)["path"], installed.to_str().unwrap());
    assert_ne!(inode(), before, "never in place: a program that has the old file loaded would die of it");
    let ran = run(tool(folder, &["plugin", "install", "--force", "--sha256", &"0".repeat(64), library]));
    assert_eq!(ran.code, 1, "{ran:?}");
    let ran = run(tool(folder, &["plugin", "rm", "my-cloud"]));
    assert!(ran.code == 1 && ran.stderr.contains("did you mean \"my-cloud2\"?"), "{ran:?}");
    assert_eq!(json(&run(tool(folder, &["plugin", "rm", "my-cloud2", "-o", "json"])))["name"], "my-cloud2");
    assert_eq!(run(tool(folder, &["plugin", "ls", "-q"])).stdout, "");
    let left: Vec<_> = fs::read_dir(folder.join("data/sandbox/plugins")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_file_that_is_no_plugin_is_refused_with_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("bad.so"), "not a library").unwrap();
    let ran = run(tool(folder.path(), &["plugin", "verify", "bad.so"]));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.lines().any(|line| line.starts_with("FAIL")), "{ran:?}");
    assert!(ran.stderr.starts_with("error: "), "{ran:?}");
    let ran = run(tool(folder.path(), &["plugin", "install", "bad.so"]));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(!folder.path().join("data").exists(), "nothing was made");
}

#[test]
fn the_local_plugin_itself_passes_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    let library = crate::common::provider_dir().join("libsandbox_provider_local.so");
    let ran = run(tool(folder.path(), &["plugin", "verify", library.to_str().unwrap(), "-o", "json"]));
    let verified = json(&ran);
    assert_eq!((&verified["conformant"], &verified["report"]["conformant"]), (&true.into(), &true.into()), "{ran:?}");
    assert!(verified["load"].as_array().is_some_and(|steps| steps.len() > 15), "{ran:?}");
    let ran = run(tool(folder.path(), &["plugin", "install", library.to_str().unwrap()]));
    assert_eq!(ran.code, 1, "a built-in name is refused: {ran:?}");
    assert!(ran.stderr.contains("name of a built-in provider"), "{ran:?}");
}

#[test]
fn a_crate_is_never_written_over_something_and_nothing_half_made_stays() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("full")).unwrap();
    fs::write(folder.path().join("full/mine"), "mine").unwrap();
    for args in [
        &["plugin", "new", "acme", "--path", "full"][..],
        &["plugin", "new", "acme", "--path", "full/mine"],
        &["plugin", "new", "Acme"],
        &["plugin", "new", "local"],
        &["plugin", "new", "acme", "--sandbox-path", "/no/such/checkout"],
    ] {
        let ran = run(tool(folder.path(), args));
        assert_eq!(ran.code, 2, "{args:?}: {ran:?}");
    }
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["full"], "{names:?}");
    assert_eq!(fs::read_to_string(folder.path().join("full/mine")).unwrap(), "mine");
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert_eq!(run(tool(folder.path(), &["plugin", "new", "acme", "--path", "empty"])).code, 0);
    assert!(folder.path().join("empty/src/lib.rs").is_file());
}
