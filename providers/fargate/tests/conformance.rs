//! The provider contract against the double of AWS, through the SSH server of the sidecar. `cargo xtask conformance` also goes
//! straight to the agent.

use fargate_double::{BASE_IMAGE, Double};
use sandbox_conformance::{Suite, assert_suite, factory};
use sandbox_core::SandboxSpec;
use serde_json::json;

/// How many cases must have run: all but those for abilities that Fargate does not have, or the image has no program for.
const MUST_RUN: usize = 220;

/// Through the same entry point by which a host calls a plugin. No task may be left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fargate_keeps_the_provider_contract() {
    let double = Double::start().await.expect("the double starts");
    let mut settings = double.settings_with_builds();
    settings["transport"] = "ssh".into();
    // The smallest: this machine has to carry them.
    settings["cpu"] = json!(0.25);
    let new = move || {
        let settings = settings.clone();
        async move { sandbox_provider_fargate::plugin_entry().new_provider(&settings) }
    };
    let suite = Suite::new(factory(new).with_spec(SandboxSpec::image(BASE_IMAGE))).with_minimum_run(MUST_RUN);
    let suite = match std::env::var("SANDBOX_TEST_FILTER") {
        Ok(filter) => suite.with_filter(filter).with_minimum_run(1),
        Err(_) => suite,
    };
    assert_suite(suite).await;
    let left = double.living();
    assert!(left.is_empty(), "tasks that were left: {left:?}");
    double.stop().await;
}
