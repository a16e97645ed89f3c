//! Fields of a spec, and settings.

use std::time::{Duration, Instant};

use sandbox_core::{
    ErrorKind, ExecOutcome, ExecRequest, Metrics, PauseResume, Renew, SandboxProvider, SandboxSpec, SandboxStatus,
    StartFailure, serde_json::json,
};

use crate::{
    agent,
    support::{cgroups, isolated, socket},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_agent_is_told_before_anything_is_made() {
    let local = isolated(json!({ "agent_path": "/no/such/agent" }));
    let error = local.provider.create(SandboxSpec::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("agent_path")));
    assert!(error.message().contains("/no/such/agent"), "{error}");
    assert!(local.remains().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_that_fails_leaves_nothing() {
    for (agent, kind) in [("/bin/true", ErrorKind::Create), ("/etc/hostname", ErrorKind::Create)] {
        let local = isolated(json!({ "agent_path": agent }));
        let error = local.provider.create(SandboxSpec::default()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{agent}: {error}");
        assert!(local.remains().is_empty());
    }
    let local = isolated(json!({ "binds": [{ "source": "/no/such/folder", "target": "/x" }] }));
    let error = local.provider.create(SandboxSpec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.message().contains("/no/such/folder"), "{error}");
    assert!(local.remains().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_one_of_the_sandbox_and_owns_its_working_folder() {
    let local = isolated(json!({}));
    let script = "id -u; id -g; touch here; echo $HOME $USER; pwd";
    let handle = local.create().await;
    assert_eq!(local.text(&handle, script).await, "1000\n1000\n/home/sandbox sandbox\n/workspace");
    let root = local.create_with(SandboxSpec::default().with_user("root").with_workdir("/srv/work/")).await;
    assert_eq!(local.text(&root, script).await, "0\n0\n/root root\n/srv/work");
    let other = local.create_with(SandboxSpec::default().with_user("nobody:sandbox")).await;
    assert!(local.text(&other, script).await.starts_with("65534\n1000\n"));
    for user in ["no-such-user", "70000"] {
        let error = local.provider.create(SandboxSpec::default().with_user(user)).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("user")), "{error}");
    }
    let unknown = local.run(&handle, ExecRequest::argv(["id"]).with_user("no-such-user")).await;
    assert!(matches!(unknown.outcome(), ExecOutcome::StartFailed { reason: StartFailure::UnknownUser, .. }));
    // What failed has left nothing.
    assert_eq!(local.remains().len(), 6);
}

/// Runs as another program, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn users_as_nobody() {
    if !agent::is_nobody() {
        return;
    }
    let local = isolated(json!({}));
    let handle = local.create_with(SandboxSpec::default().with_user("root")).await;
    assert_eq!(local.text(&handle, "id -u; touch here; stat -c %u here").await, "0\n0");
    for own in ["root", "0:0", "sandbox"] {
        let result = local.run(&handle, ExecRequest::argv(["id", "-u"]).with_user(own)).await;
        assert_eq!(result.stdout_text(), "0\n", "{own}");
    }
    let other = local.run(&handle, ExecRequest::argv(["id"]).with_user("12345")).await;
    assert!(matches!(other.outcome(), ExecOutcome::StartFailed { reason: StartFailure::UserRefused, .. }), "{other:?}");
    let error = local.provider.create(SandboxSpec::default().with_user("12345")).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("user")));
    // A limit that cannot be kept is refused by its name, with the reason.
    let mut spec = SandboxSpec::default();
    spec.resources.memory_mib = Some(64);
    match local.provider.create(spec).await {
        Err(error) => {
            assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("resources.memory_mib")));
            assert!(error.message().contains("cgroup"), "{error}");
        }
        // Where this user may write cgroups it is kept.
        Ok(handle) => assert!(!cgroups(&handle.sandbox_id).is_empty()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_privileges_is_the_only_one_inside() {
    agent::as_nobody("specs::users_as_nobody");
}

/// Runs as another program, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn without_namespaces() {
    if !agent::is_nobody() {
        return;
    }
    let local = isolated(json!({}));
    let error = local.provider.create(SandboxSpec::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("isolation")), "{error}");
    let help = error.help().unwrap();
    assert!(help.contains("sysctl user.max_user_namespaces"), "{help}");
    assert!(help.contains("isolation = \"none\""), "{help}");
    assert!(local.remains().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_namespaces_are_allowed_the_setting_and_the_way_out_are_named() {
    // The limit of a namespace of its own, which its root may set.
    let forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    agent::as_nobody_by(&["unshare", "--user", "--map-root-user", "sh", "-c", forbid], "specs::without_namespaces");
}

#[tokio::test(flavor = "multi_thread")]
async fn binds_of_the_settings_are_seen_and_the_read_only_ones_stay_as_they_are() {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().unwrap();
    let (fixed, open) = (temp.path().join("fixed"), temp.path().join("open"));
    for folder in [&fixed, &open] {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("f"), "x").unwrap();
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let local = isolated(json!({ "binds": [
        { "source": fixed, "target": "/fixed" },
        { "source": open, "target": "/open", "read_only": false },
    ]}));
    let handle = local.create().await;
    assert_eq!(
        local.text(&handle, "cat /fixed/f /open/f; touch /open/new; touch /fixed/new 2>/dev/null || echo no").await,
        "xxno"
    );
    assert!(open.join("new").exists() && !fixed.join("new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rootfs_is_written_to_apart() {
    // A whole system that is small: the shell and what it needs, by way of this machine's own.
    let temp = tempfile::tempdir().unwrap();
    let lower = temp.path().canonicalize().unwrap().join("system");
    for folder in ["bin", "etc", "tmp"] {
        std::fs::create_dir_all(lower.join(folder)).unwrap();
    }
    // The agent of a test is not static.
    let script = "programs='/bin/sh /bin/cat /usr/bin/id'; \
                  libraries=$(ldd $programs $1 | grep -o '/[^ )]*' | grep -v : | sort -u); \
                  cp -L --parents $programs $libraries \"$0\"";
    let mut copy = std::process::Command::new("sh");
    let copied = copy.args(["-c", script]).arg(&lower).arg(agent::agent()).status().unwrap();
    assert!(copied.success());
    std::fs::write(lower.join("etc/mark"), "lower").unwrap();
    let local = isolated(json!({}));
    let spec = SandboxSpec::image(format!("rootfs:{}", lower.display()));
    let handle = local.create_with(spec).await;
    let said = local
        .text(&handle, "cat /etc/mark; echo; echo new > /etc/mark; cat /etc/mark; /usr/bin/id -u; pwd; echo x > f")
        .await;
    assert_eq!(said, "lower\nnew\n0\n/workspace");
    assert_eq!(std::fs::read_to_string(lower.join("etc/mark")).unwrap(), "lower");
    local.provider.close(&handle).await.unwrap();
    assert!(local.remains().is_empty());
    for image in ["debian:12", "rootfs:relative", "tar:x.tar"] {
        let error = local.provider.create(SandboxSpec::image(image)).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("image")), "{image}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_kept_where_cgroups_can_be_written() {
    let local = isolated(json!({}));
    let mut spec = SandboxSpec::default();
    spec.resources.memory_mib = Some(64);
    spec.resources.pids = Some(40);
    spec.resources.cpu = Some(1.0);
    let handle = local.create_with(spec).await;
    assert!(!cgroups(&handle.sandbox_id).is_empty());
    let before = local.provider.metrics(&handle).await.unwrap().disk_bytes.unwrap();
    local.text(&handle, "head -c 3000000 /dev/zero > written").await;
    let hungry = local.run(&handle, ExecRequest::shell("head -c 200000000 /dev/zero | tail -n 1 | wc -c")).await;
    assert_ne!(hungry.stdout_text().trim(), "200000000", "{hungry:?}");
    let many = "i=0; while [ $i -lt 100 ]; do sleep 20 & i=$((i+1)); done; echo made";
    let forks = local.run(&handle, ExecRequest::argv(["timeout", "-s", "KILL", "2", "sh", "-c", many])).await;
    assert!(!forks.stdout_text().contains("made"), "{forks:?}");
    let used = local.provider.metrics(&handle).await.unwrap();
    assert!(used.memory_bytes > Some(0) && used.cpu_time_s > Some(0.0) && used.processes > Some(0), "{used:?}");
    assert!(used.disk_bytes >= Some(before + 3_000_000), "{used:?} after {before}");
    local.provider.close(&handle).await.unwrap();
    assert_eq!(cgroups(&handle.sandbox_id), Vec::<std::path::PathBuf>::new());
}

/// Allocates and touches 256 MiB.
const HUNGRY: &str =
    "import mmap; m = mmap.mmap(-1, 256 << 20); [m.__setitem__(i, 1) for i in range(0, 256 << 20, 4096)]";

#[tokio::test(flavor = "multi_thread")]
async fn a28_a_command_that_the_memory_limit_has_killed_says_so_and_no_other_one_does() {
    let local = isolated(json!({}));
    let mut spec = SandboxSpec::default();
    spec.resources.memory_mib = Some(64);
    let handle = local.create_with(spec).await;
    let run = async |request| {
        let result = local.run(&handle, request).await;
        (result.exit.outcome, result.exit.oom)
    };
    let hungry = || ExecRequest::argv(["python3", "-c", HUNGRY]);
    assert_eq!(run(hungry()).await, (ExecOutcome::Signalled(9), Some(true)));
    let below = ExecRequest::shell(format!("python3 -c '{HUNGRY}'; exit $?"));
    assert_eq!(run(below).await, (ExecOutcome::Exited(137), Some(true)));
    assert_eq!(run(ExecRequest::shell("kill -9 $$")).await, (ExecOutcome::Signalled(9), Some(false)));
    assert_eq!(run(ExecRequest::shell("exit 137")).await, (ExecOutcome::Exited(137), Some(false)));
    assert_eq!(run(ExecRequest::shell("echo usable")).await, (ExecOutcome::Exited(0), Some(false)));
    // Killed by somebody while another one runs out of memory: one kill is told once.
    let (one, other) = tokio::join!(run(hungry()), run(hungry()));
    assert_eq!((one.0, other.0), (ExecOutcome::Signalled(9), ExecOutcome::Signalled(9)));
    assert!(one.1 == Some(true) && other.1 == Some(true));
    // Input, control and the end of the stream are as ever.
    let cat = local.run(&handle, ExecRequest::argv(["cat"]).with_stdin_bytes("in")).await;
    assert_eq!((cat.stdout_text().as_ref(), cat.exit.oom), ("in", Some(false)));
    let stream = local.provider.exec(&handle, ExecRequest::argv(["sleep", "60"])).await.unwrap();
    stream.signal(15).await.unwrap();
    let ended = stream.collect(Default::default()).await.unwrap();
    assert_eq!((ended.outcome(), ended.exit.oom), (&ExecOutcome::Signalled(15), Some(false)));
    // Without a limit nothing is known.
    let unlimited = local.create().await;
    assert_eq!(local.run(&unlimited, ExecRequest::shell("kill -9 $$")).await.exit.oom, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sandbox_refuses_work_goes_on_and_can_be_closed() {
    let local = isolated(json!({}));
    let handle = local.create_with(SandboxSpec::default().with_ttl_s(600.0)).await;
    let provider = &local.provider;
    provider.pause(&handle).await.unwrap();
    assert_eq!(provider.status(&handle).await.unwrap(), SandboxStatus::Paused);
    let begin = Instant::now();
    let refused = provider.exec(&handle, ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidState);
    assert_eq!(provider.pause(&handle).await.unwrap_err().kind(), ErrorKind::InvalidState);
    provider.renew(&handle, 900.0).await.unwrap();
    let handle = provider.resume(&handle).await.unwrap();
    assert_eq!(local.text(&handle, "echo lives").await, "lives");
    assert_eq!(provider.resume(&handle).await.unwrap_err().kind(), ErrorKind::InvalidState);
    provider.pause(&handle).await.unwrap();
    provider.close(&handle).await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert!(local.remains().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_may_be_longer_than_one_variable() {
    let local = isolated(json!({}));
    let spec = (0..4)
        .fold(SandboxSpec::default(), |spec, number| spec.with_env(format!("LONG_{number}"), "x".repeat(100_000)));
    let handle = local.create_with(spec).await;
    assert_eq!(local.text(&handle, "echo ${#LONG_0} ${#LONG_3}").await, "100000 100000");
    local.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_socket_is_this_users_alone_and_goes_with_the_sandbox() {
    use std::os::unix::fs::PermissionsExt;
    let local = isolated(json!({}));
    let handle = local.create().await;
    let path = socket(&handle.sandbox_id);
    assert!(path.exists());
    let folder = std::fs::metadata(path.parent().unwrap()).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    assert_eq!(local.text(&handle, "ls -A /run").await, "lock");
    let private = std::fs::metadata(local.work(&handle).parent().unwrap()).unwrap();
    assert_eq!(private.permissions().mode() & 0o777, 0o700, "a user of the sandbox may open what is its own");
    local.provider.close(&handle).await.unwrap();
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_agent_ends_is_stopped() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let record = local.temp().join("root/.records").join(format!("{}.json", handle.sandbox_id));
    let record = std::fs::read_to_string(record).unwrap();
    let record: sandbox_core::serde_json::Value =
        sandbox_core::serde_json::from_str(record.lines().last().unwrap()).unwrap();
    let pid = record["inside"]["pid"].as_u64().unwrap();
    let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(killed.success());
    let end = Instant::now() + Duration::from_secs(10);
    while local.provider.status(&handle).await.unwrap() != SandboxStatus::Stopped {
        assert!(Instant::now() < end);
        tokio::task::yield_now().await;
    }
    let refused = local.provider.exec(&handle, ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    local.provider.close(&handle).await.unwrap();
    assert!(local.remains().is_empty());
}
