//! A server, a provider, and a sandbox.

use std::{future::Future, sync::Arc, time::Duration};

use opensandbox_double::{Control, ControlOptions, Execd};
use sandbox_core::{
    CaptureLimits, ExecRequest, Result, SandboxExecResult, SandboxHandle, SandboxProvider, SandboxSpec, from_json,
};
use sandbox_provider_opensandbox::OpenSandboxProvider;
use serde_json::{Value, json};

/// The server's key. It must never be seen by a sandbox.
pub(crate) const KEY: &str = "key-of-the-server";

/// How long anything may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A server of ours and a provider for it.
pub(crate) struct World {
    pub(crate) control: Control,
    pub(crate) provider: Arc<OpenSandboxProvider>,
}

/// A server that behaves.
pub(crate) fn options() -> ControlOptions {
    ControlOptions { api_key: Some(KEY.to_owned()), ..ControlOptions::default() }
}

/// `over` goes over `base`, section by section.
fn merge(base: &mut Value, over: Value) {
    for (section, values) in over.as_object().cloned().unwrap_or_default() {
        for (key, value) in values.as_object().cloned().unwrap_or_default() {
            base[section.as_str()][key.as_str()] = value;
        }
    }
}

/// Settings whose pauses are short.
pub(crate) fn settings(domain: &str, over: Value) -> Value {
    let mut all = json!({
        "connection": { "domain": domain, "api_key": KEY, "use_server_proxy": true, "request_timeout_s": 20 },
        "create": { "default_image": "double", "connect_poll_s": 0.05, "retry_delay_s": 0.01, "retries": 1,
                    "ready_timeout_s": 30 },
        // What is tested is the API of execd, but for `native.rs`.
        "operations": { "native": "off", "retry_delay_s": 0.01, "retry_max_delay_s": 0.05, "background_poll_initial_s": 0.02,
                        "background_poll_interval_s": 0.1 },
    });
    merge(&mut all, over);
    all
}

pub(crate) fn provider(domain: &str, over: Value) -> OpenSandboxProvider {
    OpenSandboxProvider::new(from_json(settings(domain, over), "config").unwrap()).unwrap()
}

impl World {
    pub(crate) async fn new(over: Value) -> Self {
        Self::with(options(), over).await
    }

    pub(crate) async fn with(options: ControlOptions, over: Value) -> Self {
        let control = Control::start(options).await.unwrap();
        let provider = Arc::new(provider(&control.address(), over));
        Self { control, provider }
    }

    pub(crate) async fn sandbox(&self) -> SandboxHandle {
        soon(self.provider.create(SandboxSpec::default())).await.unwrap()
    }

    pub(crate) fn execd(&self, handle: &SandboxHandle) -> Arc<Execd> {
        self.control.execd(&handle.sandbox_id).unwrap()
    }

    pub(crate) async fn run(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<SandboxExecResult> {
        soon(async { self.provider.exec(handle, request).await?.collect(CaptureLimits::default()).await }).await
    }

    pub(crate) async fn text(&self, handle: &SandboxHandle, script: &str) -> String {
        self.run(handle, ExecRequest::shell(script)).await.unwrap().stdout_text().into_owned()
    }

    /// How often a sandbox was asked for.
    pub(crate) fn creates(&self) -> usize {
        self.control.seen().iter().filter(|seen| seen.method == "POST" && seen.path == "/v1/sandboxes").count()
    }

    /// How often a path of the server was called.
    pub(crate) fn calls(&self, method: &str, part: &str) -> usize {
        self.control.seen().iter().filter(|seen| seen.method == method && seen.path.contains(part)).count()
    }
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it did not end in time")
}

/// Asks again and again until it is so.
pub(crate) async fn eventually(is_so: impl Fn() -> bool) {
    let all = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(all).await;
}
