//! The engine that the tests use, and its images.

use std::path::PathBuf;

use serde_json::{Value, json};

/// Where `cargo xtask` puts the address of its engine.
const VARIABLE: &str = "SANDBOX_TEST_DOCKER";

/// One file of busybox with its names.
pub(crate) const BUSYBOX: &str = "sandbox-test/busybox:1";
/// Debian with bash and python3.
#[allow(dead_code, reason = "each test program uses its part")]
pub(crate) const DEBIAN: &str = "sandbox-test/debian:1";
/// One static program, and nothing else.
#[allow(dead_code, reason = "each test program uses its part")]
pub(crate) const STATIC: &str = "sandbox-test/static:1";

/// The engine's address.
pub(crate) fn host() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "these tests need an engine of their own: cargo xtask engine -- cargo nextest run -p \
             sandbox-provider-docker"
        )
    })
}

/// The agent's file, as it was built with the plugins.
pub(crate) fn agent() -> PathBuf {
    let name = format!("sandbox-agent-{}", std::env::consts::ARCH);
    let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("providers");
    let agent = folder.join(name);
    assert!(agent.is_file(), "{} is missing: cargo xtask build-plugins", agent.display());
    agent
}

/// These settings, for the engine of the tests.
pub(crate) fn settings(mut settings: Value) -> Value {
    settings["host"] = json!(host());
    if settings.get("agent") != Some(&json!("off")) && settings.get("agent_path").is_none() {
        settings["agent_path"] = json!(agent());
    }
    settings["use_docker_config"] = json!(false);
    settings
}
