//! The provider contract on isolated sandboxes, the default, through the same entry point by which a host calls a plugin.

#[path = "isolated/agent.rs"]
mod agent;

use sandbox_conformance::{Suite, assert_suite, factory};
use serde_json::json;

/// How many cases must have run: all but those for abilities that are not declared. Where cgroups cannot be written there
/// are no limits and no pausing, and without root nobody can be switched to.
const MUST_RUN: usize = 195;

#[tokio::test(flavor = "multi_thread")]
async fn local_keeps_the_provider_contract() {
    let root = tempfile::tempdir().unwrap();
    let settings = json!({
        "workspace_root": root.path().join("root"),
        "state_root": root.path().join("state"),
        "agent_path": agent::agent(),
    });
    let new = move || {
        let settings = settings.clone();
        async move { sandbox_provider_local::plugin_entry().new_provider(&settings) }
    };
    assert_suite(Suite::new(factory(new)).with_minimum_run(MUST_RUN)).await;
}
