//! Looking at plugin files: what is accepted, what is refused, and that nothing of them runs.
#![cfg(feature = "dynamic")]

mod common;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use common::{CLibrary, Manifest, fixture_at, folder, set_mode};
use plugin_host::{Checksum, InspectedPlugin, inspect};
use sandbox_core::{ContractVersion, ErrorKind, Result, SandboxError};

fn look(file: &Path) -> Result<InspectedPlugin> {
    inspect(file, &Checksum::Compute).outcome
}

/// The error, after checking what every refusal has to have.
fn refusal(file: &Path) -> SandboxError {
    let inspection = inspect(file, &Checksum::Compute);
    let error = inspection.outcome.expect_err("this file must be refused");
    let last = inspection.steps.last().expect("at least one step was taken");
    assert_eq!(last.outcome.as_ref().unwrap_err(), &error.to_string(), "the trace ends with the refusal");
    assert!(inspection.steps.iter().rev().skip(1).all(|step| step.outcome.is_ok()));
    assert!(error.to_string().contains(&file.display().to_string()), "it names the path: {error}");
    assert!(!error.to_string().contains('\n'));
    error
}

#[track_caller]
fn refused(file: &Path, kind: ErrorKind, says: &str) {
    let error = refusal(file);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error} should say {says:?}");
    if kind == ErrorKind::Plugin {
        assert!(error.to_string().contains("expected") && error.to_string().contains("found"), "{error}");
    }
}

fn built(library: &CLibrary) -> (tempfile::TempDir, PathBuf) {
    let folder = folder();
    let file = library.build(&folder.path().join("lib.so"));
    (folder, file)
}

fn manifest(change: impl FnOnce(&mut Manifest)) -> CLibrary {
    let mut manifest = Manifest::named("acme");
    change(&mut manifest);
    CLibrary::with_section(Some(&manifest.text()))
}

#[test]
fn a_good_plugin_is_described_without_being_run() {
    let (_folder, file) = built(&CLibrary::provider("acme").deadly());
    let inspection = inspect(&file, &Checksum::Compute);
    let plugin = inspection.outcome.unwrap();
    assert_eq!(inspection.name.as_deref(), Some("acme"));
    assert_eq!((plugin.manifest.name.as_str(), plugin.manifest.version.as_str()), ("acme", "0.3.1"));
    assert_eq!(plugin.path, fs::canonicalize(&file).unwrap());
    assert_eq!(plugin.bytes_len, fs::metadata(&file).unwrap().len());
    let sum = Command::new("sha256sum").arg(&file).output().expect("coreutils are here");
    assert!(String::from_utf8_lossy(&sum.stdout).starts_with(&plugin.sha256.unwrap()));
    let names: Vec<&str> = inspection.steps.iter().map(|step| step.name).collect();
    let expected =
        "permissions open read format bounds structure section manifest contract panic target entry-symbol checksum";
    assert_eq!(names.join(" "), expected);
}

#[test]
fn a_newer_minor_is_accepted_and_another_major_is_refused() {
    let host = ContractVersion::current();
    let newer = format!("{}.{}.0", host.major, host.minor + 7);
    let (_folder, file) = built(&manifest(|manifest| manifest.contract = newer));
    assert_eq!(look(&file).unwrap().manifest.contract.minor, host.minor + 7);
    for (contract, found) in [("9.7.0", "found 9.7"), ("0.9.0", "found 0.9")] {
        let (_folder, file) = built(&manifest(|manifest| manifest.contract = contract.to_owned()).deadly());
        refused(&file, ErrorKind::Plugin, found);
        assert_eq!(inspect(&file, &Checksum::Compute).name.as_deref(), Some("acme"), "the name is known all the same");
    }
}

#[test]
fn every_promise_of_the_manifest_is_held_against_this_host() {
    for (library, says) in [
        (manifest(|manifest| manifest.panic = "abort".to_owned()), "found \"abort\""),
        (manifest(|manifest| manifest.target = "plan9-pdp11".to_owned()), "found \"plan9-pdp11\""),
        (manifest(|manifest| manifest.entry = "other_entry".to_owned()), "\"other_entry\""),
        (manifest(|manifest| manifest.name = "Not A Name".to_owned()), "Not A Name"),
        (manifest(|manifest| manifest.name = "x\" broken".to_owned()), "manifest: provider.toml"),
        (manifest(|manifest| manifest.contract = "new".to_owned()), "\"new\" is not MAJOR.MINOR"),
        (CLibrary::with_section(Some("")), "manifest"),
        (CLibrary::with_section(Some("hello")), "manifest"),
        (CLibrary::with_section(None), "section .sbxmeta"),
    ] {
        let (_folder, file) = built(&library.deadly());
        let error = refusal(&file);
        assert_eq!(error.kind(), ErrorKind::Plugin);
        assert!(error.to_string().contains(says), "{error} should say {says:?}");
        assert!(error.help().is_some(), "{error}");
    }
}

#[test]
fn an_entry_that_is_hidden_undefined_or_a_function_is_refused() {
    for code in [
        "__attribute__((visibility(\"hidden\"))) const char test_entry[64] = {0};",
        "static const char test_entry[64] = {0}; const void *use(void) { return test_entry; }",
        "extern const char test_entry[64]; const void *use(void) { return test_entry; }",
        "void test_entry(void) {}",
    ] {
        let (_folder, file) = built(&CLibrary::provider("acme").only_code(code));
        refused(&file, ErrorKind::Plugin, "test_entry");
    }
}

#[test]
fn a_program_an_object_file_and_a_library_for_another_machine_are_called_that() {
    let folder = folder();
    let library = CLibrary::provider("acme").code("int main(void) { return 0; }\n");
    let file = library.build_with("-pie", &folder.path().join("pie.so"));
    refused(&file, ErrorKind::Plugin, "found a program");
    let file = library.build_with("-no-pie", &folder.path().join("program.so"));
    refused(&file, ErrorKind::Plugin, "found a program");
    let file = library.build_with("-c", &folder.path().join("object.so"));
    refused(&file, ErrorKind::Plugin, "found an object file");

    let good = fs::read(library.build(&folder.path().join("good.so"))).unwrap();
    let patched = |offset: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[offset] = value;
        let file = folder.path().join("patched.so");
        fs::write(&file, bytes).unwrap();
        file
    };
    let machine = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    let other = if cfg!(target_arch = "x86_64") { "Aarch64" } else { "X86_64" };
    refused(&patched(18, machine), ErrorKind::Plugin, other);
    refused(&patched(4, 1), ErrorKind::Plugin, "32-bit");
    refused(&patched(5, 2), ErrorKind::Plugin, "byte order");
    refused(&patched(5, 77), ErrorKind::Plugin, "byte order");
    refused(&patched(0, 0), ErrorKind::Plugin, "another kind");
}

#[test]
fn what_is_no_plugin_file_at_all_is_refused_and_nothing_waits_on_it() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("empty.so"), "").unwrap();
    refused(&at("empty.so"), ErrorKind::Plugin, "an empty file");
    fs::write(at("text.so"), "hello\n".repeat(100)).unwrap();
    refused(&at("text.so"), ErrorKind::Plugin, "another kind");
    fs::write(at("macho.so"), [[0xcf, 0xfa, 0xed, 0xfe].as_slice(), &[0; 60]].concat()).unwrap();
    refused(&at("macho.so"), ErrorKind::Plugin, "Mach-O");
    fs::create_dir(at("folder.so")).unwrap();
    refused(&at("folder.so"), ErrorKind::Plugin, "a folder");
    let made = Command::new("mkfifo").arg(at("pipe.so")).status().expect("coreutils are here");
    assert!(made.success());
    refused(&at("pipe.so"), ErrorKind::Plugin, "a pipe");
    let _socket = std::os::unix::net::UnixListener::bind(at("socket.so")).unwrap();
    refused(&at("socket.so"), ErrorKind::Plugin, "socket");
    refused(Path::new("/dev/zero"), ErrorKind::Plugin, "expected");
    refused(&at("missing.so"), ErrorKind::NotFound, "nothing there");
    refused(Path::new("relative.so"), ErrorKind::InvalidInput, "not absolute");
    symlink(at("two.so"), at("one.so")).unwrap();
    symlink(at("one.so"), at("two.so")).unwrap();
    refused(&at("one.so"), ErrorKind::Plugin, "loop");
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let folder = folder();
    let file = folder.path().join("large.so");
    fs::File::create(&file).unwrap().set_len(600 << 20).unwrap();
    refused(&file, ErrorKind::Plugin, "at most 536870912 bytes");
}

#[test]
fn a_file_or_folder_that_others_may_write_is_refused_and_not_run() {
    let folder = folder();
    let canary = folder.path().join("canary");
    let file = CLibrary::provider("acme").canary(&canary).build(&folder.path().join("lib.so"));
    look(&file).unwrap();
    set_mode(&file, 0o777);
    refused(&file, ErrorKind::Plugin, "mode 0777");
    set_mode(&file, 0o755);
    set_mode(folder.path(), 0o777);
    refused(&file, ErrorKind::Plugin, "mode 0777");
    set_mode(folder.path(), 0o1777);
    look(&file).unwrap();
    assert!(!canary.exists(), "nothing of it ever ran");
}

#[test]
fn a_cut_file_is_refused_at_every_length() {
    let (folder, file) = built(&CLibrary::provider("acme"));
    let bytes = fs::read(&file).unwrap();
    let cut = folder.path().join("cut.so");
    let mut lengths: Vec<usize> = (0..bytes.len()).step_by(61).collect();
    // Everything but the last bytes of the section headers: dlopen loads and runs such a file.
    lengths.extend([bytes.len() - 1, bytes.len() - 63, bytes.len() - 64, bytes.len() - 65]);
    for length in lengths {
        fs::write(&cut, &bytes[..length]).unwrap();
        let error = refusal(&cut);
        assert_eq!(error.kind(), ErrorKind::Plugin, "{length}: {error}");
    }
}

#[test]
fn a_real_plugin_that_was_cut_is_refused_before_dlopen_could_die_of_it() {
    let folder = folder();
    let file = fixture_at(&folder.path().join("real.so"));
    look(&file).unwrap();
    let length = fs::metadata(&file).unwrap().len();
    for cut in [length - 1, length / 2, 1 << 20, 64 << 10, 4 << 10] {
        // From long to short, in place.
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(cut).unwrap();
        assert_eq!(refusal(&file).kind(), ErrorKind::Plugin, "{cut}");
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_segment_a_section_or_an_entry_outside_of_the_file_is_refused() {
    let (folder, file) = built(&CLibrary::provider("acme"));
    let good = fs::read(&file).unwrap();
    let number = |at: usize| usize::try_from(u64::from_ne_bytes(good[at..at + 8].try_into().unwrap())).unwrap();
    let (segments, sections) = (number(0x20), number(0x28));
    let size_of_segment = segments + 0x20;
    let (offset_of_section, size_of_section) = (sections + 64 + 0x18, sections + 64 + 0x20);
    let patched = folder.path().join("patched.so");
    for (at, value, says) in [
        (size_of_segment, good.len() as u64 + 1, "for a segment"),
        (size_of_segment, u64::MAX, "for a segment"),
        (offset_of_section, good.len() as u64, "for a section"),
        (size_of_section, u64::MAX - 7, "for a section"),
        (0x28, 0, "section .sbxmeta"),
        (0x20, good.len() as u64, "headers"),
    ] {
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        fs::write(&patched, bytes).unwrap();
        refused(&patched, ErrorKind::Plugin, says);
    }
}

#[test]
fn a_file_with_any_byte_changed_is_accepted_or_refused_but_ends_nothing() {
    let (folder, file) = built(&CLibrary::provider("acme").deadly());
    let good = fs::read(&file).unwrap();
    let changed = folder.path().join("changed.so");
    let unpinned = BTreeMap::new();
    let headers = 0..0x40 + 56 * 12;
    let others = (0..good.len()).step_by(101);
    let section_headers = good.len().saturating_sub(64 * 32)..good.len();
    for position in headers.chain(others).chain(section_headers) {
        for flip in [0xff, 0x01] {
            let mut bytes = good.clone();
            bytes[position] ^= flip;
            fs::write(&changed, bytes).unwrap();
            if let Err(error) = inspect(&changed, &Checksum::IfPinned(&unpinned)).outcome {
                assert_eq!(error.kind(), ErrorKind::Plugin, "{position}: {error}");
            }
        }
    }
}

#[test]
fn a_checksum_is_compared_in_either_case_and_another_is_refused_with_both() {
    let (_folder, file) = built(&CLibrary::provider("acme"));
    let sum = look(&file).unwrap().sha256.unwrap();
    inspect(&file, &Checksum::Expect(&sum.to_uppercase())).outcome.unwrap();
    let other = "0".repeat(64);
    let error = inspect(&file, &Checksum::Expect(&other)).outcome.unwrap_err();
    assert!(error.to_string().contains(&other) && error.to_string().contains(&sum), "{error}");
    let pins = BTreeMap::from([("else".to_owned(), other)]);
    assert_eq!(inspect(&file, &Checksum::IfPinned(&pins)).outcome.unwrap().sha256, None);
}
