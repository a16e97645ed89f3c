//! The tables of the README are what the code says.

use sandbox_conformance::{Documents, ManifestSays};
use sandbox_core::{SandboxProvider, from_json};
use sandbox_provider_daytona::DaytonaProvider;

const DOCUMENTS: Documents<'static> =
    Documents { readme: include_str!("../README.md"), manifest: include_str!("../provider.toml") };

#[test]
fn fields_and_capabilities_are_the_same_in_the_code_the_manifest_and_the_readme() {
    let config = from_json(serde_json::json!({"connection": {"api_key": "x"}}), "config").unwrap();
    let info = DaytonaProvider::new(config).unwrap().full_info();
    DOCUMENTS.assert_fields(&info, |_| None);
    DOCUMENTS.assert_capabilities(&info, ManifestSays::WhatIs);
}
