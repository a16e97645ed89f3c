//! How an agent lives and ends, what it forwards, and what it keeps to itself.

use std::os::unix::net::UnixStream as StdStream;

use sandbox_agent::{LaunchConfig, Launched, Launcher, Workdir};

use crate::support::{Agent, As, client, default_config, eventually, run, seconds, sh, within};
use sandbox_core::{ErrorKind, ExecRequest, PortEvent, PortStream, SandboxMetrics, Secret};
use sandbox_protocol::{
    Client, ClientOptions, CloseCause,
    methods::{self, AgentInfo, FilePath, Nothing, PortOpen, TtlRenew, TtlRenewed},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UnixListener, UnixStream},
};

async fn echo(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        stream.write_all(&buffer[..count]).await.unwrap();
    }
    stream.write_all(b"bye").await.unwrap();
}

async fn talk(mut stream: PortStream) {
    let data: Vec<u8> = (0..1_000_000u32).map(|index| (index % 251) as u8).collect();
    let control = stream.control();
    let sent = data.clone();
    let sending = async {
        control.write(sent.into()).await.unwrap();
        control.control(sandbox_core::ControlRequest::CloseInput).await.unwrap();
    };
    let receiving = async {
        let mut back = Vec::new();
        while let Some(event) = stream.next().await.unwrap() {
            match event {
                PortEvent::Data(bytes) => back.extend_from_slice(&bytes),
                PortEvent::End => break,
                other => panic!("{other:?}"),
            }
        }
        back
    };
    let ((), back) = within(seconds(20), async { tokio::join!(sending, receiving) }).await;
    assert!(back == [data.as_slice(), b"bye"].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_and_sockets_inside_are_reached_in_both_directions() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { echo(listener.accept().await.unwrap().0).await });
    talk(client.open(methods::PORT_OPEN, &PortOpen { port, host: None }).await.unwrap()).await;
    let path = agent.folder().join("echo.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move { echo(listener.accept().await.unwrap().0).await });
    talk(client.open(methods::UNIX_OPEN, &FilePath { path: path.to_str().unwrap().into() }).await.unwrap()).await;
    let error = client.open::<PortEvent>(methods::PORT_OPEN, &PortOpen { port, host: None }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn the_ttl_ends_everything_and_can_be_moved() {
    let mut agent = Agent::start(json!({ "ttl_s": 0.4 }));
    let begin = std::time::Instant::now();
    let client = agent.connect().await;
    let renewed: TtlRenewed = client.call(methods::TTL_RENEW, &TtlRenew { ttl_s: 1.0 }).await.unwrap();
    let info: AgentInfo = client.call(methods::INFO, &Nothing {}).await.unwrap();
    assert_eq!(info.expires_at_ms, Some(renewed.expires_at_ms));
    let error =
        client.exec(ExecRequest::shell("sleep 300")).await.unwrap().collect(Default::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(agent.ended().await.success());
    let lived = begin.elapsed();
    assert!(lived > seconds(1) && lived < seconds(8), "{lived:?}");
}

#[tokio::test]
async fn sigterm_ends_the_commands_and_the_agent() {
    let mut agent = Agent::start(default_config());
    let client = agent.connect().await;
    let stream = client.exec(ExecRequest::shell("sleep 300")).await.unwrap();
    let pid = rustix::process::Pid::from_child(&agent.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(stream.collect(Default::default()).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(agent.ended().await.success());
}

#[tokio::test]
async fn an_agent_that_dies_with_its_clients_waits_the_grace_and_no_longer() {
    let mut agent = Agent::start(json!({ "die_on_disconnect": true, "disconnect_grace_s": 0.3 }));
    let first = agent.connect().await;
    first.close().await;
    let second = agent.connect().await;
    // Longer than the grace: a client that came back keeps it alive.
    assert_eq!(sh(&second, "sleep 0.6; echo alive").await, "alive\n");
    second.close().await;
    assert!(agent.ended().await.success());
    let (ours, theirs) = StdStream::pair().unwrap();
    let config = json!({ "die_on_disconnect": true, "disconnect_grace_s": 60 });
    let mut child = crate::support::spawn(As::Process, &config, theirs.into());
    ours.set_nonblocking(true).unwrap();
    let only = client(UnixStream::from_std(ours).unwrap()).await;
    assert_eq!(sh(&only, "echo one").await, "one\n");
    only.close().await;
    drop(only);
    eventually("nobody can come back, so it ends at once", async || child.try_wait().unwrap().is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_pid_one_it_reaps_three_hundred_orphans_and_serves_on() {
    let agent = Agent::start_as(As::Init, json!({}));
    let client = std::sync::Arc::new(agent.connect().await);
    let info: AgentInfo = client.call(methods::INFO, &Nothing {}).await.unwrap();
    assert_eq!(info.pid, 1);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let client = client.clone();
        tasks.spawn(async move {
            for _ in 0..10 {
                let text = sh(&client, "(setsid sh -c 'sleep 0.02 & sleep 0.01' &) ; (true &) ; echo ok").await;
                assert_eq!(text, "ok\n");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    // Orphans of a supervisor that is killed, and of the nursery, come to PID 1 itself.
    sh(&client, "setsid sleep 0.3 & sleep 0.1").await;
    let states = "for f in /proc/[0-9]*/stat; do cat $f 2>/dev/null; done | sed 's/.*) //' | cut -c1 | sort | uniq -c";
    // The agent, what starts its commands, and at most four supervisors that wait for the next one.
    eventually("no zombie is left, and nobody but those", async || {
        let text = sh(&client, states).await;
        let metrics: SandboxMetrics = client.call(methods::METRICS, &Nothing {}).await.unwrap();
        !text.contains('Z') && metrics.processes.unwrap() <= 6
    })
    .await;
    assert_eq!(sh(&client, "exit 0; echo").await, "");
    let result = run(&client, ExecRequest::shell("exit 9")).await;
    assert_eq!(result.return_code(), 9, "exit codes are not stolen");
}

#[tokio::test]
async fn commands_reach_nothing_of_the_agent_and_a_wrong_token_learns_nothing() {
    let agent = Agent::start_as(As::Init, json!({ "user": "nobody" }));
    let client = agent.connect().await;
    for file in ["environ", "mem", "fd", "maps"] {
        let result = run(&client, ExecRequest::shell(format!("cat /proc/1/{file} || ls /proc/1/{file}/"))).await;
        assert_ne!(result.return_code(), 0, "{file}");
    }
    let as_root = run(&client, ExecRequest::shell("tr '\\0' '\\n' < /proc/1/environ").with_user("root")).await;
    let text = String::from_utf8_lossy(&as_root.stdout).into_owned();
    assert!(!text.contains(crate::support::TOKEN), "not even root finds the token");
    let score = sh(&client, "cat /proc/self/oom_score_adj").await;
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(score.trim(), own.trim(), "commands are not favoured");
    let (_, stream) = agent.connect_cuttable().await;
    drop(stream);
    let stream = UnixStream::connect(agent.folder().join("agent.sock")).await.unwrap();
    let options = ClientOptions::default().with_token(Secret::new("wrong"));
    let error = Client::connect(stream, options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
    let _ = CloseCause::Local;
}

#[tokio::test]
async fn restrictions_hold_for_every_command() {
    // A program of one instruction that lets everything through, and one that lets nothing.
    let config = json!({ "commands": {
        "no_new_privs": true, "capabilities": [0], "seccomp": "060000000000ff7f", "rlimits": [[7, 99, 99]],
    } });
    let agent = Agent::start(config);
    let client = agent.connect().await;
    let status = sh(&client, "cat /proc/self/status; ulimit -n").await;
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("").trim().to_owned();
    assert_eq!(value("NoNewPrivs:"), "1");
    assert_eq!(value("Seccomp:"), "2");
    assert_eq!(value("CapBnd:"), "0000000000000001");
    assert_eq!(value("CapEff:"), "0000000000000001");
    assert!(status.ends_with("99\n"));
    let broken = Agent::start(json!({ "commands": { "no_new_privs": true, "seccomp": "ffff000000000000" } }));
    let client = broken.connect().await;
    let result = run(&client, ExecRequest::shell("true")).await;
    assert_eq!(result.return_code(), 125, "nothing starts without a restriction that was asked for");
}

/// PID 1 of a launch, made ahead of its configuration or after it.
async fn launched(is_ahead: bool) -> (Launched, Client, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let serve = serde_json::from_value(json!({ "env": { "A": "b" } })).unwrap();
    let config = LaunchConfig {
        workdir: Some(Workdir { source: folder.path().to_owned(), target: "/work".into(), chown: true }),
        die_with_parent: Some(std::process::id()),
        serve: Some(serve),
        ..LaunchConfig::default()
    };
    let (ours, theirs) = StdStream::pair().unwrap();
    let launcher = Launcher::new(crate::support::program());
    let prepared = match is_ahead {
        true => launcher.prepare_ahead(&config.basis(), theirs.into()),
        false => launcher.prepare(theirs.into()),
    };
    let launched = prepared.and_then(|prepared| prepared.launch(&config)).unwrap();
    ours.set_nonblocking(true).unwrap();
    let client = Client::connect(UnixStream::from_std(ours).unwrap(), ClientOptions::default()).await.unwrap();
    (launched, client, folder)
}

#[tokio::test]
async fn as_pid_one_of_a_launch_it_restricts_commands_and_still_does_everything() {
    as_pid_one(false).await;
}

#[tokio::test]
async fn made_ahead_it_restricts_commands_as_well() {
    as_pid_one(true).await;
}

async fn as_pid_one(is_ahead: bool) {
    let (mut launched, client, _folder) = launched(is_ahead).await;
    let status = sh(&client, "pwd; id -un; echo $A; cat /proc/self/status").await;
    assert!(status.starts_with("/work\nsandbox\nb\n"), "{status}");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "Seccomp_filters:\t1", "CapBnd:\t0000000000000000"] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    let own = std::fs::read_to_string(format!("/proc/{}/status", launched.report().pid)).unwrap();
    assert!(own.contains("Seccomp_filters:\t1"), "the agent is deprived of them itself: {own}");
    let result = run(&client, ExecRequest::shell("unshare -U true || mount -t tmpfs x /mnt").with_user("root")).await;
    assert_ne!(result.return_code(), 0);
    let result = run(&client, ExecRequest::shell("setsid sleep 300 & sleep 300").with_timeout_s(0.2)).await;
    assert_eq!(result.error_type(), Some("timeout"));
    let spec = sandbox_core::SandboxPtySpec { command: Some("stty size".into()), ..Default::default() };
    let request = methods::PtyCreate { session_id: String::new(), spec };
    let mut terminal = client.open::<sandbox_core::PtyEvent>(methods::PTY_CREATE, &request).await.unwrap();
    let mut output = Vec::new();
    while let Some(event) = within(seconds(10), terminal.next()).await.unwrap() {
        if let sandbox_core::PtyEvent::Output(bytes) = event {
            output.extend_from_slice(&bytes);
        }
    }
    assert_eq!(output, b"24 80\r\n");
    let request = methods::FileWrite { path: "/tmp/.serve-life-test".into(), options: Default::default() };
    let body = sandbox_protocol::Body::from_bytes("x");
    let _: methods::BytesMoved = client.call_with_body(methods::FILE_WRITE, &request, body).await.unwrap();
    let request = methods::FileRemove { path: "/tmp/.serve-life-test".into(), recursive: false };
    let _: Nothing = client.call(methods::FILE_REMOVE, &request).await.unwrap();
    client.close().await;
    drop(client);
    assert_eq!(launched.wait().unwrap(), Some(0), "it ends with its client");
}

/// The first command has a supervisor without a nursery, the others have one with.
#[tokio::test]
async fn what_a_killed_supervisor_leaves_is_ended_and_what_others_run_is_not() {
    let (mut launched, client, _folder) = launched(true).await;
    let root = |script: &str| ExecRequest::shell(script).with_user("root");
    let sleeping = async || {
        let count = root("cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep; true");
        String::from_utf8(run(&client, count).await.stdout.to_vec()).unwrap()
    };
    let mut other = None;
    for round in 0..3 {
        let script = "setsid sleep 300 & (sleep 300 & sleep 300) & sleep 0.2; kill -9 $PPID; sleep 300";
        let stream = client.exec(root(script)).await.unwrap();
        // How it ended nobody can know.
        let _ = within(seconds(10), stream.collect(Default::default())).await;
        let left = format!("{}\n", usize::from(other.is_some()));
        eventually("what it left is ended", async || sleeping().await == left).await;
        if round == 0 {
            other = Some(client.exec(root("exec sleep 300")).await.unwrap());
            eventually("another one runs", async || sleeping().await == "1\n").await;
        }
    }
    drop(other);
    client.close().await;
    drop(client);
    assert_eq!(launched.wait().unwrap(), Some(0));
}

#[tokio::test]
async fn it_serves_on_standard_input_and_output() {
    let mut command = tokio::process::Command::new(crate::support::program());
    command.args(["serve", "--stdio", "--config", r#"{"die_on_disconnect":true}"#]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (read, write) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let client = Client::connect_halves(read, write, ClientOptions::default()).await.unwrap();
    assert_eq!(sh(&client, "echo hi; cat").await, "hi\n");
    client.close().await;
    drop(client);
    assert!(within(seconds(20), child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn a_socket_of_its_own_is_for_its_user_and_the_token_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let mut command = std::process::Command::new(crate::support::program());
    let mut child =
        command.args(["serve", "--token-env", "T", "--listen-unix"]).arg(&path).env("T", "secret").spawn().unwrap();
    eventually("it listens", async || path.exists()).await;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let options = ClientOptions::default().with_token(Secret::new("secret"));
    let client = Client::connect(UnixStream::connect(&path).await.unwrap(), options).await.unwrap();
    assert_eq!(sh(&client, "echo ${T-none}; tr '\\0' '\\n' < /proc/$PPID/environ | grep secret; true").await, "none\n");
    let _: Nothing = client.call(methods::SHUTDOWN, &methods::Shutdown { grace_s: 0.0 }).await.unwrap();
    eventually("it ends", async || child.try_wait().unwrap().is_some()).await;
}
