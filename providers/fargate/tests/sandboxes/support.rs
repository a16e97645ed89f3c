//! A double and a provider for each test.

use std::time::Duration;

use fargate_double::{BASE_IMAGE, Double, Options};
use sandbox_core::{
    CaptureLimits, ExecRequest, Result, SandboxExecResult, SandboxHandle, SandboxProvider, SandboxSpec, from_json,
};
use sandbox_provider_fargate::FargateProvider;
use serde_json::{Value, json};

/// An upper bound on a loaded machine.
pub(crate) const LATE: Duration = Duration::from_secs(120);

pub(crate) struct Service {
    pub(crate) double: Double,
    pub(crate) provider: FargateProvider,
    pub(crate) folder: tempfile::TempDir,
}

impl Service {
    pub(crate) async fn new() -> Self {
        Self::with(Options::default(), json!({})).await
    }

    pub(crate) async fn with(options: Options, more: Value) -> Self {
        let double = Double::start_with(options).await.expect("the double starts");
        let folder = tempfile::tempdir().unwrap();
        let provider = provider(&double, &folder, more).unwrap();
        Self { double, provider, folder }
    }

    /// Another process with other settings.
    pub(crate) fn provider(&self, more: Value) -> FargateProvider {
        provider(&self.double, &self.folder, more).unwrap()
    }

    pub(crate) async fn sandbox(&self) -> SandboxHandle {
        let made = self.provider.create(SandboxSpec::image(BASE_IMAGE));
        tokio::time::timeout(LATE, made).await.expect("in time").expect("a sandbox is made")
    }

    pub(crate) async fn run(&self, handle: &SandboxHandle, request: ExecRequest) -> SandboxExecResult {
        let all = async { self.provider.exec(handle, request).await?.collect(CaptureLimits::default()).await };
        tokio::time::timeout(LATE, all).await.expect("it ends in time").expect("it is not lost")
    }

    pub(crate) async fn sh(&self, handle: &SandboxHandle, script: &str) -> String {
        self.run(handle, ExecRequest::shell(script)).await.stdout_text().into_owned()
    }

    /// The task of a sandbox.
    pub(crate) fn arn(&self, handle: &SandboxHandle) -> String {
        handle.state["task_arn"].as_str().expect("a handle of this provider").to_owned()
    }

    /// Closes the sandbox and the double; no task may be left.
    pub(crate) async fn end(self, handle: &SandboxHandle) {
        self.provider.close(handle).await.expect("it is closed");
        self.double.stopped(&self.arn(handle)).await;
        assert!(self.double.living().is_empty(), "{:?}", self.double.living());
        self.double.stop().await;
    }
}

fn provider(double: &Double, folder: &tempfile::TempDir, more: Value) -> Result<FargateProvider> {
    let mut settings = double.settings();
    settings["key"] = json!({ "file": folder.path().join("key") });
    settings["cpu"] = json!(0.25);
    for (key, value) in more.as_object().into_iter().flatten() {
        settings[key] = value.clone();
    }
    FargateProvider::new(from_json(settings, "settings")?)
}
