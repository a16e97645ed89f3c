//! The provider contract without isolation, through the same entry point by which a host calls a plugin.

use sandbox_conformance::{Suite, assert_suite, factory};
use serde_json::json;

/// How many cases must have run: all but those for abilities that local does not declare.
const MUST_RUN: usize = 190;

#[tokio::test(flavor = "multi_thread")]
async fn local_without_isolation_keeps_the_provider_contract() {
    let root = tempfile::tempdir().unwrap();
    let settings = json!({ "workspace_root": root.path().join("root"), "isolation": "none" });
    let new = move || {
        let settings = settings.clone();
        async move { sandbox_provider_local::plugin_entry().new_provider(&settings) }
    };
    assert_suite(Suite::new(factory(new)).with_minimum_run(MUST_RUN)).await;
}
