//! The ways out that must be shut, end to end through the provider.

use std::{
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use sandbox_core::{ExecOutcome, ExecRequest, NetworkMode, SandboxSpec, serde_json::json};

use crate::{
    agent,
    support::{Local, eventually, isolated, marker, processes_with},
};

async fn fails(local: &Local, handle: &sandbox_core::SandboxHandle, script: &str) {
    let result = local.run(handle, ExecRequest::shell(script)).await;
    assert!(!matches!(result.outcome(), ExecOutcome::Exited(0)), "{script}: {}", result.stdout_text());
}

/// What holds for root and for everybody else.
async fn nothing_of_this_machine_is_seen_or_changed() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let planted = local.temp().join("planted");
    std::fs::write(&planted, "secret").unwrap();
    std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o666)).unwrap();
    let path = planted.display();
    fails(&local, &handle, &format!("cat {path}")).await;
    fails(&local, &handle, &format!("cat /proc/1/root{path}")).await;
    fails(&local, &handle, &format!("ln -s {path} link && cat link")).await;
    fails(&local, &handle, "cat /etc/shadow").await;
    fails(&local, &handle, "cat /proc/1/environ").await;
    fails(&local, &handle, "readlink /proc/1/fd/3").await;
    fails(&local, &handle, "echo x > /usr/bin/planted").await;
    fails(&local, &handle, "echo x > /proc/sys/kernel/hostname").await;
    fails(&local, &handle, "mount -t tmpfs none /tmp").await;
    fails(&local, &handle, "unshare -U true").await;
    fails(&local, &handle, "mknod /tmp/disk b 8 0").await;
    // What is written inside is nowhere else.
    let name = format!("written-{}", std::process::id());
    local
        .text(&handle, &format!("echo x > /tmp/{name}; mkdir -p {0}; echo x > {0}/made", local.temp().display()))
        .await;
    assert!(!std::path::Path::new("/tmp").join(&name).exists());
    assert!(!local.temp().join("made").exists());
    assert_eq!(std::fs::read_to_string(&planted).unwrap(), "secret");

    // Processes of this machine are neither seen nor reached.
    let seconds = marker();
    let mut outside = Command::new("sleep");
    outside.arg(&seconds).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut outside = outside.spawn().unwrap();
    let seen = local.text(&handle, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await;
    assert!(!seen.contains(&seconds), "{seen}");
    fails(&local, &handle, "kill -9 1; exit 1").await;
    assert!(outside.try_wait().unwrap().is_none());
    outside.kill().unwrap();
    outside.wait().unwrap();
    // And its agent is still there.
    assert_eq!(local.text(&handle, "echo lives").await, "lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_neither_sees_nor_changes_this_machine() {
    nothing_of_this_machine_is_seen_or_changed().await;
}

/// Runs as another program, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn escapes_as_nobody() {
    if agent::is_nobody() {
        nothing_of_this_machine_is_seen_or_changed().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_a_user_without_privileges_neither_sees_nor_changes_this_machine() {
    agent::as_nobody("escapes::escapes_as_nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_user_id_file_that_root_planted_gains_nothing() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let planted = local.work(&handle).join("cat");
    std::fs::copy("/bin/cat", &planted).unwrap();
    std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let ids = local.text(&handle, "./cat /proc/self/status | grep ^Uid: | tr '\\t' ' '").await;
    assert_eq!(ids, "Uid: 1000 1000 1000 1000");
    // Nor one that root inside makes.
    let make = ExecRequest::shell("cp /bin/cat /tmp/cat && chmod 4755 /tmp/cat").with_user("root");
    assert_eq!(*local.run(&handle, make).await.outcome(), ExecOutcome::Exited(0));
    let ids = local.text(&handle, "/tmp/cat /proc/self/status | grep -e ^Uid: -e ^CapEff: | tr '\\t' ' '").await;
    assert_eq!(ids, "Uid: 1000 1000 1000 1000\nCapEff: 0000000000000000");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_network_no_listener_of_this_machine_is_reached_and_with_hosts_it_is() {
    let local = isolated(json!({}));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{}", listener.local_addr().unwrap().port());
    let connect = || ExecRequest::argv(["bash", "-c", &script]);
    let handle = local.create().await;
    assert_ne!(*local.run(&handle, connect()).await.outcome(), ExecOutcome::Exited(0));
    assert_eq!(local.text(&handle, "tail -n +3 /proc/net/dev | grep -cv lo: || true").await, "0");
    let mut spec = SandboxSpec::default();
    spec.network = Some(NetworkMode::Host);
    let open = local.create_with(spec).await;
    assert_eq!(*local.run(&open, connect()).await.outcome(), ExecOutcome::Exited(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_storm_ends_with_its_sandbox() {
    use sandbox_core::SandboxProvider;
    let local = isolated(json!({}));
    let handle = local.create().await;
    let seconds = marker();
    let script = format!("for i in $(seq 50); do setsid nohup sleep {seconds} >/dev/null 2>&1 & done; echo made");
    assert_eq!(local.text(&handle, &script).await, "made");
    eventually("the processes are there", || processes_with(&seconds).len() >= 50).await;
    local.provider.close(&handle).await.unwrap();
    assert!(processes_with(&seconds).is_empty());
}

/// What a command may kill where it is the agent's own user: its own supervisor. The agent goes on.
#[tokio::test(flavor = "multi_thread")]
async fn kills_as_nobody() {
    use sandbox_core::{CaptureLimits, ErrorKind, SandboxProvider};
    if !agent::is_nobody() {
        return;
    }
    let local = isolated(json!({}));
    let handle = local.create().await;
    let stream = local.provider.exec(&handle, ExecRequest::shell("kill -9 -1; exit 1")).await.unwrap();
    let lost = stream.collect(CaptureLimits::default()).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost, "{lost}");
    // One that starts while the killing still goes on may be hit, too, and says so; the next one is not.
    let start = std::time::Instant::now();
    loop {
        let stream = local.provider.exec(&handle, ExecRequest::shell("echo lives")).await;
        let result = match stream {
            Ok(stream) => stream.collect(CaptureLimits::default()).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(result) => break assert_eq!(result.stdout, b"lives\n"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
        }
        assert!(start.elapsed() < std::time::Duration::from_secs(5), "commands are lost long after the killing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_kills_all_it_can_ends_no_other_one_and_not_the_sandbox() {
    agent::as_nobody("escapes::kills_as_nobody");
    let local = isolated(json!({}));
    let handle = local.create().await;
    local.run(&handle, ExecRequest::shell("kill -9 -1; kill -9 1; exit 1")).await;
    assert_eq!(local.text(&handle, "echo lives").await, "lives");
}

/// What uses one thing up: its name, what does it, and how that ends. Forks, memory and the room of folders have tests of
/// their own.
const BOMBS: [(&str, &str, &str); 6] = [
    ("descriptors", "held = [open('/dev/null') for _ in range(r.getrlimit(r.RLIMIT_NOFILE)[0] + 1)]", "refused"),
    ("threads", "[t.Thread(target=t.Event().wait, daemon=True).start() for _ in range(500)]", "refused"),
    ("inodes", "[open(f'/tmp/{i}', 'w').close() for i in range(100000)]", "refused"),
    ("depth", "[(os.mkdir('d'), os.chdir('d')) for _ in range(4000)]", "done"),
    ("files", "os.mkdir('many'); [open(f'many/{i}', 'w').close() for i in range(4000)]", "done"),
    ("signals", "s.signal(10, s.SIG_IGN); [os.kill(os.getpid(), 10) for _ in range(50000)]", "done"),
];

/// A bomb as a program that says how it ended.
fn armed(bomb: &str) -> String {
    let limit = "r.setrlimit(r.RLIMIT_NOFILE, (4096, r.getrlimit(r.RLIMIT_NOFILE)[1]))";
    format!(
        "import os, resource as r, signal as s, threading as t\n{limit}\ntry:\n  {bomb}\n  print('done', flush=True)\n\
         except (OSError, RuntimeError): print('refused', flush=True)\nos._exit(0)"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn bombs_hold_up_neither_a_neighbour_nor_the_end_of_their_sandbox() {
    use sandbox_core::SandboxProvider;
    use std::time::{Duration, Instant};
    let local = isolated(json!({ "sizes": { "tmp_mib": 4 } }));
    let mut spec = SandboxSpec::default();
    spec.resources.pids = Some(64);
    let (bombed, other) = (local.create_with(spec).await, local.create().await);
    let bombs = async {
        for (name, bomb, end) in BOMBS {
            let program = armed(bomb);
            let request = ExecRequest::argv(["python3", "-c", &program]).with_timeout_s(30.0);
            let result = local.run(&bombed, request).await;
            assert_eq!(result.stdout_text().trim(), end, "{name}: {:?} {}", result.exit, result.stderr_text());
        }
        // A long log, of which as much is kept as is asked for.
        let flood = ExecRequest::shell("head -c 134217728 /dev/zero").with_timeout_s(60.0);
        let result = local.run(&bombed, flood).await;
        assert_eq!((result.stdout_bytes, result.stdout_truncated), (128 << 20, true));
    };
    let neighbour = async {
        let mut slowest = Duration::ZERO;
        loop {
            let start = Instant::now();
            assert_eq!(local.text(&other, "echo on").await, "on");
            slowest = slowest.max(start.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
            if slowest > Duration::from_secs(5) {
                break slowest;
            }
        }
    };
    tokio::select! {
        () = bombs => {}
        slowest = neighbour => panic!("a neighbour has waited for {slowest:?}"),
    }
    assert_eq!(local.text(&bombed, "echo usable").await, "usable");
    local.provider.close(&bombed).await.unwrap();
    assert!(!local.work(&bombed).exists());
    local.provider.close(&other).await.unwrap();
}
