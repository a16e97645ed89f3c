//! Loading plugin files into this process.
#![cfg(feature = "dynamic")]

mod common;

use std::{
    error::Error,
    fs,
    io::Write,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};

use common::{CLibrary, Manifest, fixture, fixture_at, folder};
use plugin_host::{Checksum, Loading, load};
use sandbox_core::{ErrorKind, SandboxError, abi::HostInfo};
use serde_json::json;

fn attempt(file: &Path) -> Loading {
    load(file, &Checksum::Compute, &HostInfo::new())
}

fn refusal(file: &Path) -> SandboxError {
    let loading = attempt(file);
    let error = loading.outcome.expect_err("this file must be refused");
    assert_eq!(error.kind(), ErrorKind::Plugin);
    assert_eq!(loading.steps.last().unwrap().outcome.as_ref().unwrap_err(), &error.to_string());
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
    error
}

#[test]
fn a_refused_file_does_not_run() {
    let folder = folder();
    let canary = folder.path().join("canary");
    let mut old = Manifest::named("acme");
    old.contract = "9.0.0".to_owned();
    for section in [None, Some(old.text())] {
        let library = CLibrary::with_section(section.as_deref()).canary(&canary);
        refusal(&library.build(&folder.path().join("lib.so")));
        assert!(!canary.exists());
        // The canary sings when it may: otherwise its silence would mean nothing.
    }
    refusal(&CLibrary::provider("acme").canary(&canary).build(&folder.path().join("passes.so")));
    assert!(canary.exists(), "this one passed every check and was loaded; only then its entry was refused");
}

#[test]
fn the_linker_s_own_text_is_kept_with_the_path_of_the_file() {
    let folder = folder();
    let library =
        CLibrary::provider("acme").code("void nowhere_to_be_found(void); void use(void) { nowhere_to_be_found(); }\n");
    let undefined = library.build(&folder.path().join("undefined.so"));
    let error = refusal(&undefined);
    assert!(error.to_string().contains("undefined symbol: nowhere_to_be_found"), "{error}");
    assert!(error.source().unwrap().to_string().contains("nowhere_to_be_found"));
    assert!(!error.to_string().contains("/proc/self/fd"), "{error}");
    assert!(error.help().is_some());

    let needed = CLibrary::with_section(None).only_code("int needed(void) { return 1; }\n");
    let needed = needed.build(&folder.path().join("libneeded-by-test.so"));
    let library = CLibrary::provider("acme").code("int needed(void); int use(void) { return needed(); }\n");
    let file =
        library.flag(needed.display().to_string()).flag("-Wl,-soname,x.so").build(&folder.path().join("needs.so"));
    fs::remove_file(needed).unwrap();
    let error = refusal(&file);
    assert!(error.to_string().contains("cannot open shared object file"), "{error}");
}

#[test]
fn an_entry_symbol_that_is_no_entry_is_refused_and_its_library_is_not_loaded_again() {
    let folder = folder();
    let file = CLibrary::provider("acme").build(&folder.path().join("lib.so"));
    let first = refusal(&file);
    let again = attempt(&file);
    assert_eq!(again.outcome.unwrap_err().to_string(), first.to_string());
    assert_eq!(again.steps.last().unwrap().name, "already-loaded");
}

#[test]
fn a_real_plugin_is_loaded_shaken_hands_with_and_makes_providers() {
    let folder = folder();
    let loading = attempt(&fixture_at(&folder.path().join("real.so")));
    let plugin = loading.outcome.unwrap();
    assert_eq!(plugin.manifest.name, "fixture");
    let provider = plugin.entry.new_provider(&json!({"mark": "here"})).unwrap();
    assert_eq!((provider.name(), common::mark(&provider).as_str()), ("fixture", "here"));
    let names: Vec<&str> = loading.steps.iter().map(|step| step.name).collect();
    assert!(names.ends_with(&["name", "dlopen", "unchanged", "symbol", "layout", "describe", "init"]), "{names:?}");
}

#[test]
fn a_file_is_loaded_once_through_every_name_and_a_copy_is_another_library() {
    let folder = folder();
    let file = fixture_at(&folder.path().join("real.so"));
    attempt(&file).outcome.unwrap();
    let (soft, hard) = (folder.path().join("soft.so"), folder.path().join("hard.so"));
    std::os::unix::fs::symlink(&file, &soft).unwrap();
    fs::hard_link(&file, &hard).unwrap();
    for link in [&file, &soft, &hard] {
        let loading = attempt(link);
        assert!(loading.steps.iter().any(|step| step.name == "already-loaded"), "{}", link.display());
        loading.outcome.unwrap();
    }
    let copy = attempt(&fixture_at(&folder.path().join("copy.so")));
    assert!(copy.steps.iter().any(|step| step.name == "dlopen"));
    copy.outcome.unwrap();
}

#[test]
fn a_file_that_was_overwritten_after_it_was_loaded_is_refused_and_a_renamed_one_is_a_new_plugin() {
    let folder = folder();
    let file = CLibrary::provider("acme").build(&folder.path().join("lib.so"));
    refusal(&file);
    // The same inode with one byte more. (Bytes that are mapped may not change: this process would die of it.)
    fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(b"x").unwrap();
    let error = refusal(&file);
    assert!(error.to_string().contains("overwritten"), "{error}");
    let other = CLibrary::provider("other").build(&folder.path().join("other.so"));
    fs::rename(&other, &file).unwrap();
    assert_eq!(attempt(&file).name.as_deref(), Some("other"), "another inode is another plugin");
}

#[test]
fn a_pin_is_held_against_a_library_that_is_loaded_already() {
    let folder = folder();
    let file = fixture_at(&folder.path().join("real.so"));
    attempt(&file).outcome.unwrap();
    let error = load(&file, &Checksum::Expect(&"0".repeat(64)), &HostInfo::new()).outcome.unwrap_err();
    assert!(error.to_string().contains("SHA-256"), "{error}");
}

#[test]
fn many_threads_that_want_one_file_get_one_library() {
    let folder = folder();
    let file = fixture_at(&folder.path().join("real.so"));
    let loads: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| attempt(&file))).collect();
        let loadings = threads.into_iter().map(|thread| thread.join().unwrap());
        loadings.filter(|loading| loading.steps.iter().any(|step| step.name == "dlopen")).count()
    });
    assert_eq!(loads, 1);
}

#[test]
fn a_file_that_is_swapped_while_it_is_loaded_never_gets_another_one_run() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let canary = at("canary");
    let passes = CLibrary::provider("acme").build(&at("passes"));
    let evil = CLibrary::with_section(None).canary(&canary).build(&at("evil"));
    let (file, stop) = (at("lib.so"), AtomicBool::new(false));
    fs::copy(&passes, &file).unwrap();
    let swaps = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0;
            while !stop.load(Ordering::Relaxed) {
                fs::hard_link(&evil, at("next")).unwrap();
                fs::rename(at("next"), &file).unwrap();
                // Each time another inode: one that is loaded already would not be opened again.
                fs::copy(&passes, at("next")).unwrap();
                fs::rename(at("next"), &file).unwrap();
                swaps += 1;
            }
            swaps
        });
        let passed = (0..200).filter(|_| attempt(&file).steps.iter().any(|step| step.name == "symbol")).count();
        stop.store(true, Ordering::Relaxed);
        assert!(passed > 0, "some of them were loaded");
        swapper.join().unwrap()
    });
    assert!(swaps > 0);
    assert!(!canary.exists());
}

/// How often a file is mapped as code in this process.
fn images(file: &Path) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let file = fs::canonicalize(file).unwrap();
    maps.lines().filter(|line| line.contains(file.to_str().unwrap()) && line.contains(" r-xp ")).count()
}

#[test]
fn nothing_is_unloaded_whatever_is_dropped_and_whatever_was_refused() {
    let folder = folder();
    let file = fixture_at(&folder.path().join("real.so"));
    let plugin = attempt(&file).outcome.unwrap();
    let provider = plugin.entry.new_provider(&json!({})).unwrap();
    drop((plugin, provider));
    assert_eq!(images(&file), 1);
    let file = CLibrary::provider("acme").build(&folder.path().join("refused.so"));
    refusal(&file);
    assert_eq!(images(&file), 1, "its constructors ran, and may have left threads");
}

#[test]
fn every_file_is_a_library_of_its_own_because_the_descriptor_of_the_one_before_stays_open() {
    // glibc knows each as /proc/self/fd/N: with a number that is used again, the next file would be the first library.
    let folder = folder();
    for number in 0..8 {
        let file = folder.path().join(format!("lib{number}.so"));
        let is_sound = number % 2 == 0;
        let file = if is_sound { fixture_at(&file) } else { CLibrary::provider("acme").build(&file) };
        assert_eq!(attempt(&file).outcome.is_ok(), is_sound);
        assert_eq!(images(&file), 1, "{number}");
        let mut open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let resolved = fs::canonicalize(&file).unwrap();
        assert!(open.any(|entry| fs::read_link(entry.path()).is_ok_and(|found| found == resolved)), "{number}");
    }
}

#[test]
fn a_symbol_of_one_plugin_is_not_seen_by_another() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let first = CLibrary::provider("first").code("int of_the_first(void) { return 1; }\n").build(&at("first.so"));
    assert!(attempt(&first).steps.iter().any(|step| step.name == "symbol"), "it was loaded");
    let second =
        CLibrary::provider("second").code("int of_the_first(void); int use(void) { return of_the_first(); }\n");
    let error = refusal(&second.build(&at("second.so")));
    assert!(error.to_string().contains("undefined symbol: of_the_first"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_plugin_whose_code_says_something_else_than_the_section_of_its_file_is_refused() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let objcopy = |arguments: &[String], output: &Path| {
        let mut objcopy = Command::new("objcopy");
        let status = objcopy.args(arguments).arg(fixture()).arg(output).status();
        assert!(status.expect("these tests need binutils (apt-get install binutils)").success());
    };
    let section = at("section");
    objcopy(&["--dump-section".to_owned(), format!(".sbxmeta={}", section.display())], &at("copy"));
    let text = fs::read_to_string(&section).unwrap();
    assert!(text.contains("for the tests"));
    fs::write(&section, text.replace("for the tests", "for everybody")).unwrap();
    // The section that the code reads is there under another name; the one that a host finds says something else.
    let arguments = ["--rename-section", ".sbxmeta=.code_reads", "--add-section"].map(str::to_owned);
    let lying = at("lying.so");
    objcopy(&[&arguments[..], &[format!(".sbxmeta={}", section.display())]].concat(), &lying);
    let error = refusal(&lying);
    assert_eq!(attempt(&lying).outcome.unwrap_err().to_string(), error.to_string(), "and it stays refused");
    assert!(error.to_string().contains("describe: expected what its manifest section holds"), "{error}");
}
