//! The tables of the README are what the code says.

use sandbox_conformance::{Documents, ManifestSays};
use sandbox_core::SandboxProvider;
use sandbox_provider_opensandbox::{OpenSandboxConfig, OpenSandboxProvider};

const DOCUMENTS: Documents<'static> =
    Documents { readme: include_str!("../README.md"), manifest: include_str!("../provider.toml") };

#[tokio::test]
async fn fields_and_capabilities_are_the_same_in_the_code_the_manifest_and_the_readme() {
    let info = OpenSandboxProvider::new(OpenSandboxConfig::default()).unwrap().full_info();
    DOCUMENTS.assert_fields(&info, |_| None);
    DOCUMENTS.assert_capabilities(&info, ManifestSays::WhatMayBe);
}
