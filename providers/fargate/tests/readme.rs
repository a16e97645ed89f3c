//! The tables of the README are what the code says.

use std::fmt::Write;

use sandbox_core::{Capability, Field, FieldSupport, SandboxProvider, from_json};
use sandbox_provider_fargate::FargateProvider;

const README: &str = include_str!("../README.md");
const MANIFEST: &str = include_str!("../provider.toml");

fn provider() -> FargateProvider {
    let config = from_json(serde_json::json!({ "region": "us-east-1" }), "config").unwrap();
    FargateProvider::new(config).unwrap()
}

#[test]
fn every_field_is_in_the_table_as_the_code_has_it() {
    let info = provider().full_info();
    let mut table = String::new();
    for field in Field::ALL {
        let support = match info.support(*field) {
            FieldSupport::Honoured => "honoured".to_owned(),
            FieldSupport::Emulated(how) => format!("emulated: {how}"),
            FieldSupport::Refused(why) => format!("refused: {why}"),
            other => format!("{other:?}"),
        };
        writeln!(table, "| `{field}` | {support} |").unwrap();
    }
    assert!(README.contains(&table), "the table of the README must be:\n{table}");
}

#[test]
fn capabilities_are_the_same_in_the_code_the_manifest_and_the_readme() {
    let declared = provider().capabilities();
    for capability in Capability::ALL {
        let name = capability.wire_name();
        assert_eq!(
            MANIFEST.contains(&format!("\"{name}\"")),
            declared.contains(*capability),
            "{name} in provider.toml"
        );
        let in_readme = README.contains(&format!("- `{}`", capability.label()));
        assert_eq!(in_readme, declared.contains(*capability), "{name} in the README");
    }
}
