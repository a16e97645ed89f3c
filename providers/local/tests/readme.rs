//! The tables of the README about sandboxes without isolation are what the code says.

use std::fmt::Write;

use sandbox_core::{Capability, Field, FieldSupport, SandboxProvider, from_json, serde_json::json};
use sandbox_provider_local::LocalProvider;

const README: &str = include_str!("../README.md");
const MANIFEST: &str = include_str!("../provider.toml");

fn not_isolated() -> LocalProvider {
    LocalProvider::new(from_json(json!({ "isolation": "none" }), "settings").unwrap()).unwrap()
}

#[test]
fn every_field_is_in_the_table_as_the_code_has_it() {
    let info = not_isolated().full_info();
    let mut table = String::new();
    for field in Field::ALL {
        let support = match info.support(*field) {
            // These two depend on who runs this.
            _ if [Field::User, Field::ExecUser].contains(field) => "root: honoured; others: own user only".to_owned(),
            FieldSupport::Honoured => "honoured".to_owned(),
            FieldSupport::Refused(why) => format!("refused: {why}"),
            other => format!("{other:?}"),
        };
        writeln!(table, "| `{field}` | {support} |").unwrap();
    }
    assert!(README.contains(&table), "the table of the README must be:\n{table}");
}

#[test]
fn capabilities_are_the_same_in_the_code_the_manifest_and_the_readme() {
    let declared = not_isolated().capabilities();
    for capability in Capability::ALL {
        let name = capability.wire_name();
        // The manifest says what there may be, with other settings too.
        let may_be = MANIFEST.contains(&format!("\"{name}\""));
        assert!(may_be || !declared.contains(*capability), "{name} in provider.toml");
        let in_readme = README.contains(&format!("- `{}`", capability.label()));
        assert_eq!(in_readme, declared.contains(*capability), "{name} in the README");
    }
}
