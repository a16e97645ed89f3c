//! The tables of the README are what the code says.

use sandbox_conformance::{Documents, ManifestSays};
use sandbox_core::{Capability, Field, ProviderInfo, SandboxProvider, from_json, serde_json::json};
use sandbox_provider_local::LocalProvider;

const DOCUMENTS: Documents<'static> =
    Documents { readme: include_str!("../README.md"), manifest: include_str!("../provider.toml") };

fn info(isolation: &str) -> ProviderInfo {
    LocalProvider::new(from_json(json!({ "isolation": isolation }), "settings").unwrap()).unwrap().full_info()
}

#[test]
fn without_isolation_fields_and_capabilities_are_the_same_in_the_code_the_manifest_and_the_readme() {
    let info = info("none");
    DOCUMENTS.assert_fields(&info, |field| match field {
        // These two depend on who runs this.
        Field::User | Field::ExecUser => Some("root: honoured; others: own user only"),
        _ => None,
    });
    DOCUMENTS.assert_capabilities(&info, ManifestSays::WhatMayBe);
}

#[test]
fn with_namespaces_every_field_is_in_the_table_as_the_code_has_it() {
    DOCUMENTS.assert_fields(&info("namespaces"), |field| match field {
        // These depend on who runs this, and where.
        Field::User | Field::ExecUser => Some("root: honoured; others: the sandbox's own user only"),
        Field::Cpu | Field::MemoryMib | Field::Pids => {
            Some("honoured where cgroups can be written; else refused, with the reason")
        }
        Field::VolumesBind => {
            Some("honoured; root: the owner's files are the sandbox's user's; what is root's can only be read")
        }
        Field::NetworkNamed => Some("root: honoured; others: refused"),
        // This depends on the settings.
        Field::ProviderOptions => Some("honoured with the setting `shared_root`; else refused"),
        _ => None,
    });
}

#[test]
fn with_namespaces_every_capability_is_in_the_table_as_the_code_has_it() {
    let declared = info("namespaces").capabilities;
    for capability in Capability::ALL {
        let in_readme = DOCUMENTS.readme.contains(&format!("| `{}` | `namespaces`", capability.label()))
            || DOCUMENTS.readme.contains(&format!("| `{}` | both", capability.label()));
        // Whether there is a freezer depends on where this runs.
        let is_declared = declared.contains(*capability) || *capability == Capability::PauseResume
            // Networks need root.
            || [Capability::Network, Capability::Networks].contains(capability)
            // Whether there is a folder to share depends on the settings.
            || *capability == Capability::SharedStorage;
        assert_eq!(in_readme, is_declared, "{capability} in the README");
    }
}

#[test]
fn every_setting_is_in_the_table() {
    for key in ["isolation", "agent_path", "network", "binds", "sizes", "rootfs", "image_cache_mib", "shared_root"] {
        assert!(DOCUMENTS.readme.contains(&format!("| `{key}` |")), "{key}");
    }
}
