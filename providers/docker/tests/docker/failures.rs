//! What goes wrong has a kind, says why, and leaves nothing.

use std::time::Duration;

use sandbox_core::{
    ErrorKind, ExecRequest, PauseResume, SandboxProvider, SandboxSpec, SandboxStatus, from_json, serde_json::json,
};
use sandbox_provider_docker::DockerProvider;

use crate::{
    proxy::Proxy,
    support::{by_hand, docker, eventually, of_run, spec},
};

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_not_there_is_unavailable_and_states_are_unknown() {
    let settings = json!({ "host": "unix:///no/such/docker.sock" });
    let provider = DockerProvider::new(from_json(settings, "settings").unwrap()).unwrap();
    let error = provider.create(spec()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.help().is_some_and(|help| help.contains("host")), "{error:?}");
    let handle = sandbox_core::SandboxHandle::new("docker-0", "docker");
    assert_eq!(provider.status(&handle).await.unwrap(), SandboxStatus::Unknown);
    let settings = json!({ "host": "tcp://127.0.0.1:1" });
    let provider = DockerProvider::new(from_json(settings, "settings").unwrap()).unwrap();
    assert_eq!(provider.create(spec()).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// One thread is the whole runtime: it alone becomes another user.
#[tokio::test]
async fn an_engine_whose_socket_this_user_may_not_use_is_told_as_such() {
    use rustix::{process::Uid, thread::set_thread_res_uid};
    let docker = docker(json!({}));
    let (keep, nobody) = (None::<Uid>, Uid::from_raw(65_534));
    set_thread_res_uid(keep, nobody, keep).unwrap();
    let (created, status) = (
        docker.provider.create(spec()).await,
        docker.provider.status(&sandbox_core::SandboxHandle::new("docker-0", "docker")).await,
    );
    set_thread_res_uid(keep, Uid::ROOT, keep).unwrap();
    let error = created.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.help().is_some_and(|help| help.contains("group")), "{error:?}");
    assert_eq!(status.unwrap(), SandboxStatus::Unknown);
    docker.ensure_no_folders();
}

#[tokio::test(flavor = "multi_thread")]
async fn a28_a_command_out_of_memory_does_not_take_the_sandbox_with_it() {
    let docker = docker(json!({}));
    let mut spec = spec();
    spec.resources.memory_mib = Some(48);
    let handle = docker.create(spec).await;
    let hungry = "dd if=/dev/zero of=/dev/null bs=200M count=1";
    let result = docker.run(&handle, ExecRequest::argv(["sh", "-c", hungry])).await;
    // The command is what goes; the agent stays.
    assert_eq!((result.return_code(), result.exit.oom), (137, Some(true)), "{:?}", result.exit);
    let by_hand = docker.run(&handle, ExecRequest::shell("kill -9 $$")).await;
    assert_eq!((by_hand.return_code(), by_hand.exit.oom), (137, Some(false)), "{:?}", by_hand.exit);
    assert_eq!(docker.run(&handle, ExecRequest::argv(["true"])).await.exit.oom, Some(false));
    assert_eq!(docker.text(&handle, "echo usable").await, "usable");
    docker.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d9_a_sandbox_that_ran_out_of_memory_says_so() {
    // With our agent the entrypoint takes the sandbox with it; without it the entrypoint is the container.
    for agent in ["required", "off"] {
        let docker = docker(json!({ "agent": agent }));
        let mut spec = spec();
        spec.resources.memory_mib = Some(48);
        let hungry = "while ! test -e /tmp/go; do sleep 0.05; done; exec dd if=/dev/zero of=/dev/null bs=200M count=1";
        spec.entrypoint = Some(["sh", "-c", hungry].map(str::to_owned).to_vec());
        let handle = docker.create(spec).await;
        by_hand(["exec", &handle.sandbox_id, "touch", "/tmp/go"]);
        let gone = async || docker.provider.status(&handle).await.unwrap() == SandboxStatus::Stopped;
        eventually("it still runs", gone).await;
        let error = docker.provider.exec(&handle, ExecRequest::argv(["true"])).await.err().unwrap();
        assert!(error.to_string().contains("ran out of memory"), "{agent}: {error}");
        docker.provider.close(&handle).await.unwrap();
        docker.ensure_no_folders();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a28_a_sandbox_that_runs_out_of_memory_under_a_command_is_why_the_command_ended() {
    for settings in [
        json!({ "agent": "required", "transport": "socket" }),
        json!({ "agent": "required", "transport": "relay" }),
        json!({ "agent": "off" }),
    ] {
        let docker = docker(settings.clone());
        let mut spec = spec();
        spec.resources.memory_mib = Some(48);
        let handle = docker.create(spec).await;
        // The kernel is told to take the first process, and with it everything; none of the others is larger.
        let hungry = "echo 1000 > /proc/1/oom_score_adj && test $(cat /proc/1/oom_score_adj) = 1000 || exit 3; \
                      for i in 1 2 3 4; do dd if=/dev/zero of=/dev/null bs=60M count=1 & done; wait; sleep 5";
        let stream = docker.provider.exec(&handle, ExecRequest::argv(["sh", "-c", hungry])).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.collect(Default::default())).await.unwrap();
        match ended {
            Ok(result) => {
                assert_eq!(settings["agent"], "off", "{:?} {}", result.exit, result.stderr_text());
                assert_eq!((result.return_code(), result.exit.oom), (137, Some(true)), "{:?}", result.exit);
            }
            Err(error) => {
                assert_eq!((error.kind(), error.field()), (ErrorKind::Lost, Some("resources.memory_mib")), "{error:?}");
                assert!(error.message().contains("ran out of memory") && error.help().is_some(), "{error:?}");
            }
        }
        let error = docker.provider.exec(&handle, ExecRequest::argv(["true"])).await.err().unwrap();
        assert!(error.to_string().contains("ran out of memory"), "{settings}: {error}");
        docker.provider.close(&handle).await.unwrap();
        docker.ensure_no_folders();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c04_a_container_removed_behind_our_back_is_told() {
    let docker = docker(json!({}));
    let handle = docker.create(spec()).await;
    let running = docker.provider.exec(&handle, ExecRequest::argv(["sleep", "600"])).await.unwrap();
    by_hand(["rm", "--force", &handle.sandbox_id]);
    let lost = tokio::time::timeout(Duration::from_secs(20), running.collect(Default::default())).await.unwrap();
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(docker.provider.status(&handle).await.unwrap(), SandboxStatus::Stopped);
    let error = docker.provider.exec(&handle, ExecRequest::argv(["true"])).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(error.to_string().contains("removed"), "{error}");
    docker.provider.close(&handle).await.unwrap();
    docker.ensure_no_folders();
}

#[tokio::test(flavor = "multi_thread")]
async fn d9_a_killed_container_is_told_from_an_exit() {
    let docker = docker(json!({}));
    let handle = docker.create(spec()).await;
    by_hand(["kill", &handle.sandbox_id]);
    let gone = async || docker.provider.status(&handle).await.unwrap() == SandboxStatus::Stopped;
    eventually("it still runs", gone).await;
    let error = docker.provider.exec(&handle, ExecRequest::argv(["true"])).await.err().unwrap();
    assert!(error.to_string().contains("killed"), "{error}");
    docker.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c06_a_command_in_a_sandbox_that_somebody_else_paused_is_refused() {
    let docker = docker(json!({}));
    let handle = docker.create(spec()).await;
    assert_eq!(docker.text(&handle, "echo first").await, "first");
    by_hand(["pause", &handle.sandbox_id]);
    let error = docker.provider.exec(&handle, ExecRequest::argv(["true"])).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error:?}");
    let handle = docker.provider.resume(&handle).await.unwrap();
    assert_eq!(docker.text(&handle, "echo again").await, "again");
    docker.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d4_a_creation_that_is_dropped_at_any_moment_leaves_nothing() {
    let docker = docker(json!({}));
    let run_id = format!("dropped-{}", std::process::id());
    for delay_ms in [0, 2, 5, 10, 20, 40, 80, 120, 200, 300, 450, 600] {
        let create = docker.provider.create(of_run(&run_id));
        if let Ok(Ok(handle)) = tokio::time::timeout(Duration::from_millis(delay_ms), create).await {
            docker.provider.close(&handle).await.unwrap();
        }
    }
    let is_clean = async || {
        let folders = std::fs::read_dir(docker.temp.path().join("run")).into_iter().flatten().count();
        docker.count(&run_id).await == 0 && folders == 0
    };
    // What was under way is finished and then taken back.
    tokio::time::sleep(Duration::from_millis(500)).await;
    eventually("something is left of a dropped creation", is_clean).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_creations_name_the_field_and_leave_nothing() {
    let docker = docker(json!({ "bind_roots": ["/srv/shared"] }));
    let run_id = format!("refused-{}", std::process::id());
    type Change = fn(&mut SandboxSpec);
    let cases: [(&str, Change); 8] = [
        ("ports", |spec| {
            spec.ports = vec![80];
            spec.network = Some(sandbox_core::NetworkMode::None);
        }),
        ("metadata", |spec| drop(spec.metadata.insert("sandbox.kind".to_owned(), "x".to_owned()))),
        ("provider_options.hostname", |spec| {
            drop(spec.provider_options.insert("hostname".to_owned(), "a b".into()));
        }),
        ("hostnam", |spec| drop(spec.provider_options.insert("hostnam".to_owned(), "a".into()))),
        ("resources.disk_gib", |spec| spec.resources.disk_gib = Some(1)),
        ("security.privileged", |spec| spec.security.privileged = true),
        ("image", |spec| spec.image = Some("Upper/Case".to_owned())),
        ("volumes", |spec| {
            let volume = json!({ "source": { "bind": "/etc" }, "target": "/x" });
            spec.volumes = vec![from_json(volume, "volume").unwrap()];
        }),
    ];
    for (field, change) in cases {
        let mut spec = of_run(&run_id);
        change(&mut spec);
        let error = docker.provider.create(spec).await.expect_err(field);
        assert_eq!(error.field(), Some(field), "{error:?}");
    }
    let mut late = of_run(&run_id);
    late.ready_timeout_s = Some(0.001);
    assert_eq!(docker.provider.create(late).await.unwrap_err().kind(), ErrorKind::TimedOut);
    let mut broken = of_run(&run_id);
    broken.entrypoint = Some(vec!["/no/such/program".to_owned()]);
    let error = docker.provider.create(broken).await.unwrap_err();
    assert_eq!(error.field(), Some("entrypoint"), "{error:?}");
    assert_eq!(docker.count(&run_id).await, 0);
    docker.ensure_no_folders();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_goes_away_under_load_ends_every_call_and_is_found_again() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("engine.sock");
    let proxy = Proxy::start(&path);
    let settings = json!({
        "host": format!("unix://{}", path.display()),
        "agent_path": crate::engine::agent(),
        "transport": "relay",
        "run_dir": temp.path().join("run"),
        "use_docker_config": false,
    });
    let provider = DockerProvider::new(from_json(settings, "settings").unwrap()).unwrap();
    let provider = std::sync::Arc::new(provider);
    let handle = provider.create(spec()).await.unwrap();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (provider, handle) = (provider.clone(), handle.clone());
        running.spawn(async move {
            let stream = provider.exec(&handle, ExecRequest::argv(["sleep", "600"])).await?;
            stream.collect(Default::default()).await
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.stop().await;
    let ended = tokio::time::timeout(Duration::from_secs(60), running.join_all()).await.expect("a call hangs");
    for end in ended {
        let kind = end.unwrap_err().kind();
        assert!([ErrorKind::Lost, ErrorKind::Unavailable].contains(&kind), "{kind}");
    }
    assert_eq!(provider.status(&handle).await.unwrap(), SandboxStatus::Unknown);
    assert_eq!(provider.create(spec()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(provider.close(&handle).await.is_err());
    let proxy = Proxy::start(&path);
    assert_eq!(provider.status(&handle).await.unwrap(), SandboxStatus::Running);
    let result = crate::support::run(&provider, &handle, ExecRequest::argv(["echo", "back"])).await;
    assert_eq!(result.stdout_text(), "back\n");
    provider.close(&handle).await.unwrap();
    proxy.stop().await;
}

/// Where the child below finds what it needs.
const CHILD: &str = "SANDBOX_TEST_CHILD";

/// Runs as another process, for the test below: makes sandboxes and waits to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_to_be_killed() {
    let Ok(run_dir) = std::env::var(CHILD) else { return };
    let settings = crate::engine::settings(json!({ "run_dir": run_dir }));
    let provider = DockerProvider::new(from_json(settings, "settings").unwrap()).unwrap();
    for _ in 0..SANDBOXES {
        let handle = provider.create(spec().with_metadata("killed", std::process::id().to_string())).await.unwrap();
        println!("made {}", handle.sandbox_id);
    }
    std::future::pending().await
}

const SANDBOXES: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn c01_what_a_killed_client_leaves_is_swept_and_a_live_ones_is_not() {
    use sandbox_core::{ListFilter, ListSweep};
    let docker = docker(json!({}));
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "failures::a_client_that_waits_to_be_killed", "--nocapture"])
        .env(CHILD, docker.temp.path().join("run"))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let label = format!("label=killed={pid}");
    let own = docker.create(spec().with_metadata("killed", pid.as_str())).await;
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let made = tokio::task::spawn_blocking(move || {
        lines.map_while(Result::ok).filter(|line| line.starts_with("made")).take(SANDBOXES).count()
    });
    assert_eq!(made.await.unwrap(), SANDBOXES);
    child.kill().unwrap();
    child.wait().unwrap();
    let filter = ListFilter { metadata: [("killed".to_owned(), pid)].into(), ..ListFilter::default() };
    let would = docker.provider.sweep(filter.clone(), true).await.unwrap();
    assert_eq!((would.removed.len(), would.failed.len()), (SANDBOXES, 0));
    let report = docker.provider.sweep(filter, false).await.unwrap();
    assert_eq!((report.removed.len(), report.failed.len()), (SANDBOXES, 0), "{:?}", report.failed);
    let left = by_hand(["ps", "--all", "--format", "{{.Names}}", "--filter", &label]);
    assert_eq!(left, own.sandbox_id, "more or less than the live one's own is left");
    assert_eq!(docker.text(&own, "echo lives").await, "lives");
    docker.provider.close(&own).await.unwrap();
    docker.ensure_no_folders();
}
