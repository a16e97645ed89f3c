//! The tables of the README are what the code says.

use sandbox_conformance::Documents;
use sandbox_core::{Capability, SandboxProvider, from_json, serde_json::json};
use sandbox_provider_docker::DockerProvider;

const README: &str = include_str!("../README.md");
const MANIFEST: &str = include_str!("../provider.toml");

fn provider(settings: sandbox_core::serde_json::Value) -> DockerProvider {
    DockerProvider::new(from_json(settings, "settings").unwrap()).unwrap()
}

#[test]
fn every_field_is_in_the_table_as_the_code_has_it() {
    let documents = Documents { readme: README, manifest: MANIFEST };
    documents.assert_fields(&provider(json!({})).full_info(), |_| None);
}

#[test]
fn capabilities_are_the_same_in_the_code_the_manifest_and_the_readme() {
    let every = provider(json!({ "shared_storage": { "volume": "x" } })).capabilities();
    let off = provider(json!({ "agent": "off" })).capabilities();
    for capability in Capability::ALL {
        let name = capability.wire_name();
        assert_eq!(MANIFEST.contains(&format!("\"{name}\"")), every.contains(*capability), "{name} in provider.toml");
        let with = match (every.contains(*capability), off.contains(*capability)) {
            (true, true) => "always",
            (true, false) if *capability == Capability::SharedStorage => "`shared_storage` is set",
            (true, false) => "our agent",
            _ => continue,
        };
        let line = format!("| `{}` | {with} |", capability.label());
        assert!(README.contains(&line), "the README must have: {line}");
    }
}

#[test]
fn every_setting_is_in_the_table() {
    let error = from_json::<sandbox_provider_docker::DockerConfig>(json!({ "no-such-key": 1 }), "config").unwrap_err();
    let keys = error.message().rsplit_once("accepted keys: ").unwrap().1.to_owned();
    for key in keys.split(", ") {
        assert!(README.contains(&format!("| `{key}` |")), "{key}");
    }
}
