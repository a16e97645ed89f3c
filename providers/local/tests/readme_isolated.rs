//! The tables of the README about isolated sandboxes are what the code says.

use std::fmt::Write;

use sandbox_core::{Capability, Field, FieldSupport, SandboxProvider, from_json, serde_json::json};
use sandbox_provider_local::LocalProvider;

const README: &str = include_str!("../README.md");

fn isolated() -> LocalProvider {
    LocalProvider::new(from_json(json!({}), "settings").unwrap()).unwrap()
}

#[test]
fn every_field_is_in_the_table_as_the_code_has_it() {
    let info = isolated().full_info();
    let mut table = String::new();
    for field in Field::ALL {
        let support = match (field, info.support(*field)) {
            // These depend on who runs this, and where.
            (Field::User | Field::ExecUser, _) => "root: honoured; others: the sandbox's own user only".to_owned(),
            (Field::Cpu | Field::MemoryMib | Field::Pids, _) => {
                "honoured where cgroups can be written; else refused, with the reason".to_owned()
            }
            (Field::VolumesBind, _) => {
                "honoured; root: the owner's files are the sandbox's user's; what is root's can only be read".to_owned()
            }
            (Field::NetworkNamed, _) => "root: honoured; others: refused".to_owned(),
            // These depend on the settings.
            (Field::ProviderOptions, _) => "honoured with the setting `shared_root`; else refused".to_owned(),
            (_, FieldSupport::Honoured) => "honoured".to_owned(),
            (_, FieldSupport::Emulated(how)) => format!("emulated: {how}"),
            (_, FieldSupport::Refused(why)) => format!("refused: {why}"),
            (_, other) => format!("{other:?}"),
        };
        writeln!(table, "| `{field}` | {support} |").unwrap();
    }
    assert!(README.contains(&table), "the second table of the README must be:\n{table}");
}

#[test]
fn every_capability_is_in_the_table_as_the_code_has_it() {
    let declared = isolated().capabilities();
    for capability in Capability::ALL {
        let in_readme = README.contains(&format!("| `{}` | `namespaces`", capability.label()))
            || README.contains(&format!("| `{}` | both", capability.label()));
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
        assert!(README.contains(&format!("| `{key}` |")), "{key}");
    }
}
