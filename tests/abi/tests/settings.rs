//! What reaches the plugin of the user's configuration, and what is said when it is wrong.

use sandbox_abi_tests::{
    build::Fixture,
    hosting::{create, host, run},
};
use sandbox_core::{ErrorKind, ExecRequest, SandboxError};
use serde_json::{Value, json};

fn refusal(config: &Value) -> SandboxError {
    let plugin = Fixture::Good.path();
    host(&[&plugin]).create_provider(config).err().expect("it is refused")
}

#[test]
fn an_unknown_key_is_named_with_the_accepted_ones_and_the_nearest() {
    let error = refusal(&json!({"acme": {"greting": "x"}}));
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("greting")), "{error}");
    assert!(error.to_string().contains("api_key, greeting, limits, root"), "{error}");
    assert_eq!(error.help(), Some("did you mean \"greeting\"?"));
    assert_eq!(error.provider(), Some("acme"));
}

#[test]
fn a_wrong_value_is_named_by_its_path() {
    let error = refusal(&json!({"acme": {"limits": {"retries": 300}}}));
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("limits.retries")), "{error}");
    let error = refusal(&json!({"acme": {"limits": {"retrys": 3}}}));
    assert_eq!(error.field(), Some("limits.retrys"), "{error}");
    assert_eq!(error.help(), Some("did you mean \"retries\"?"));
}

#[test]
fn a_secret_of_the_settings_is_in_no_error() {
    let canary = "canary-api-key";
    for config in [
        json!({"acme": {"api_key": canary, "greting": 1}}),
        json!({"acme": {"api_key": canary, "limits": 1}}),
        json!({"acme": {"api_key": [canary]}}),
        json!({"acme": {"api_key": {"value": canary}}}),
    ] {
        let error = refusal(&config);
        let shown = format!("{error} {error:?} {:?} {:?}", error.help(), error.chain());
        assert!(!shown.contains(canary), "{shown}");
    }
}

#[test]
fn no_settings_are_fine_and_the_host_adds_none_of_its_own() {
    // The settings of this provider deny unknown keys: anything that a host would add is an error.
    let plugin = Fixture::Good.path();
    for settings in [Value::Null, json!({})] {
        assert_eq!(host(&[&plugin]).create("acme", &settings).unwrap().name(), "acme");
    }
}

#[tokio::test]
async fn only_the_section_of_the_provider_reaches_it_and_every_character_of_it() {
    let plugin = Fixture::Good.path();
    for greeting in ["", "plain", "\u{0}\u{1}\u{7f}\"\\/\n\r\t", "ü€😀\u{2028}\u{feff}", &"long".repeat(50_000)] {
        let provider = host(&[&plugin]).create_provider(&json!({"acme": {"greeting": greeting}})).unwrap();
        let handle = create(&*provider).await.unwrap();
        let result = run(&*provider, &handle, ExecRequest::argv(["@greet"])).await.unwrap();
        assert!(result.stdout == greeting.as_bytes(), "{} bytes", greeting.len());
        provider.close(&handle).await.unwrap();
    }
    let two = refusal(&json!({"acme": {}, "second": {}}));
    assert_eq!(two.kind(), ErrorKind::InvalidInput, "a section for another provider is not passed on");
}

#[test]
fn two_providers_have_settings_of_different_kinds() {
    let (first, second) = (Fixture::Good.path(), Fixture::Second.path());
    let host = host(&[&first, &second]);
    assert_eq!(host.create("acme", &json!({"greeting": "hi"})).unwrap().info().details["greeting"], "hi");
    assert_eq!(host.create("second", &json!({"color": "blue"})).unwrap().info().details["color"], "Blue");
    let error = host.create("second", &json!({"color": "green"})).err().unwrap();
    assert_eq!((error.kind(), error.provider()), (ErrorKind::InvalidInput, Some("second")), "{error}");
}
