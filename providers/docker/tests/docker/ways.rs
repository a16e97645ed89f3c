//! The ways into a sandbox: by a socket, through the engine, in an image that holds nothing.

use sandbox_core::{
    Connect, ExecOutcome, ExecRequest, FileKind, Files, ReadRange, Renew, SandboxProvider, SandboxSpec, SandboxStatus,
    StartFailure, serde_json::json,
};

use crate::{
    engine,
    support::{by_hand, docker, eventually, run, spec},
};

/// Commands, files, another process and a read-only root, by one way.
async fn works(settings: sandbox_core::serde_json::Value) {
    let docker = docker(settings);
    let handle = docker.create(spec().with_workdir("/work").with_env("SECRET", "canary").with_user("user")).await;
    assert_eq!(docker.text(&handle, "id -un; pwd; echo $SECRET").await, "user\n/work\ncanary");
    docker.put(&handle, "file", b"\xff\x00bytes").await;
    assert_eq!(docker.text(&handle, "stat -c %U file").await, "user");
    assert_eq!(docker.get(&handle, "file").await, b"\xff\x00bytes");
    let other = docker.another();
    let descriptor = docker.provider.serialize_handle(&handle, None).await.unwrap();
    let found = other.connect(descriptor).await.unwrap();
    assert_eq!(run(&other, &found, ExecRequest::argv(["cat", "file"])).await.stdout, b"\xff\x00bytes");
    other.aclose().await.unwrap();
    assert_eq!(docker.text(&handle, "echo still").await, "still");
    // Neither the environment nor the token is where others look.
    let inspected = by_hand(["inspect", "--format", "{{.Config.Env}} {{.Config.Cmd}}", &handle.sandbox_id]);
    assert!(!inspected.contains("canary"), "{inspected}");
    let seen = docker.run(&handle, ExecRequest::shell("ls /.sandbox; cat /proc/1/environ").with_user("0")).await;
    assert!(!seen.stdout_text().contains("token"), "{}", seen.stdout_text());
    docker.provider.close(&handle).await.unwrap();
    docker.ensure_no_folders();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_in_a_shared_folder_works() {
    works(json!({ "transport": "socket", "agent": "required" })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_through_the_engine_works() {
    works(json!({ "transport": "relay", "agent": "required" })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b01_a_read_only_root_takes_files_where_a_volume_is() {
    for transport in ["socket", "relay"] {
        let docker = docker(json!({ "transport": transport, "agent": "required", "read_only": true }));
        let mut spec = spec().with_workdir("/work/deep");
        let volume = json!({ "source": { "tmpfs": 8 }, "target": "/data" });
        spec.volumes = vec![sandbox_core::from_json(volume, "volume").unwrap()];
        let handle = docker.create(spec).await;
        docker.put(&handle, "/data/file", b"x").await;
        assert_eq!(
            docker.text(&handle, "pwd; cat /data/file; touch /no 2>/dev/null || echo refused").await,
            "/work/deep\nxrefused"
        );
        assert_eq!(docker.get(&handle, "/data/file").await, b"x");
        docker.provider.close(&handle).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a22_an_image_with_one_static_program_works_without_a_shell() {
    let docker = docker(json!({ "agent": "required" }));
    let handle = docker.create(SandboxSpec::image(engine::STATIC).with_workdir("/work")).await;
    let result = docker.run(&handle, ExecRequest::argv(["/bin/busybox", "echo", "hi"])).await;
    assert_eq!((result.stdout_text().as_ref(), result.outcome()), ("hi\n", &ExecOutcome::Exited(0)));
    let result = docker.run(&handle, ExecRequest::argv(["busybox", "sh", "-c", "exit 7"])).await;
    assert_eq!(*result.outcome(), ExecOutcome::Exited(7));
    let result = docker.run(&handle, ExecRequest::shell("echo hi")).await;
    let ExecOutcome::StartFailed { reason: StartFailure::NoShell, .. } = result.outcome() else {
        panic!("{:?}", result.outcome());
    };
    docker.put(&handle, "a/b", b"data").await;
    assert_eq!(docker.get(&handle, "/work/a/b").await, b"data");
    let names = docker.provider.list_dir(&handle, "/work".into()).await.unwrap();
    assert_eq!((names.len(), names[0].stat.kind), (1, FileKind::Directory));
    assert_eq!(docker.provider.read_file(&handle, "a/b".into(), ReadRange::default()).await.unwrap(), "data");
    docker.provider.close(&handle).await.unwrap();
    assert_eq!(docker.provider.status(&handle).await.unwrap(), SandboxStatus::Stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn a22_debian_has_bash_and_python() {
    let docker = docker(json!({}));
    let handle = docker.create(SandboxSpec::image(engine::DEBIAN)).await;
    assert_eq!(docker.text(&handle, "echo ${BASH_VERSION:+bash}").await, "bash");
    assert_eq!(docker.run(&handle, ExecRequest::argv(["python3", "-c", "print(6*7)"])).await.stdout_text(), "42\n");
    docker.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c01_the_ttl_ends_a_sandbox_without_a_client_and_can_be_moved() {
    let docker = docker(json!({}));
    let moved = docker.create(spec().with_ttl_s(6.0)).await;
    docker.provider.renew(&moved, 600.0).await.unwrap();
    let short = docker.create(spec().with_ttl_s(1.0)).await;
    docker.provider.aclose().await.unwrap();
    let other = docker.another();
    eventually("it has not expired", async || other.status(&short).await.unwrap() == SandboxStatus::Stopped).await;
    // It is not removed by itself: what it died of can be read.
    let error = other.exec(&short, ExecRequest::shell("true")).await.err().unwrap();
    assert!(error.to_string().contains("ttl"), "{error}");
    assert_eq!(run(&other, &moved, ExecRequest::argv(["echo", "on"])).await.stdout_text(), "on\n");
    for handle in [&short, &moved] {
        other.close(handle).await.unwrap();
    }
    docker.ensure_no_folders();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_root_inside_puts_in_the_agents_place_gets_no_token() {
    let docker = docker(json!({ "transport": "socket" }));
    let handle = docker.create(spec()).await;
    let script = "rm /.sandbox/agent.sock && (nc -lk -s 127.0.0.1 -p 1 >/dev/null 2>&1 &) ; \
                  busybox nc -h 2>&1 | head -1 >/dev/null; true";
    docker.text(&handle, script).await;
    // A listener of ours, in the place that a hostile one would take: the agent's number is not its.
    let path = docker.temp.path().join("run").join(&handle.sandbox_id).join("agent.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let other = docker.another();
    let error = other.exec(&handle, ExecRequest::argv(["true"])).await.err().unwrap();
    assert!(error.to_string().contains("not the agent's"), "{error}");
    let (mut stream, _) = listener.accept().unwrap();
    let mut said = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stream, &mut said);
    assert!(said.is_empty(), "{} bytes were said to a stranger", said.len());
    docker.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn capabilities_of_commands_are_those_that_were_asked_for() {
    let docker = docker(json!({ "cap_drop": ["NET_RAW"] }));
    let mut spec = spec();
    spec.security.cap_drop = vec!["ALL".to_owned()];
    spec.security.cap_add = vec!["SYS_PTRACE".to_owned()];
    let handle = docker.create(spec.clone().with_user("user")).await;
    let status = "grep -E '^Cap(Eff|Bnd)' /proc/self/status";
    assert_eq!(docker.text(&handle, status).await, "CapEff:\t0000000000000000\nCapBnd:\t0000000000080000");
    docker.provider.close(&handle).await.unwrap();
    spec.security.cap_add = vec!["NET_RAW".to_owned()];
    let error = docker.provider.create(spec).await.unwrap_err();
    assert_eq!(error.field(), Some("security.cap_add"), "{error}");
}
