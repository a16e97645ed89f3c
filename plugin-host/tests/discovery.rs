//! The rules of the registry for plugin files: installed built-ins and discovered plugins.
#![cfg(feature = "dynamic")]

mod common;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use common::{CLibrary, Manifest, fixture_at, folder, lonely, mark, set_mode, stub};
use plugin_host::{BuiltinSource, Origin, Override, PluginHost, ProviderListing, ProviderState};
use sandbox_core::{ErrorKind, SandboxError};
use serde_json::json;

fn searching(place: &Path) -> PluginHost {
    lonely().plugin_path([place]).build().unwrap()
}

fn acme(file: PathBuf) -> PathBuf {
    CLibrary::provider("acme").build(&file)
}

#[track_caller]
fn refused<T>(result: Result<T, SandboxError>, kind: ErrorKind, says: &str) -> SandboxError {
    let Err(error) = result else { panic!("this must be refused") };
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error} should say {says:?}");
    error
}

fn was_loaded(host: &PluginHost, name: &str) -> bool {
    host.load_trace(name).iter().any(|step| step.name == "dlopen" || step.name == "already-loaded")
}

fn listing<'a>(listings: &'a [ProviderListing], name: &str) -> &'a ProviderListing {
    listings.iter().find(|listing| listing.name == name).unwrap_or_else(|| panic!("{name} is not listed"))
}

#[test]
fn a_discovered_plugin_is_listed_without_being_loaded_and_loaded_on_first_use() {
    let folder = folder();
    let file = fixture_at(&folder.path().join("libanything.so"));
    let host = searching(folder.path());
    let listings = host.list_providers();
    assert_eq!(listings.len(), 1);
    assert_eq!((listings[0].name.as_str(), listings[0].origin), ("fixture", Origin::Discovered));
    assert_eq!((&listings[0].path, &listings[0].state), (&Some(file.clone()), &ProviderState::Ready));
    let description = host.describe("fixture").unwrap();
    assert_eq!(description.sha256.unwrap().len(), 64);
    assert_eq!(description.manifest.unwrap().description, "A provider for the tests of plugin-host.");
    assert!(!was_loaded(&host, "fixture"));
    assert!(host.load_trace("fixture").iter().any(|step| step.name == "manifest"));
    let provider = host.create_provider(&json!({"fixture": {"mark": "found"}})).unwrap();
    assert_eq!(mark(&provider), "found");
    assert!(was_loaded(&host, "fixture"));
}

#[test]
fn only_libraries_are_looked_at_in_a_folder_and_a_file_may_be_given_itself() {
    let folder = folder();
    fs::write(folder.path().join("notes.txt"), "not looked at").unwrap();
    fs::write(folder.path().join("lib.so.old"), "not looked at").unwrap();
    fs::write(folder.path().join(".libacme.so"), "being written").unwrap();
    let file = acme(folder.path().join("acme.plugin"));
    assert!(searching(folder.path()).list_providers().is_empty());
    assert_eq!(searching(&file).list_providers()[0].name, "acme");
}

#[test]
fn a_failing_file_stops_no_other_and_its_reason_is_given_by_manifest_name_and_by_file_name() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let mut old = Manifest::named("acme");
    old.contract = "9.0.0".to_owned();
    CLibrary::with_section(Some(&old.text())).deadly().build(&at("liba.so"));
    fs::write(at("libsandbox_provider_my_cloud.so"), "text").unwrap();
    symlink(at("nowhere"), at("libdangling.so")).unwrap();
    fixture_at(&at("libz.so"));
    let host = searching(folder.path());
    host.create("fixture", &json!({})).unwrap();
    for _ in 0..2 {
        refused(host.create("acme", &json!({})), ErrorKind::Plugin, "found 9.0");
        refused(host.create("a", &json!({})), ErrorKind::Plugin, "found 9.0");
        let error = refused(host.create("my-cloud", &json!({})), ErrorKind::Plugin, "another kind");
        assert_eq!(error.provider(), Some("my-cloud"));
        refused(host.create("dangling", &json!({})), ErrorKind::NotFound, "libdangling.so");
    }
    let listings = host.list_providers();
    assert_eq!(listings.len(), 4);
    assert!(matches!(&listing(&listings, "acme").state, ProviderState::Refused(why) if why.contains("9.0")));
    assert_eq!(host.load_trace("acme").last().unwrap().name, "contract");
    let error = refused(host.create("nobody", &json!({})), ErrorKind::NotFound, "available: fixture;");
    assert!(error.to_string().contains("refused there") && error.to_string().contains("liba.so"), "{error}");
}

#[test]
fn two_files_of_one_name_are_an_error_each_time_that_names_both_and_neither_runs() {
    let (one, two) = (folder(), folder());
    let canary = one.path().join("canary");
    let library = CLibrary::provider("acme").canary(&canary);
    let first = library.build(&one.path().join("libone.so"));
    let second = library.build(&two.path().join("libtwo.so"));
    let host = lonely().plugin_path([one.path(), two.path()]).build().unwrap();
    for _ in 0..2 {
        let error = refused(host.create("acme", &json!({})), ErrorKind::AlreadyExists, &first.display().to_string());
        assert!(error.to_string().contains(&second.display().to_string()), "{error}");
        refused(host.describe("acme"), ErrorKind::AlreadyExists, "2 plugin files");
    }
    let listings = host.list_providers();
    assert!(listings.iter().all(|listing| matches!(&listing.state, ProviderState::Refused(_))), "{listings:?}");
    assert!(!canary.exists());
    fs::remove_file(second).unwrap();
    host.rescan();
    host.describe("acme").unwrap();
}

#[test]
fn one_file_through_links_is_one_plugin() {
    let folder = folder();
    let file = fixture_at(&folder.path().join("liba.so"));
    symlink(&file, folder.path().join("libb.so")).unwrap();
    fs::hard_link(&file, folder.path().join("libc.so")).unwrap();
    let host = lonely().plugin_path([folder.path(), folder.path()]).plugin_path([&file]).build().unwrap();
    assert_eq!(host.list_providers().len(), 1);
    host.create("fixture", &json!({})).unwrap();
}

/// Counts the events of one level of this thread.
struct Counted(tracing::Level, Arc<AtomicUsize>);

impl tracing::Subscriber for Counted {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == self.0
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_discovered_plugin_of_a_taken_name_is_shadowed_warned_of_once_and_never_run() {
    let folder = folder();
    let canary = folder.path().join("canary");
    CLibrary::provider("acme").canary(&canary).build(&folder.path().join("libacme.so"));
    CLibrary::provider("local").canary(&canary).build(&folder.path().join("liblocal.so"));
    let builder = lonely().plugin_path([folder.path()]).builtin("local", BuiltinSource::Installed);
    let host = builder.build().unwrap();
    let warnings = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Counted(tracing::Level::WARN, warnings.clone()), || {
        host.list_providers();
        assert_eq!(warnings.load(Ordering::Relaxed), 1, "of the built-in's name");
        host.register_provider("acme", stub("mine"), Override::No).unwrap();
        assert_eq!(warnings.load(Ordering::Relaxed), 2, "and of the registered name, as soon as it is");
        host.list_providers();
        assert_eq!(mark(&host.create("acme", &json!({})).unwrap()), "mine");
        refused(host.create("local", &json!({})), ErrorKind::NotFound, "not installed");
        assert_eq!(warnings.load(Ordering::Relaxed), 2);
    });
    let listings = host.list_providers();
    let shadowed: Vec<(&str, &ProviderState)> = listings
        .iter()
        .filter(|listing| listing.origin == Origin::Discovered)
        .map(|listing| (listing.name.as_str(), &listing.state))
        .collect();
    assert_eq!(
        shadowed,
        [
            ("acme", &ProviderState::Shadowed { by: Origin::Explicit }),
            ("local", &ProviderState::Shadowed { by: Origin::BuiltIn })
        ]
    );
    assert!(!canary.exists());
}

#[test]
fn a_registration_that_takes_the_place_of_another_provider_is_told_and_one_that_does_not_is_not() {
    let host = lonely().builtin("local", BuiltinSource::Installed).build().unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Counted(tracing::Level::INFO, told.clone()), || {
        host.register_provider("mine", stub("first"), Override::Yes).unwrap();
        assert_eq!(told.load(Ordering::Relaxed), 0);
        host.register_provider("mine", stub("second"), Override::Yes).unwrap();
        host.register_provider("local", stub("registered"), Override::Yes).unwrap();
        assert_eq!(told.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_built_in_is_loaded_from_the_first_provider_folder_that_has_its_file() {
    let (empty, full) = (folder(), folder());
    let host = lonely()
        .builtin("fixture", BuiltinSource::Installed)
        .provider_dirs([empty.path(), full.path()])
        .build()
        .unwrap();
    let error = refused(host.create("fixture", &json!({})), ErrorKind::NotFound, "not installed");
    for folder in [&empty, &full] {
        let path = folder.path().join("libsandbox_provider_fixture.so");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    assert!(error.help().unwrap().contains("cargo xtask build-plugins"));
    assert!(matches!(&host.list_providers()[0].state, ProviderState::NotInstalled { tried } if tried.len() == 2));

    let file = fixture_at(&full.path().join("libsandbox_provider_fixture.so"));
    assert_eq!(host.list_providers()[0].state, ProviderState::Ready, "installed since then");
    assert_eq!(host.describe("fixture").unwrap().path, Some(fs::canonicalize(file).unwrap()));
    assert!(!was_loaded(&host, "fixture"));
    host.create("fixture", &json!({})).unwrap();
    assert!(was_loaded(&host, "fixture"));
}

#[test]
fn a_built_in_whose_file_is_refused_or_of_another_provider_is_an_error_and_no_other_folder_is_tried() {
    let (first, second) = (folder(), folder());
    let canary = first.path().join("canary");
    let file = first.path().join("libsandbox_provider_fixture.so");
    CLibrary::provider("impostor").canary(&canary).build(&file);
    fixture_at(&second.path().join("libsandbox_provider_fixture.so"));
    let builder = lonely().builtin("fixture", BuiltinSource::Installed);
    let host = builder.provider_dirs([first.path(), second.path()]).build().unwrap();
    let error = refused(host.create("fixture", &json!({})), ErrorKind::Plugin, "expected the provider \"fixture\"");
    assert!(error.to_string().contains("found \"impostor\""), "{error}");
    assert!(matches!(&host.list_providers()[0].state, ProviderState::Refused(_)));
    set_mode(&file, 0o666);
    refused(host.create("fixture", &json!({})), ErrorKind::Plugin, "mode 0666");
    assert_eq!(host.load_trace("fixture").last().unwrap().name, "permissions");
    assert!(!canary.exists());
}

#[test]
fn a_pin_lets_one_file_pass_and_no_other() {
    let folder = folder();
    fixture_at(&folder.path().join("libfixture.so"));
    let sum = searching(folder.path()).describe("fixture").unwrap().sha256.unwrap();
    let pinned = |sum: &str| lonely().plugin_path([folder.path()]).pin("fixture", sum).build().unwrap();
    pinned(&sum.to_uppercase()).create("fixture", &json!({})).unwrap();
    let host = pinned(&"0".repeat(64));
    refused(host.create("fixture", &json!({})), ErrorKind::Plugin, "SHA-256");
    assert!(matches!(&host.list_providers()[0].state, ProviderState::Refused(_)));
    assert!(!was_loaded(&host, "fixture"));
}

#[test]
fn one_hundred_hosts_in_one_process_share_one_library() {
    let folder = folder();
    let file = fixture_at(&folder.path().join("libsandbox_provider_fixture.so"));
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let make = |number: usize| {
        let builder = if number.is_multiple_of(2) {
            lonely().builtin("fixture", BuiltinSource::Installed).provider_dirs([folder.path()])
        } else {
            lonely().plugin_path([folder.path()])
        };
        let host = builder.build().unwrap();
        let provider = host.create("fixture", &json!({"mark": number.to_string()})).unwrap();
        assert_eq!(mark(&provider), number.to_string());
        (host, provider)
    };
    let first = make(0);
    let (files_before, threads_before) = (open_files(), threads());
    let others: Vec<_> = (1..100).map(make).collect();
    // Other tests of this process open files and threads too; one hundred of either would show.
    assert!(open_files() < files_before + 50 && threads() < threads_before + 50);
    let images = fs::read_to_string("/proc/self/maps").unwrap();
    let images = images.lines().filter(|line| line.contains(file.to_str().unwrap()) && line.contains(" r-xp ")).count();
    assert_eq!(images, 1);
    drop((first, others));
}
