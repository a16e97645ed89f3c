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

/// The same through the plugin file, as a host of that user loads it.
#[test]
fn isolated_local_keeps_the_provider_contract_without_privileges_when_it_is_loaded() {
    let place = agent::Place::of_nobody();
    let providers = agent::agent().parent().unwrap();
    let library = place.copy(&providers.join("libsandbox_provider_local.so"), "libsandbox_provider_local.so");
    let suite = place.copy(&providers.with_file_name("sandbox-conformance"), "sandbox-conformance");
    let root = place.folder("suite");
    let settings = json!({
        "workspace_root": root.join("root"),
        "state_root": root.join("state"),
        "agent_path": place.copy(agent::agent(), "agent"),
    });
    let words = [suite.into(), library.into(), "--config".into(), settings.to_string().into(), "--minimum".into()];
    let said = place.run(&[&words[..], &[MUST_RUN.to_string().into()]].concat());
    assert!(said.contains(" passed, 0 failed, "), "{said}");
    println!("{said}");
}
