//! Creation, expiry, ownership and the end.

use std::{
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use sandbox_core::{
    CaptureLimits, ErrorKind, ExecEvent, ExecOutcome, ExecRequest, ListFilter, ListSweep, Renew, SandboxProvider,
    SandboxSpec, SandboxStatus, StdinSource,
    serde_json::{Value, json},
};

use crate::support::{eventually, lives, local, provider};

fn owned_by(owner: Value, expires_at_ms: Option<u64>) -> SandboxSpec {
    let identity = json!({ "run_id": "r", "owner": owner, "created_at_ms": 1, "expires_at_ms": expires_at_ms });
    SandboxSpec::from_json(json!({ "identity": identity })).unwrap()
}

fn dead() -> Value {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    json!({ "process": { "host": host.trim(), "pid": std::process::id(), "start_time": 1 } })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_is_private_and_goes_with_the_sandbox() {
    let local = local(json!({}));
    let handle = local.create().await;
    let workspace = local.workspace(&handle);
    assert_eq!(std::fs::metadata(&workspace).unwrap().permissions().mode() & 0o777, 0o700);
    let record = local.root().join(".records").join(format!("{}.json", handle.sandbox_id));
    assert_eq!(std::fs::metadata(record).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(local.text(&handle, "pwd").await, workspace.display().to_string());
    local.text(&handle, "mkdir -p a/b; echo x > a/b/c; ln -s / a/root; chmod 0 a/b a").await;
    local.provider.close(&handle).await.unwrap();
    assert!(local.remains().is_empty(), "{:?}", local.remains());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_create_leaves_nothing() {
    let local = local(json!({}));
    let spec = |value: Value| SandboxSpec::from_json(value).unwrap();
    let blocked = local.temp().join("file");
    std::fs::write(&blocked, "x").unwrap();
    for (value, kind) in [
        (json!({ "workdir": blocked.join("sub") }), ErrorKind::Create),
        (json!({ "workdir": blocked }), ErrorKind::Create),
        (json!({ "user": "no-such-user" }), ErrorKind::InvalidInput),
        (json!({ "image": "alpine" }), ErrorKind::Unsupported),
        (json!({ "provider_options": { "x": 1 } }), ErrorKind::Unsupported),
        (json!({ "network": "none" }), ErrorKind::Unsupported),
        (json!({ "resources": { "cpu": 1.0 } }), ErrorKind::Unsupported),
        (json!({ "ready_timeout_s": 1e-9, "workdir": local.temp().join("made/late") }), ErrorKind::TimedOut),
    ] {
        let error = local.provider.create(spec(value.clone())).await.expect_err(&value.to_string());
        assert_eq!(error.kind(), kind, "{value}: {error}");
        assert_eq!(error.provider(), Some("local"), "{value}");
    }
    eventually("something is left", || local.remains().is_empty()).await;
    eventually("the workdir is left", || !local.temp().join("made").exists()).await;
    assert!(blocked.is_file());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_create_leaves_nothing() {
    let local = local(json!({}));
    for _ in 0..50 {
        let creation = local.provider.create(SandboxSpec::default());
        tokio::select! {
            biased;
            created = creation => local.provider.close(&created.unwrap()).await.unwrap(),
            () = tokio::task::yield_now() => {}
        }
    }
    eventually("something is left", || local.remains().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_is_good_for_its_own_sandbox_only() {
    let local = local(json!({}));
    let (one, two) = (local.create().await, local.create().await);
    let mut other_provider = one.clone();
    other_provider.provider_name = "docker".to_owned();
    let mut unknown = one.clone();
    unknown.sandbox_id = "local-000000000000".to_owned();
    let mut swapped = one.clone();
    swapped.state = two.state.clone();
    let mut forged = one.clone();
    forged.state = Value::Null;
    for handle in [&other_provider, &unknown, &swapped, &forged] {
        let refused = local.provider.exec(handle, ExecRequest::shell("true")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
        let upload = local.provider.upload_file(handle, "/etc/passwd".as_ref(), &"f".into()).await.unwrap_err();
        assert_eq!(upload.kind(), ErrorKind::NotFound);
    }
    assert_eq!(local.provider.status(&other_provider).await.unwrap_err().kind(), ErrorKind::NotFound);
    for handle in [&unknown, &swapped, &forged] {
        assert_eq!(local.provider.status(handle).await.unwrap(), SandboxStatus::Stopped);
        local.provider.close(handle).await.unwrap();
    }
    assert_eq!(local.text(&one, "echo still here").await, "still here");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_runs_twice_under_one_id() {
    let local = local(json!({}));
    let handle = local.create().await;
    let request = |id: &str| {
        let mut request = ExecRequest::shell("echo x >> ran");
        request.exec_id = id.to_owned();
        request
    };
    local.run(&handle, request("a")).await;
    let again = local.provider.exec(&handle, request("a")).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    for id in ["b", "", ""] {
        local.run(&handle, request(id)).await;
    }
    assert_eq!(local.text(&handle, "grep -c x ran").await, "4");
    local.run(&local.create().await, request("a")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_ends_commands_and_ten_closes_at_once_are_one() {
    let local = local(json!({}));
    let handle = local.create().await;
    let mut stream = local.provider.exec(&handle, ExecRequest::shell("echo up; sleep 60")).await.unwrap();
    assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
    let begin = Instant::now();
    let closes = futures(10, || local.provider.close(&handle));
    let (end, closed) = tokio::join!(stream.next(), closes);
    assert!(closed.iter().all(Result::is_ok));
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Lost);
    assert!(begin.elapsed() < Duration::from_secs(5));
    local.provider.close(&handle).await.unwrap();
    assert!(local.remains().is_empty());
}

/// Runs so many of these at once.
async fn futures<F: Future>(count: usize, make: impl Fn() -> F) -> Vec<F::Output> {
    let mut all: Vec<_> = (0..count).map(|_| (Box::pin(make()), None)).collect();
    std::future::poll_fn(move |context| {
        for (future, output) in &mut all {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        match all.iter().all(|(_, output)| output.is_some()) {
            true => std::task::Poll::Ready(all.iter_mut().filter_map(|(_, output)| output.take()).collect()),
            false => std::task::Poll::Pending,
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_ends_its_tree_and_control_reaches_it() {
    let local = local(json!({}));
    let handle = local.create().await;
    let script = "setsid sh -c 'echo $$; exec sleep 60' & wait";
    let mut stream = local.provider.exec(&handle, ExecRequest::shell(script)).await.unwrap();
    let Some(ExecEvent::Stdout(line)) = stream.next().await.unwrap() else { panic!("output") };
    let pid = std::str::from_utf8(&line).unwrap().trim().parse().unwrap();
    assert!(lives(pid));
    drop(stream);
    eventually("the tree of a dropped stream lives", || !lives(pid)).await;

    let request = ExecRequest::argv(["cat"]).with_stdin(StdinSource::Stream);
    let stream = local.provider.exec(&handle, request).await.unwrap();
    stream.write("through").await.unwrap();
    let resize = stream.control().control(sandbox_core::ControlRequest::Resize { rows: 1, cols: 1 }).await;
    assert_eq!(resize.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(stream.signal(99).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    stream.close_input().await.unwrap();
    let result = stream.collect(CaptureLimits::default()).await.unwrap();
    assert_eq!(result.stdout, b"through");

    let stream = local.provider.exec(&handle, ExecRequest::argv(["sleep", "60"])).await.unwrap();
    let control = stream.control();
    stream.signal(15).await.unwrap();
    let result = stream.collect(CaptureLimits::default()).await.unwrap();
    assert_eq!(*result.outcome(), ExecOutcome::Signalled(15));
    assert_eq!(control.write("late".into()).await.unwrap_err().kind(), ErrorKind::InvalidState);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_ends_the_sandbox_and_its_commands_and_says_so() {
    let local = local(json!({}));
    let handle = local.provider.create(SandboxSpec::default().with_ttl_s(0.6)).await.unwrap();
    let begin = Instant::now();
    let request = ExecRequest::shell("echo partial; sleep 60").with_timeout_s(30.0);
    let mut stream = local.provider.exec(&handle, request).await.unwrap();
    assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
    let end = stream.next().await.unwrap_err();
    assert_eq!(end.kind(), ErrorKind::Lost);
    assert!(end.to_string().contains("expired"), "{end}");
    assert!(begin.elapsed() > Duration::from_millis(400), "{:?}", begin.elapsed());
    let refused = local.provider.exec(&handle, ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    assert!(refused.to_string().contains("expired"), "{refused}");
    assert_eq!(local.provider.status(&handle).await.unwrap(), SandboxStatus::Stopped);
    eventually("something is left", || local.remains().is_empty()).await;
    local.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn renew_moves_the_expiry_both_ways_and_writes_it_down() {
    let local = local(json!({}));
    let (long, short) =
        (local.provider.create(SandboxSpec::default().with_ttl_s(0.5)).await.unwrap(), local.create().await);
    let expiry = local.provider.renew(&long, 60.0).await.unwrap();
    local.provider.renew(&short, 0.2).await.unwrap();
    let records = local.provider.list(ListFilter::default()).await.unwrap();
    let record = records.iter().find(|record| record.handle == long).unwrap();
    assert_eq!(record.identity.as_ref().unwrap().expires_at_ms, Some(expiry));
    eventually("it did not expire", || !local.workspace(&short).exists()).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(local.text(&long, "echo lives").await, "lives");
    for bad in [0.0, -1.0, f64::NAN, 1e18] {
        assert_eq!(local.provider.renew(&long, bad).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(local.provider.renew(&short, 1.0).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_by_another_provider_takes_what_nobody_answers_for() {
    let local = local(json!({}));
    let other = provider(json!({ "workspace_root": local.root() }));
    let held = local.create().await;
    let of_dead = local.provider.create(owned_by(dead(), None)).await.unwrap();
    let past = local.provider.create(owned_by(json!("lease"), Some(1))).await.unwrap();
    let leased = local.provider.create(owned_by(json!("lease"), Some(u64::MAX))).await.unwrap();
    let pid = local.text(&of_dead, "sleep 60 >/dev/null 2>&1 & echo $!").await.parse().unwrap();
    assert_eq!(other.list(ListFilter::default()).await.unwrap().len(), 4);
    assert_eq!(other.status(&held).await.unwrap(), SandboxStatus::Running);
    let mut expected = vec![of_dead.sandbox_id.clone(), past.sandbox_id.clone()];
    expected.sort();
    assert_eq!(other.sweep(ListFilter::default(), true).await.unwrap().removed, expected);
    assert!(lives(pid));
    let report = other.sweep(ListFilter::default(), false).await.unwrap();
    assert_eq!((report.removed, report.failed), (expected, vec![]));
    assert!(!lives(pid), "commands of a swept sandbox live");
    assert_eq!(local.provider.status(&of_dead).await.unwrap(), SandboxStatus::Stopped);
    assert_eq!(local.text(&held, "echo lives").await, "lives");
    assert_eq!(local.text(&leased, "echo lives").await, "lives");
    other.close(&leased).await.unwrap();
    assert!(!local.workspace(&leased).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_provider_ends_everything() {
    let mut local = local(json!({}));
    let handle = local.create().await;
    let mut stream = local.provider.exec(&handle, ExecRequest::shell("echo $$; exec sleep 60")).await.unwrap();
    let Some(ExecEvent::Stdout(line)) = stream.next().await.unwrap() else { panic!("output") };
    let running: u32 = std::str::from_utf8(&line).unwrap().trim().parse().unwrap();
    let background = local.text(&handle, "setsid sleep 60 >/dev/null 2>&1 & echo $!").await.parse().unwrap();
    let begin = Instant::now();
    let root = local.root();
    local.provider = provider(json!({ "workspace_root": root }));
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    eventually("commands live", || !lives(running) && !lives(background)).await;
    eventually("something is left", || local.remains().is_empty()).await;
    assert_eq!(stream.next().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_the_provider_leaves_sandboxes_alone() {
    let local = local(json!({}));
    let handle = local.provider.create(SandboxSpec::default().with_ttl_s(0.3)).await.unwrap();
    local.provider.aclose().await.unwrap();
    local.provider.aclose().await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(local.text(&handle, "echo lives").await, "lives");
}

#[test]
fn a_provider_can_be_dropped_after_its_runtime() {
    let temp = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let provider = provider(json!({ "workspace_root": temp.path().join("root") }));
    let handle = runtime.block_on(provider.create(SandboxSpec::default())).unwrap();
    let pid = runtime.block_on(async {
        let request = ExecRequest::shell("sleep 60 >/dev/null 2>&1 & echo $!");
        crate::support::run(&provider, &handle, request).await.stdout_text().trim().parse().unwrap()
    });
    drop(runtime);
    let begin = Instant::now();
    drop(provider);
    assert!(begin.elapsed() < Duration::from_secs(1));
    while lives(pid) {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!temp.path().join("root").join(handle.sandbox_id).exists());
}
