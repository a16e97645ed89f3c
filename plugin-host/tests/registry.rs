//! The rules of the registry that need no plugin file: registered and linked providers, names, configuration.

mod common;

use common::{Stub, StubSettings, lonely, mark, stub};
use plugin_host::{BuiltinSource, Origin, Override, PluginHost, ProviderState};
use sandbox_core::{ErrorKind, SandboxError};
use serde_json::{Value, json};

/// A provider that this program links; its manifest calls it `fixture`.
mod linked {
    use super::{Stub, StubSettings};

    sandbox_core::export_provider!(|settings: StubSettings| Ok(Stub(settings)));
}

fn host() -> PluginHost {
    let builder = lonely().builtin("fixture", BuiltinSource::Linked(linked::plugin_entry));
    builder.builtin("absent", BuiltinSource::Installed).build().unwrap()
}

#[track_caller]
fn refused<T>(result: Result<T, SandboxError>, kind: ErrorKind, says: &str) -> SandboxError {
    let Err(error) = result else { panic!("this must be refused") };
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error} should say {says:?}");
    error
}

#[test]
fn a_registered_provider_is_made_from_its_settings_which_are_always_an_object() {
    let host = host();
    let factory = |settings: Value| {
        assert!(settings.is_object());
        stub(settings["mark"].as_str().unwrap_or("no mark"))(settings)
    };
    host.register_provider("mine", factory, Override::No).unwrap();
    assert_eq!(mark(&host.create_provider(&json!({"mine": {"mark": "x"}})).unwrap()), "x");
    assert_eq!(mark(&host.create_provider(&json!({"mine": null})).unwrap()), "no mark");
    assert_eq!(mark(&host.create("mine", &Value::Null).unwrap()), "no mark");
}

#[test]
fn a_taken_name_is_refused_unless_overridden_and_then_the_new_one_is_used() {
    let host = host();
    host.register_provider("mine", stub("first"), Override::No).unwrap();
    refused(host.register_provider("mine", stub("second"), Override::No), ErrorKind::AlreadyExists, "registered");
    assert_eq!(mark(&host.create("mine", &json!({})).unwrap()), "first");
    host.register_provider("mine", stub("second"), Override::Yes).unwrap();
    assert_eq!(mark(&host.create("mine", &json!({})).unwrap()), "second");

    for built_in in ["fixture", "absent"] {
        let error =
            refused(host.register_provider(built_in, stub("x"), Override::No), ErrorKind::AlreadyExists, "built in");
        assert!(error.help().unwrap().contains("Override::Yes"));
    }
    assert_eq!(mark(&host.create("fixture", &json!({})).unwrap()), "");
    host.register_provider("fixture", stub("registered"), Override::Yes).unwrap();
    assert_eq!(mark(&host.create("fixture", &json!({})).unwrap()), "registered", "explicit comes before built-in");
}

#[test]
fn a_name_that_is_none_cannot_be_registered_or_reserved() {
    let host = host();
    for name in ["", "Upper", "-dash", "a b", "../x", &"x".repeat(65)] {
        refused(host.register_provider(name, stub("x"), Override::Yes), ErrorKind::InvalidInput, "provider name");
        refused(lonely().builtin(name, BuiltinSource::Installed).build(), ErrorKind::InvalidInput, "provider name");
    }
}

#[test]
fn a_configuration_is_one_name_with_settings() {
    let host = host();
    for (config, says) in [
        (json!({}), "exactly one key"),
        (json!({"fixture": {}, "other": {}}), "it has fixture, other"),
        (json!({"": {}}), "empty"),
        (json!({"fixture": 3}), "settings of provider \"fixture\" must be an object"),
        (json!(["fixture"]), "it is a list"),
    ] {
        refused(host.create_provider(&config), ErrorKind::InvalidInput, says);
    }
    refused(host.create("", &json!({})), ErrorKind::InvalidInput, "empty");
    refused(host.create("fixture", &json!("text")), ErrorKind::InvalidInput, "must be an object");
}

#[test]
fn a_linked_provider_is_made_through_the_same_entry_and_wins_over_an_installed_file() {
    let host = host();
    let provider = host.create_provider(&json!({"fixture": {"mark": "linked"}})).unwrap();
    assert_eq!((provider.name(), mark(&provider).as_str()), ("fixture", "linked"));
    let error = refused(host.create("fixture", &json!({"marc": 1})), ErrorKind::InvalidInput, "marc");
    assert_eq!(error.provider(), Some("fixture"));

    let both = lonely().builtin("fixture", BuiltinSource::Installed);
    let both = both.builtin("fixture", BuiltinSource::Linked(linked::plugin_entry)).build().unwrap();
    assert_eq!(mark(&both.create("fixture", &json!({"mark": "linked"})).unwrap()), "linked");
}

#[test]
fn a_provider_that_calls_itself_something_else_is_refused() {
    let host = lonely().builtin("other", BuiltinSource::Linked(linked::plugin_entry)).build().unwrap();
    refused(host.create("other", &json!({})), ErrorKind::Plugin, "found \"fixture\"");
    refused(
        self::host().create("fixture", &json!({"call_itself": "somebody"})),
        ErrorKind::Plugin,
        "calls itself \"somebody\"",
    );
}

#[test]
fn an_unknown_name_is_answered_with_those_there_are_and_the_nearest() {
    let host = lonely()
        .builtin("fixture", BuiltinSource::Linked(linked::plugin_entry))
        .builtin("absent", BuiltinSource::Installed)
        .plugin_path(["/nowhere/plugins"])
        .build()
        .unwrap();
    host.register_provider("mine", stub("x"), Override::No).unwrap();
    let error = refused(host.create("fixtrue", &json!({})), ErrorKind::NotFound, "available: absent, fixture, mine;");
    assert!(error.to_string().contains("/nowhere/plugins"), "{error}");
    assert_eq!(error.help(), Some("did you mean \"fixture\"?"));
    let error = refused(host.create("qqq", &json!({})), ErrorKind::NotFound, "\"qqq\"");
    assert!(error.help().is_some());
    refused(host.describe("qqq"), ErrorKind::NotFound, "\"qqq\"");
}

#[test]
fn the_list_is_sorted_says_what_is_known_and_makes_nothing() {
    let host = host();
    let explode = |_: Value| -> Result<_, SandboxError> { panic!("listing makes nothing") };
    host.register_provider("zebra", explode, Override::No).unwrap();
    host.register_provider("fixture", explode, Override::Yes).unwrap();
    let listings = host.list_providers();
    let shown: Vec<(&str, Origin)> = listings.iter().map(|listing| (listing.name.as_str(), listing.origin)).collect();
    assert_eq!(
        shown,
        [
            ("absent", Origin::BuiltIn),
            ("fixture", Origin::Explicit),
            ("fixture", Origin::BuiltIn),
            ("zebra", Origin::Explicit)
        ]
    );
    assert_eq!(listings[1].state, ProviderState::Ready);
    assert_eq!(listings[2].state, ProviderState::Shadowed { by: Origin::Explicit });
    assert_eq!(listings[2].version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
    assert!(listings[2].contract.is_some());
    let json = serde_json::to_value(&listings).unwrap();
    assert_eq!(json[2]["contract"], json!(listings[2].contract.unwrap().to_string()));
    assert_eq!(json[2]["state"], json!({"shadowed": {"by": "explicit"}}));
}

#[test]
fn relative_places_and_pins_that_are_none_are_refused_by_the_builder() {
    refused(lonely().plugin_path(["plugins"]).build(), ErrorKind::InvalidInput, "plugin_path: plugins is not");
    refused(lonely().provider_dirs(["./x"]).build(), ErrorKind::InvalidInput, "provider_dirs: ./x is not");
    for bad in ["", "abc", &"g".repeat(64), &"0".repeat(65)] {
        refused(lonely().pin("acme", bad).build(), ErrorKind::InvalidInput, "64 hex digits");
    }
    let sum = "0".repeat(64);
    refused(lonely().pin("acme", &sum).pin("acme", &sum).build(), ErrorKind::AlreadyExists, "pinned twice");
}

#[test]
fn a_host_is_shared_by_its_clones_and_by_threads() {
    let host = host();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let host = host.clone();
            scope.spawn(move || {
                host.register_provider(&format!("p{number}"), stub("x"), Override::No).unwrap();
                host.create("fixture", &json!({})).unwrap();
            });
        }
    });
    assert_eq!(host.list_providers().len(), 10);
}

#[cfg(not(feature = "dynamic"))]
mod without_plugins {
    use super::*;

    #[test]
    fn an_installed_provider_is_refused_because_this_build_cannot_load_plugins() {
        let error = refused(host().create("absent", &json!({})), ErrorKind::Plugin, "this build cannot load plugins");
        assert!(error.help().unwrap().contains("\"dynamic\""));
        let listing = &host().list_providers()[0];
        assert!(matches!(&listing.state, ProviderState::Refused(why) if why.contains("cannot load plugins")));
    }

    #[test]
    fn a_discovered_provider_is_refused_by_the_name_of_its_file() {
        let folder = common::folder();
        std::fs::write(folder.path().join("libsandbox_provider_acme.so"), "").unwrap();
        let host = lonely().plugin_path([folder.path()]).build().unwrap();
        refused(host.create("acme", &json!({})), ErrorKind::Plugin, "this build cannot load plugins");
        let error = refused(host.create("other", &json!({})), ErrorKind::NotFound, "libsandbox_provider_acme.so");
        assert!(error.help().unwrap().contains("\"dynamic\""));
    }
}
