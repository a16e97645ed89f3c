//! The provider contract, through the same entry point by which a host calls a plugin: on the image and with the settings
//! that the variable names, else on busybox with those of no file. `cargo xtask conformance docker` goes through all of
//! them.

#[path = "docker/engine.rs"]
mod engine;

use std::time::Duration;

use sandbox_conformance::{Suite, assert_suite, factory};
use sandbox_core::SandboxSpec;
use serde_json::{Value, json};

/// Settings and spec as JSON.
const VARIANT: &str = "SANDBOX_TEST_VARIANT";

/// How long a case may take: the engine makes one container after the other.
const DEADLINE: Duration = Duration::from_secs(180);

/// How many cases must run, whatever the variant.
const MUST_RUN: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn docker_keeps_the_provider_contract() {
    let variant = match std::env::var(VARIANT) {
        Ok(text) => serde_json::from_str(&text).unwrap(),
        Err(_) => json!({ "config": {}, "spec": { "image": engine::BUSYBOX } }),
    };
    let (config, spec): (Value, Value) = (variant["config"].clone(), variant["spec"].clone());
    let settings = engine::settings(config);
    let new = move || {
        let settings = settings.clone();
        async move { sandbox_provider_docker::plugin_entry().new_provider(&settings) }
    };
    let factory = factory(new).with_spec(SandboxSpec::from_json(spec).unwrap());
    let suite = Suite::new(factory).with_deadline(DEADLINE);
    assert_suite(match std::env::var("SANDBOX_TEST_FILTER") {
        Ok(filter) => suite.with_filter(filter),
        Err(_) => suite.with_minimum_run(MUST_RUN),
    })
    .await;
}
