//! Plugins of other releases of the contract, and plugins that must not be loaded.

use std::{path::Path, process::Command};

use bytes::Bytes;
use plugin_host::{Checksum, inspect};
use sandbox_abi_tests::{
    build::Fixture,
    child::{self, Ended, Ending},
    hosting::{create, provider, run},
    wait::PATIENCE,
    world::World,
};
use sandbox_core::{CONTRACT_VERSION, ContractVersion, ExecRequest, ReadRange, WriteOptions};
use serde_json::json;

const REFUSED: Ending = Ending::Code(3);

fn probe(file: &Path) -> Ended {
    child::run(Command::new(env!("CARGO_BIN_EXE_probe")).arg("load").arg(file), PATIENCE)
}

#[tokio::test]
async fn a_plugin_of_a_newer_minor_works_in_this_host() {
    let plugin = World::NewerMinor.plugin();
    let manifest = inspect(&plugin, &Checksum::Compute).outcome.unwrap().manifest;
    assert!(manifest.contract > ContractVersion::current(), "{} is newer", manifest.contract);
    let provider = provider(&plugin, "acme", &json!({"greeting": "from the future"})).unwrap();
    let handle = create(&*provider).await.unwrap();
    for (request, expected) in
        [(ExecRequest::argv(["@greet"]), "from the future"), (ExecRequest::shell("printf hi"), "hi")]
    {
        assert_eq!(run(&*provider, &handle, request).await.unwrap().stdout_text(), expected);
    }
    provider.close(&handle).await.unwrap();
}

#[test]
fn a_plugin_of_this_release_works_in_a_host_of_a_newer_minor() {
    let ended = child::run(Command::new(World::NewerMinor.program()).arg(Fixture::Good.path()), PATIENCE);
    assert_eq!(ended.ending, Ending::Code(0), "{ended:?}");
    // The field that this release does not have reads as none; the new methods run the bodies of the host.
    assert!(ended.stdout.contains("later field of its root: None"), "{ended:?}");
    assert!(ended.stdout.ends_with("works\n"), "{ended:?}");
}

#[test]
fn in_a_host_of_its_own_release_the_newer_plugin_has_the_later_field() {
    let ended = child::run(Command::new(World::NewerMinor.program()).arg(World::NewerMinor.plugin()), PATIENCE);
    assert!(ended.stdout.contains("later field of its root: Some(42)"), "{ended:?}");
}

#[tokio::test]
async fn memory_of_a_plugin_with_another_allocator_and_edition_is_freed_by_its_owner_alone() {
    const BYTES: usize = 1024 * 1024;
    let plugin = Fixture::Foreign.path();
    // Texts, errors, streams and bodies in both directions. Memory that the other side frees ends this process.
    for _ in 0..20 {
        let refused = provider(&plugin, "acme", &json!({"greting": "x"})).err().expect("an unknown key");
        assert_eq!(refused.help(), Some("did you mean \"greeting\"?"));
        let provider = provider(&plugin, "acme", &json!({"greeting": "of another heap"})).unwrap();
        let handle = create(&*provider).await.unwrap();
        for (request, expected) in
            [(ExecRequest::argv(["@greet"]), "of another heap"), (ExecRequest::shell("printf hi; exit 0"), "hi")]
        {
            assert_eq!(run(&*provider, &handle, request).await.unwrap().stdout_text(), expected);
        }
        let flood = ExecRequest::argv(["@flood", "32", "65536"]);
        assert_eq!(run(&*provider, &handle, flood).await.unwrap().stdout.len(), 32 * 65_536);
        let files = provider.as_files().unwrap();
        let body = Bytes::from(vec![0x5a; BYTES]);
        files.write_file(&handle, "f".into(), body.clone(), WriteOptions::default()).await.unwrap();
        let range = ReadRange { offset: 0, length: None };
        assert_eq!(files.read_file(&handle, "f".into(), range).await.unwrap(), body);
        // Bodies that are cut into parts, and parts that outlive the call.
        let part = files.read_file(&handle, "f".into(), range).await.unwrap().slice(7..9);
        provider.close(&handle).await.unwrap();
        assert_eq!(part, [0x5a; 2].as_slice());
    }
}

#[test]
fn a_plugin_of_another_major_is_refused_with_both_versions_before_any_of_it_runs() {
    let ended = probe(&World::OtherMajor.plugin());
    assert_eq!(ended.ending, REFUSED, "{ended:?}");
    assert!(ended.stdout.starts_with("refused plugin at contract: "), "{ended:?}");
    let ours = ContractVersion::parse(CONTRACT_VERSION).unwrap();
    for version in ["2.0".to_owned(), ours.to_string()] {
        assert!(ended.stdout.contains(&version), "{ended:?}");
    }
}

#[test]
fn a_plugin_whose_by_value_struct_has_one_more_field_is_refused_in_one_line() {
    let ended = probe(&World::BrokenLayout.plugin());
    assert_eq!(ended.ending, REFUSED, "{ended:?}");
    assert!(ended.stdout.starts_with("refused plugin at layout: "), "{ended:?}");
    assert_eq!(ended.stdout.lines().count(), 1, "{ended:?}");
    // abi_stable would print pages.
    assert!(ended.stdout.len() < 800, "{} bytes", ended.stdout.len());
}

#[test]
fn a_plugin_that_aborts_on_panic_is_refused_before_any_of_it_runs() {
    let ended = probe(&Fixture::PanicAbort.path());
    assert_eq!(ended.ending, REFUSED, "{ended:?}");
    assert!(ended.stdout.starts_with("refused plugin at panic: "), "{ended:?}");
    assert!(ended.stdout.contains("\"unwind\"") && ended.stdout.contains("\"abort\""), "{ended:?}");
}

#[test]
fn a_plugin_of_which_only_the_last_crate_aborts_on_panic_is_refused_too() {
    // `cargo rustc -- -C panic=abort`: sandbox-core unwinds, and yet every panic would end the host.
    let ended = probe(&World::LastCrateAborts.plugin());
    assert_eq!(ended.ending, REFUSED, "{ended:?}");
    assert!(ended.stdout.starts_with("refused plugin at panic: "), "{ended:?}");
}
