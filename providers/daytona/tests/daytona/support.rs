//! A double and a provider for each test.

use std::time::Duration;

use sandbox_core::{
    CaptureLimits, ExecRequest, SandboxExecResult, SandboxHandle, SandboxProvider, SandboxSpec, from_json,
};
use sandbox_daytona_double::{Double, Fault, KEY, Recorded};
use sandbox_provider_daytona::{DaytonaConfig, DaytonaProvider};
use serde_json::{Value, json};

/// An upper bound on a loaded machine.
pub(crate) const LATE: Duration = Duration::from_secs(60);

pub(crate) struct Service {
    pub(crate) double: Double,
    pub(crate) provider: DaytonaProvider,
}

impl Service {
    pub(crate) async fn new() -> Self {
        Self::with(json!({})).await
    }

    /// With these settings, and short waits between attempts.
    pub(crate) async fn with(more: Value) -> Self {
        let double = Double::start().await.expect("the double starts");
        let provider = provider(&double, KEY, more);
        Self { double, provider }
    }

    pub(crate) async fn sandbox(&self) -> SandboxHandle {
        self.provider.create(SandboxSpec::default()).await.expect("a sandbox is made")
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

    pub(crate) fn fault(&self, method: &str, path: &str, change: impl FnOnce(&mut Fault)) {
        let mut fault = Fault { method: method.to_owned(), path: path.to_owned(), ..Fault::default() };
        change(&mut fault);
        self.double.fault(fault);
    }

    /// Requests of this method to a path that ends so.
    pub(crate) fn requests(&self, method: &str, path: &str) -> Vec<Recorded> {
        let all = self.double.requests().into_iter();
        all.filter(|request| request.method == method && request.path.ends_with(path)).collect()
    }

    /// Nothing is left at the service, at once or soon.
    pub(crate) async fn expect_empty(&self) {
        let end = std::time::Instant::now() + LATE;
        while !self.double.sandboxes().await.is_empty() {
            assert!(std::time::Instant::now() < end, "left at the service: {:?}", self.double.sandboxes().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub(crate) fn provider(double: &Double, key: &str, more: Value) -> DaytonaProvider {
    let mut settings = json!({
        "connection": {"api_key": key, "api_url": format!("{}/api", double.url())},
        "create": {"retry_delay_s": 0.02, "retry_max_delay_s": 0.2},
        "operations": {"retry_delay_s": 0.02, "retry_max_delay_s": 0.2},
    });
    for (block, values) in more.as_object().cloned().unwrap_or_default() {
        for (key, value) in values.as_object().cloned().unwrap_or_default() {
            settings[&block][&key] = value;
        }
    }
    let config: DaytonaConfig = from_json(settings, "config").expect("the settings are good");
    DaytonaProvider::new(config).expect("the provider is made")
}

/// A spec with something for the double to do.
pub(crate) fn labelled(label: &str, value: &str) -> SandboxSpec {
    SandboxSpec::default().with_metadata(label, value)
}
