//! A double and a provider for each test.

use std::time::{Duration, Instant};

use fargate_double::{BASE_IMAGE, Double, Options};
use sandbox_core::{
    CaptureLimits, ExecRequest, SandboxExecResult, SandboxHandle, SandboxProvider, SandboxSpec, from_json,
};
use sandbox_provider_fargate::FargateProvider;
use serde_json::{Value, json};

/// An upper bound on a loaded machine.
pub(crate) const LATE: Duration = Duration::from_secs(90);

pub(crate) struct Service {
    pub(crate) double: Double,
    pub(crate) provider: FargateProvider,
}

/// A provider with the settings of the double, and these over them.
pub(crate) fn provider(double: &Double, more: &Value) -> FargateProvider {
    let config = from_json(settings(double, more), "config").expect("the settings are good");
    FargateProvider::new(config).expect("the provider is made")
}

pub(crate) fn settings(double: &Double, more: &Value) -> Value {
    let mut settings = double.settings();
    settings["cpu"] = json!(0.25);
    for (key, value) in more.as_object().into_iter().flatten() {
        settings[key] = value.clone();
    }
    settings
}

pub(crate) fn spec() -> SandboxSpec {
    SandboxSpec::image(BASE_IMAGE)
}

impl Service {
    pub(crate) async fn new() -> Self {
        Self::with(Options::default(), json!({})).await
    }

    pub(crate) async fn with(options: Options, more: Value) -> Self {
        let double = Double::start_with(options).await.expect("the double starts");
        let provider = provider(&double, &more);
        Self { double, provider }
    }

    pub(crate) async fn sandbox(&self) -> SandboxHandle {
        match tokio::time::timeout(LATE, self.provider.create(spec())).await {
            Ok(Ok(sandbox)) => sandbox,
            failed => panic!("{failed:?}; {}", self.story()),
        }
    }

    /// What the double knows of its tasks.
    fn story(&self) -> String {
        let told = |arn: &str| ["agent", "ssh", "main"].map(|name| format!("{name}: {}", self.double.log(arn, name)));
        let tasks = self.double.tasks();
        tasks.iter().map(|task| format!("{task:?} {:?}\n", told(&task.arn))).collect()
    }

    /// The task of the only sandbox.
    pub(crate) fn task(&self) -> String {
        let living = self.double.living();
        assert_eq!(living.len(), 1, "{living:?}");
        living[0].arn.clone()
    }

    pub(crate) async fn run(&self, handle: &SandboxHandle, request: ExecRequest) -> SandboxExecResult {
        let all = async {
            self.provider.exec(handle, request).await.expect("it starts").collect(CaptureLimits::default()).await
        };
        tokio::time::timeout(LATE, all).await.expect("it ends in time").expect("it is not lost")
    }

    pub(crate) async fn sh(&self, handle: &SandboxHandle, script: &str) -> String {
        self.run(handle, ExecRequest::shell(script)).await.stdout_text().into_owned()
    }

    /// It works as if nothing had been; then it is closed and nothing is left.
    pub(crate) async fn works_and_goes(self, handle: &SandboxHandle) {
        assert_eq!(self.sh(handle, "echo works").await, "works\n");
        self.provider.close(handle).await.expect("it is closed");
        self.ends_empty().await;
    }

    /// Nothing is left, at once or soon.
    pub(crate) async fn ends_empty(self) {
        until("nothing is left", || self.double.living().is_empty()).await;
        self.provider.aclose().await.expect("it ends");
        self.double.stop().await;
    }
}

/// Tries until it is true.
pub(crate) async fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + LATE;
    while !is_true() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
