//! The tables of the README are what the code says.

use sandbox_conformance::Documents;
use sandbox_core::{Capability, SandboxProvider, from_json};
use sandbox_provider_fargate::{FargateConfig, FargateProvider};
use serde_json::{Value, json};

const README: &str = include_str!("../README.md");
const MANIFEST: &str = include_str!("../provider.toml");

fn provider(more: Value) -> FargateProvider {
    let mut settings = json!({ "region": "us-east-1" });
    for (key, value) in more.as_object().unwrap() {
        settings[key] = value.clone();
    }
    FargateProvider::new(from_json(settings, "config").unwrap()).unwrap()
}

#[test]
fn every_field_is_in_the_table_as_the_code_has_it() {
    let documents = Documents { readme: README, manifest: MANIFEST };
    documents.assert_fields(&provider(json!({})).full_info(), |_| None);
}

#[test]
fn capabilities_are_the_same_in_the_code_the_manifest_and_the_readme() {
    let plain = provider(json!({})).capabilities();
    let storage = json!({ "file_system_id": "fs-1" });
    let every = json!({ "ecr_repository": "a", "build": { "project": "b" }, "shared_storage": storage });
    let every = provider(every).capabilities();
    for capability in Capability::ALL {
        let name = capability.wire_name();
        assert_eq!(MANIFEST.contains(&format!("\"{name}\"")), every.contains(*capability), "{name} in provider.toml");
        let with = match (capability, every.contains(*capability), plain.contains(*capability)) {
            (_, true, true) => "always",
            (Capability::BuildImage, true, false) => "`ecr_repository` and `build.project` are set",
            (Capability::SharedStorage, true, false) => "`shared_storage` is set",
            (_, true, false) => "something",
            _ => {
                assert!(!README.contains(&format!("| `{}` | always |", capability.label())), "{name} in the README");
                continue;
            }
        };
        let line = format!("| `{}` | {with} |", capability.label());
        assert!(README.contains(&line), "the README must have: {line}");
    }
}

#[test]
fn every_setting_and_option_is_in_the_readme() {
    for (what, settings) in
        [("config", json!({ "no-such-key": 1 })), ("sidecar", json!({ "sidecar": { "no-such-key": 1 } }))]
    {
        let error = from_json::<FargateConfig>(settings, "config").unwrap_err();
        let keys = error.message().rsplit_once("accepted keys: ").unwrap().1.to_owned();
        for key in keys.split(", ") {
            let is_there = ["`", "`sidecar.", "`volumes"].iter().any(|begin| README.contains(&format!("{begin}{key}")));
            assert!(is_there, "{what}: {key}");
        }
    }
    for option in provider(json!({})).full_info().fields.keys().filter_map(|key| key.strip_prefix("provider_options."))
    {
        assert!(README.contains(&format!("`{option}`")), "{option}");
    }
}
