//! The provider contract on isolated sandboxes of a user without privileges.

#[path = "isolated/agent.rs"]
mod agent;

use sandbox_conformance::{Suite, assert_suite, factory};
use serde_json::json;

/// How many cases must have run: nobody can be switched to, and cgroups may not be writable.
const MUST_RUN: usize = 195;

/// Runs as another program, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn as_nobody() {
    if !agent::is_nobody() {
        return;
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn isolated_local_keeps_the_provider_contract_without_privileges() {
    if !agent::is_nobody() {
        println!("{}", agent::as_nobody("as_nobody"));
    }
}
