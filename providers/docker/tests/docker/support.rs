//! A provider of its own for every test, and what is left of it on the engine.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use sandbox_core::{
    ByteString, CaptureLimits, ExecOutcome, ExecRequest, ListFilter, ListSweep, Owner, SandboxExecResult,
    SandboxHandle, SandboxIdentity, SandboxProvider, SandboxSpec, from_json,
    serde_json::{Value, json},
};
use sandbox_provider_docker::DockerProvider;

use crate::engine;

pub(crate) struct Docker {
    pub(crate) provider: DockerProvider,
    pub(crate) temp: tempfile::TempDir,
    settings: Value,
}

/// A provider with these settings.
pub(crate) fn docker(mut settings: Value) -> Docker {
    let temp = tempfile::tempdir().unwrap();
    settings["run_dir"] = json!(temp.path().join("run"));
    let settings = engine::settings(settings);
    let provider = provider(&settings);
    Docker { provider, temp, settings }
}

fn provider(settings: &Value) -> DockerProvider {
    DockerProvider::new(from_json(settings.clone(), "settings").unwrap()).unwrap()
}

/// The spec of a sandbox of busybox.
pub(crate) fn spec() -> SandboxSpec {
    SandboxSpec::image(engine::BUSYBOX)
}

/// A spec that can be found again by its run.
pub(crate) fn of_run(run_id: &str) -> SandboxSpec {
    let mut spec = spec();
    spec.identity = Some(SandboxIdentity {
        run_id: run_id.to_owned(),
        owner: Owner::Lease,
        created_at_ms: 1,
        expires_at_ms: None,
        attribution: Default::default(),
    });
    spec
}

impl Docker {
    /// Another provider with the same settings, as another process would have it.
    pub(crate) fn another(&self) -> DockerProvider {
        provider(&self.settings)
    }

    pub(crate) async fn create(&self, spec: SandboxSpec) -> SandboxHandle {
        self.provider.create(spec).await.unwrap()
    }

    pub(crate) async fn run(&self, handle: &SandboxHandle, request: ExecRequest) -> SandboxExecResult {
        run(&self.provider, handle, request).await
    }

    /// The output of a script that must succeed, without the last line end.
    pub(crate) async fn text(&self, handle: &SandboxHandle, script: &str) -> String {
        let result = self.run(handle, ExecRequest::shell(script)).await;
        assert_eq!(*result.outcome(), ExecOutcome::Exited(0), "{script}: {}", result.stderr_text());
        result.stdout_text().trim_end_matches('\n').to_owned()
    }

    pub(crate) async fn put(&self, handle: &SandboxHandle, remote: &str, contents: &[u8]) {
        let local = self.temp.path().join("put");
        std::fs::write(&local, contents).unwrap();
        self.provider.upload_file(handle, &local, &ByteString::from(remote)).await.unwrap();
    }

    pub(crate) async fn get(&self, handle: &SandboxHandle, remote: &str) -> Vec<u8> {
        let local = self.temp.path().join("get");
        self.provider.download_file(handle, &ByteString::from(remote), &local).await.unwrap();
        std::fs::read(&local).unwrap()
    }

    /// Fails unless the folder for sockets is empty.
    pub(crate) fn ensure_no_folders(&self) {
        let left: Vec<_> = std::fs::read_dir(self.temp.path().join("run")).into_iter().flatten().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }

    /// How many sandboxes of a run the engine has, in whatever state.
    pub(crate) async fn count(&self, run_id: &str) -> usize {
        let filter = ListFilter { run_id: Some(run_id.to_owned()), ..ListFilter::default() };
        self.provider.list(filter).await.unwrap().len()
    }
}

pub(crate) async fn run(provider: &DockerProvider, handle: &SandboxHandle, request: ExecRequest) -> SandboxExecResult {
    provider.exec(handle, request).await.unwrap().collect(CaptureLimits::default()).await.unwrap()
}

/// The docker command on the tests' engine: somebody else's hand.
pub(crate) fn by_hand<const N: usize>(arguments: [&str; N]) -> String {
    let output =
        Command::new("docker").args(["--host", &engine::host()]).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "docker {}: {}", arguments[0], String::from_utf8_lossy(&output.stderr));
    text
}

/// Asks again and again until the answer is yes.
pub(crate) async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_true().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
