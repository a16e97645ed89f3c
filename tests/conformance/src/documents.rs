//! What a provider's README and manifest say, held against its code.

use std::fmt::Write;

use sandbox_core::{Capability, Field, FieldSupport, ProviderInfo};

/// The texts that a provider comes with.
pub struct Documents<'a> {
    /// `README.md`: a table of the fields, and a list of the capabilities.
    pub readme: &'a str,
    /// `provider.toml`.
    pub manifest: &'a str,
}

/// What the capabilities of a manifest are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ManifestSays {
    /// Those that are declared, whatever the settings.
    WhatIs,
    /// Those, and what is declared with other settings or on other machines.
    WhatMayBe,
}

impl Documents<'_> {
    /// Fails unless the README has the table of fields as the code has it, but for what `instead` says of fields that
    /// depend on who runs it, or where.
    ///
    /// # Panics
    /// Then, with the table as it must be.
    pub fn assert_fields(&self, info: &ProviderInfo, instead: impl Fn(Field) -> Option<&'static str>) {
        let mut table = String::new();
        for field in Field::ALL {
            let support = match (instead(*field), info.support(*field)) {
                (Some(text), _) => text.to_owned(),
                (None, FieldSupport::Honoured) => "honoured".to_owned(),
                (None, FieldSupport::Emulated(how)) => format!("emulated: {how}"),
                (None, FieldSupport::Refused(why)) => format!("refused: {why}"),
                (None, other) => format!("{other:?}"),
            };
            writeln!(table, "| `{field}` | {support} |").expect("a text can be written to");
        }
        assert!(self.readme.contains(&table), "the table of the README must be:\n{table}");
    }

    /// Fails unless the README lists the very capabilities that are declared, each as "- `name`", and the manifest has
    /// them.
    ///
    /// # Panics
    /// Then, with the name of the first that differs.
    pub fn assert_capabilities(&self, info: &ProviderInfo, says: ManifestSays) {
        for capability in Capability::ALL {
            let (name, is_declared) = (capability.wire_name(), info.capabilities.contains(*capability));
            let in_manifest = self.manifest.contains(&format!("\"{name}\""));
            let may_be_more = says == ManifestSays::WhatMayBe && !is_declared;
            assert!(may_be_more || in_manifest == is_declared, "{name} in provider.toml");
            let in_readme = self.readme.contains(&format!("- `{}`", capability.label()));
            assert_eq!(in_readme, is_declared, "{name} in the README");
        }
    }
}
