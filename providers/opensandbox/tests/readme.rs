//! The tables of the README are what the code says.

use std::fmt::Write;

use sandbox_core::{Capability, Field, FieldSupport, SandboxProvider};
use sandbox_provider_opensandbox::{OpenSandboxConfig, OpenSandboxProvider};

const README: &str = include_str!("../README.md");
const MANIFEST: &str = include_str!("../provider.toml");

fn provider() -> OpenSandboxProvider {
    OpenSandboxProvider::new(OpenSandboxConfig::default()).unwrap()
}

#[tokio::test]
async fn every_field_is_in_the_table_as_the_code_has_it() {
    let info = provider().full_info();
    let mut table = "| field | |\n|---|---|\n".to_owned();
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

#[tokio::test]
async fn capabilities_are_the_same_in_the_code_the_manifest_and_the_readme() {
    let declared = provider().capabilities();
    for capability in Capability::ALL {
        let name = capability.wire_name();
        let is_declared = declared.contains(*capability);
        // The manifest says what there may be, with other settings too.
        assert!(MANIFEST.contains(&format!("\"{name}\"")) || !is_declared, "{name} in provider.toml");
        let in_readme = README.contains(&format!("- `{}`\n", capability.label()));
        assert_eq!(in_readme, is_declared, "{name} in the README");
    }
}
