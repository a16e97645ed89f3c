//! A host that forbids what isolation needs is named, never worked around.

mod common;

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{AGENT, Bench, Caller};
use sandbox_agent::{LaunchConfig, Launcher, Stage};

/// Launches from within a user namespace of its own, after `prepare`.
fn nested(bench: &Bench, prepare: &str, flags: &str) -> Result<sandbox_agent::Launched, sandbox_agent::LaunchError> {
    let mut command = Command::new("/usr/bin/unshare");
    if bench.caller == Caller::Nobody {
        command.uid(common::NOBODY).gid(common::NOBODY);
    }
    command.args([flags, "/bin/sh", "-c", &format!("{prepare} exec \"$0\" \"$@\""), AGENT]);
    let config = LaunchConfig { init: Some(vec!["/bin/true".into()]), workdir: None, ..bench.config() };
    let (_ours, theirs) = UnixStream::pair().unwrap();
    Launcher::new(AGENT).prepare_as(command, theirs.into()).and_then(|launcher| launcher.launch(&config))
}

#[test]
fn missing_user_namespaces_name_the_sysctl_and_the_way_out() {
    let bench = Bench::new(Caller::Nobody);
    let error = nested(&bench, "echo 0 > /proc/sys/user/max_user_namespaces &&", "-Ur").expect_err("none may be made");
    assert_eq!((error.stage(), error.errno()), (Stage::Namespaces, Some(libc::ENOSPC)), "{error:?}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("user.max_user_namespaces") && hint.contains("isolation = \"none\""), "{hint}");
}

#[test]
fn another_missing_namespace_is_named_too() {
    let bench = Bench::new(Caller::Nobody);
    let error = nested(&bench, "echo 0 > /proc/sys/user/max_net_namespaces &&", "-Ur").expect_err("none may be made");
    assert!(error.hint().unwrap().contains("user.max_net_namespaces"), "{error:?}");
}

#[test]
fn a_nested_launch_works_for_a_user_and_is_refused_where_root_would_be_mapped() {
    let bench = Bench::new(Caller::Nobody);
    let mut launched = nested(&bench, "", "-Ur").expect("the namespace's root is nobody in truth");
    assert_eq!(launched.report().ids.count, 1);
    assert_eq!(launched.wait().unwrap(), Some(0));

    let bench = Bench::new(Caller::Root);
    let error = nested(&bench, "", "-Ur").expect_err("the namespace's root is the host's");
    assert_eq!(error.stage(), Stage::Ids, "{error:?}");
}

#[test]
fn a_host_whose_proc_is_partly_hidden_is_named() {
    let bench = Bench::new(Caller::Nobody);
    let hide = "mount -t tmpfs none /proc/sys && exec /usr/bin/unshare -U --map-user=1000 --map-group=1000 /bin/sh -c 'exec \"$0\" \"$@\"' \"$0\" \"$@\";";
    let error = nested(&bench, hide, "-Urm").expect_err("the kernel allows no new proc then");
    assert_eq!((error.stage(), error.errno()), (Stage::Proc, Some(libc::EPERM)), "{error:?}");
    assert!(error.hint().unwrap().contains("/proc"), "{error:?}");
}

#[test]
fn limits_that_cannot_be_honoured_are_refused_by_name() {
    let bench = Bench::new(Caller::Nobody);
    for (limits, name) in
        [(r#"{"memory_bytes": 67108864}"#, "memory"), (r#"{"pids": 20}"#, "pids"), (r#"{"cpu_millis": 500}"#, "cpu")]
    {
        let cgroup = serde_json::from_str(&format!(r#"{{"name": "canary-refused", "limits": {limits}}}"#)).unwrap();
        let config = LaunchConfig { init: Some(vec!["/bin/true".into()]), cgroup: Some(cgroup), ..bench.config() };
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let error = bench.launch(&config, theirs.into()).expect_err("nobody cannot write cgroups here");
        assert_eq!(error.stage(), Stage::Cgroup);
        assert!(error.to_string().contains(&format!("the {name} limit")), "{error}");
    }
}
