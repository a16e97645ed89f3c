//! The providers of this process by name.

use std::sync::Arc;

use crate::fake::Fake;
use sandbox_api::{
    AsyncSandbox, BUILTIN_PROVIDERS, ErrorKind, Override, ProviderOrigin, Sandbox, SandboxError, SandboxProvider,
    create_provider, get_provider, list_providers, register_provider, resolve_provider_config, serde_json::json,
};

#[test]
fn a_registered_provider_is_made_by_name_with_its_settings() {
    let make = |settings: sandbox_api::serde_json::Value| {
        if settings != json!({"ok": true}) {
            return Err(SandboxError::invalid_input("ok", "must be true"));
        }
        Ok(Fake::with(&[]) as Arc<dyn SandboxProvider>)
    };
    register_provider("ours", make, Override::No).unwrap();
    let named = json!({"block": {"ours": {"ok": true}, "default_metadata": {}}});
    let config = resolve_provider_config(&json!("block"), named.as_object()).unwrap();
    assert_eq!(create_provider(&config.into()).unwrap().name(), "fake");
    // What the constructor says reaches every way of making a sandbox.
    for error in [
        create_provider(&json!({"ours": {}})).map(drop),
        AsyncSandbox::from_config(&json!({"ours": null})).map(drop),
        Sandbox::from_config(&json!({"ours": {}})).map(drop),
    ] {
        assert_eq!(error.unwrap_err().field(), Some("ok"));
    }
    assert_eq!(get_provider("ours").unwrap().origin, ProviderOrigin::Explicit);
    assert_eq!(register_provider("ours", make, Override::No).unwrap_err().kind(), ErrorKind::AlreadyExists);
    register_provider("ours", make, Override::Yes).unwrap();
}

#[test]
fn built_in_names_are_reserved_and_listed_whether_installed_or_not() {
    let make = |_| Ok(Fake::with(&[]) as Arc<dyn SandboxProvider>);
    let listings = list_providers().unwrap();
    for name in BUILTIN_PROVIDERS {
        assert!(listings.iter().any(|listing| listing.name == *name && listing.origin == ProviderOrigin::BuiltIn));
        assert_eq!(register_provider(name, make, Override::No).unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
    assert!(register_provider("", make, Override::No).is_err());
}

#[test]
fn an_unknown_name_is_told_with_the_known_ones() {
    for error in [create_provider(&json!({"locla": {}})).map(drop), get_provider("locla").map(drop)] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("local"), "{error}");
    }
    for shape in [json!({}), json!({"local": {}, "ours": {}}), json!({"local": 1}), json!("local")] {
        assert_eq!(create_provider(&shape).map(drop).unwrap_err().kind(), ErrorKind::InvalidInput, "{shape}");
    }
}
