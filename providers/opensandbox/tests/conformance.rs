//! The provider contract, through the same entry point by which a host calls a plugin, on a server and daemons of ours.

use opensandbox_double::{Control, ControlOptions};
use sandbox_conformance::{Suite, assert_suite, factory};
use serde_json::{Value, json};

/// How many cases must have run: all but those for abilities that the provider does not declare.
const MUST_RUN: usize = 170;

const KEY: &str = "a-key-of-the-tests";

/// Settings for a server of ours.
fn settings(domain: &str) -> Value {
    json!({
        "connection": { "domain": domain, "api_key": KEY, "use_server_proxy": true },
        "create": { "default_image": "double", "connect_poll_s": 0.2 },
        "operations": { "native": "required" },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn opensandbox_keeps_the_provider_contract() {
    let options = ControlOptions { api_key: Some(KEY.to_owned()), containers: true, ..ControlOptions::default() };
    let control = Control::start(options).await.unwrap();
    let settings = settings(&control.address());
    let new = move || {
        let settings = settings.clone();
        async move { sandbox_provider_opensandbox::plugin_entry().new_provider(&settings) }
    };
    assert_suite(Suite::new(factory(new)).with_minimum_run(MUST_RUN)).await;
    assert!(control.ids().is_empty(), "sandboxes are left: {:?}", control.ids());
    control.end().await;
}
