//! An engine that is really stopped, or killed, and started.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sandbox_core::{
    CaptureLimits, ErrorKind, ExecRequest, NetworkMode, Result, SandboxError, SandboxProvider, SandboxSpec,
    SandboxStatus, serde_json::json,
};
use sandbox_provider_docker::DockerProvider;
use tokio::task::JoinSet;

use crate::{
    dockerd::{Dockerd, bring_image, provider},
    support::{eventually, run, spec},
};

/// How long any call may take, whatever the engine does.
const LIMIT: Duration = Duration::from_secs(90);

/// How long a command may take that is under way when the engine is killed: its sandbox goes on.
const COMMAND_LIMIT_S: f64 = 30.0;

/// Makes a sandbox, runs a command in it, and removes it.
async fn round(provider: &DockerProvider) -> Result<()> {
    let handle = provider.create(spec()).await?;
    let done =
        async { provider.exec(&handle, ExecRequest::argv(["true"])).await?.collect(CaptureLimits::default()).await };
    let done = done.await;
    // What cannot be removed while the engine is away is removed by the sweep at the end.
    let closed = provider.close(&handle).await;
    done.and(closed)
}

/// Commands that go on for long, and sandboxes that come and go, until something fails.
async fn load(provider: &Arc<DockerProvider>, request: ExecRequest) -> JoinSet<Result<()>> {
    let mut lasting: SandboxSpec = spec();
    lasting.network = Some(NetworkMode::None);
    let handle = provider.create(lasting).await.unwrap();
    let rounds = Arc::new(AtomicUsize::new(0));
    let mut calls = JoinSet::new();
    for index in 0..6 {
        let (provider, handle) = (provider.clone(), handle.clone());
        let (rounds, request) = (rounds.clone(), request.clone());
        calls.spawn(async move {
            if index % 2 == 0 {
                let stream = provider.exec(&handle, request).await?;
                let result = stream.collect(CaptureLimits::default()).await?;
                assert_eq!(result.error_type(), Some("timeout"), "it has ended by itself");
                return Ok(());
            }
            loop {
                let one = tokio::time::timeout(LIMIT, round(&provider)).await.expect("a call hangs");
                one?;
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    eventually("nothing runs", async || rounds.load(Ordering::Relaxed) >= 6).await;
    calls
}

fn is_typed(error: &SandboxError) -> bool {
    !matches!(error.kind(), ErrorKind::Internal | ErrorKind::InvalidInput)
}

/// What works again once the engine is back.
async fn serves_again(provider: &DockerProvider) {
    let handle = provider.create(spec()).await.unwrap();
    assert_eq!(run(provider, &handle, ExecRequest::argv(["echo", "back"])).await.stdout_text(), "back\n");
    provider.close(&handle).await.unwrap();
    provider.aclose().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_stopped_under_load_ends_every_call_and_serves_again_when_it_is_back() {
    let temp = tempfile::Builder::new().prefix("sbx").tempdir().unwrap();
    let folder = temp.path();
    let mut dockerd = Dockerd::start(folder, &[]).await;
    bring_image(folder);
    let provider = Arc::new(provider(folder, json!({ "pool": { "ready": 1 } })));
    let handle = provider.create(spec()).await.unwrap();
    let calls = load(&provider, ExecRequest::argv(["sleep", "600"])).await;
    tokio::task::spawn_blocking(move || dockerd.stop()).await.unwrap();
    let ended = tokio::time::timeout(LIMIT, calls.join_all()).await.expect("a call hangs");
    for end in ended {
        let error = end.expect_err("no call can succeed without its engine");
        assert!(is_typed(&error), "{error:?}");
    }
    assert_eq!(provider.status(&handle).await.unwrap(), SandboxStatus::Unknown);
    assert_eq!(provider.create(spec()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let _dockerd = Dockerd::start(folder, &[]).await;
    // Stopping the engine has stopped what ran in it.
    assert_eq!(provider.status(&handle).await.unwrap(), SandboxStatus::Stopped);
    let error = provider.exec(&handle, ExecRequest::argv(["true"])).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    provider.close(&handle).await.unwrap();
    serves_again(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_killed_under_load_ends_every_call_in_its_time_and_serves_again_when_it_is_back() {
    for transport in ["socket", "relay"] {
        let temp = tempfile::Builder::new().prefix("sbx").tempdir().unwrap();
        let folder = temp.path();
        let dockerd = Dockerd::start(folder, &[]).await;
        bring_image(folder);
        let provider = Arc::new(provider(folder, json!({ "transport": transport, "agent": "required" })));
        let handle = provider.create(spec()).await.unwrap();
        let command = ExecRequest::argv(["sleep", "600"]).with_timeout_s(COMMAND_LIMIT_S);
        let calls = load(&provider, command).await;
        tokio::task::spawn_blocking(move || dockerd.kill()).await.unwrap();
        let error = provider.create(spec()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert_eq!(provider.status(&handle).await.unwrap(), SandboxStatus::Unknown);
        let ended = tokio::time::timeout(LIMIT, calls.join_all()).await.expect("a call hangs");
        let (over, failed): (Vec<_>, Vec<_>) = ended.into_iter().partition(Result::is_ok);
        // By its socket a sandbox goes on without its engine, and the limits of its commands hold.
        assert_eq!(over.len(), if transport == "socket" { 3 } else { 0 }, "{transport}: {failed:?}");
        for error in failed.into_iter().map(Result::unwrap_err) {
            assert!(is_typed(&error), "{transport}: {error:?}");
        }
        let _dockerd = Dockerd::start(folder, &[]).await;
        // The engine ends what it finds when it comes back.
        let is_stopped = async || provider.status(&handle).await.unwrap() == SandboxStatus::Stopped;
        eventually("the engine keeps what it lost sight of", is_stopped).await;
        provider.close(&handle).await.unwrap();
        serves_again(&provider).await;
    }
}
