//! The provider contract, through the same entry point by which a host calls a plugin: on the server that the variable
//! names, else on a server and daemons of ours. `cargo xtask conformance opensandbox` also starts the real server, and goes
//! through it and past it.

use std::time::Duration;

use opensandbox_double::{Control, ControlOptions};
use sandbox_conformance::{Suite, assert_suite, factory};
use sandbox_core::SandboxSpec;
use serde_json::{Value, json};

/// Settings and spec as JSON.
const VARIANT: &str = "SANDBOX_TEST_VARIANT";

/// How many cases must have run: all but those for abilities that the provider does not declare.
const MUST_RUN: usize = 170;

/// How long a case may take: an engine makes one container after the other.
const DEADLINE: Duration = Duration::from_secs(120);

const KEY: &str = "a-key-of-the-tests";

/// Settings for a server of ours.
fn settings(domain: &str) -> Value {
    json!({
        "connection": { "domain": domain, "api_key": KEY, "use_server_proxy": true },
        "create": { "default_image": "double", "connect_poll_s": 0.2 },
        "operations": { "native": "required" },
    })
}

async fn keeps_the_contract(settings: Value, spec: SandboxSpec) {
    let new = move || {
        let settings = settings.clone();
        async move { sandbox_provider_opensandbox::plugin_entry().new_provider(&settings) }
    };
    let suite = Suite::new(factory(new).with_spec(spec));
    assert_suite(suite.with_deadline(DEADLINE).with_minimum_run(MUST_RUN)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opensandbox_keeps_the_provider_contract() {
    if let Ok(variant) = std::env::var(VARIANT) {
        let variant: Value = serde_json::from_str(&variant).unwrap();
        let spec = match &variant["spec"] {
            Value::Null => SandboxSpec::default(),
            spec => SandboxSpec::from_json(spec.clone()).unwrap(),
        };
        return keeps_the_contract(variant["config"].clone(), spec).await;
    }
    let options = ControlOptions { api_key: Some(KEY.to_owned()), containers: true, ..ControlOptions::default() };
    let control = Control::start(options).await.unwrap();
    keeps_the_contract(settings(&control.address()), SandboxSpec::default()).await;
    assert!(control.ids().is_empty(), "sandboxes are left: {:?}", control.ids());
    control.end().await;
}
