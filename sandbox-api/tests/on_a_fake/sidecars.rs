//! Containers beside the main one.

use crate::fake::Fake;
use sandbox_api::{AsyncSandbox, Sandbox, SandboxSidecarSpec};
use sandbox_core::{Capability, ErrorKind, ExecRequest, SandboxSpec, serde_json::json};

fn spec() -> SandboxSpec {
    SandboxSpec::from_json(json!({"sidecars": [
        {"name": "db", "image": "postgres", "env": {"SECRET": "canary"}, "resources": {"cpu": "0.5"}},
        {"name": "log", "image": "fluent"},
    ]}))
    .unwrap()
}

#[tokio::test]
async fn a_spec_with_sidecars_is_refused_before_anything_is_created() {
    let fake = Fake::with(&[]);
    let sandbox = AsyncSandbox::new(fake.clone());
    let error = sandbox.start(Some(spec())).await.unwrap_err();
    assert_eq!((error.kind(), error.provider()), (ErrorKind::Unsupported, Some("fake")));
    assert!(fake.calls().is_empty());
    assert_eq!(sandbox.sidecar("db").unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn capability_comes_before_state_and_state_before_the_name() {
    let fake = Fake::with(&[Capability::Sidecars]);
    let sandbox = AsyncSandbox::new(fake.clone());
    assert_eq!(sandbox.sidecar("none").unwrap_err().kind(), ErrorKind::InvalidState);
    sandbox.start(Some(spec())).await.unwrap();
    let error = sandbox.sidecar("none").unwrap_err();
    assert_eq!(error.field(), Some("sidecar"));
    assert!(error.to_string().contains(r#"["db", "log"]"#), "{error}");
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn a_program_runs_without_a_shell_and_its_text_comes_in_whole_characters() {
    let fake = Fake::with(&[Capability::Sidecars]);
    let sandbox = AsyncSandbox::new(fake.clone());
    sandbox.start(Some(spec())).await.unwrap();
    let sidecar = sandbox.sidecar("db").unwrap();
    assert_eq!(sidecar.exec(ExecRequest::shell("true")).await.unwrap_err().field(), Some("command"));
    let mut pieces = Vec::new();
    let request = ExecRequest::argv(["pg_dump", "-x"]);
    let result = sidecar.exec_with_output(request.clone(), |text| pieces.push(text.to_owned())).await.unwrap();
    assert_eq!((pieces.concat().as_str(), result.return_code()), ("a\u{20ac}z\u{fffd}", 4));
    assert_eq!(result.stdout, b"a\xe2\x82\xacz\xff");
    assert_eq!(fake.seen().requests.last().unwrap().timeout_s, Some(180.0));
    let folder = tempfile::tempdir().unwrap();
    sidecar.download("/var/x", folder.path().join("x")).await.unwrap();
    assert_eq!(std::fs::read(folder.path().join("x")).unwrap(), b"of the sidecar");
    assert_eq!(fake.calls()[2..], ["sidecar exec 1 db", "sidecar download 1 db /var/x"]);
    sandbox.stop().await.unwrap();
    assert_eq!(sidecar.exec(request).await.unwrap_err().kind(), ErrorKind::InvalidState);
}

#[test]
fn the_blocking_one_has_them_too() {
    let fake = Fake::with(&[Capability::Sidecars]);
    let sandbox = Sandbox::new(fake).unwrap();
    sandbox.start(Some(spec())).unwrap();
    let result = sandbox.sidecar("log").unwrap().exec(ExecRequest::argv(["x"])).unwrap();
    assert_eq!(result.return_code(), 4);
    sandbox.stop().unwrap();
}

#[tokio::test]
async fn a_descriptor_names_them_without_environment_and_limits_and_connect_restores_them() {
    let fake = Fake::with(&[Capability::Sidecars, Capability::Connect]);
    let sandbox = AsyncSandbox::new(fake.clone());
    sandbox.start(Some(spec())).await.unwrap();
    let descriptor = sandbox.serialize(None).await.unwrap();
    assert_eq!(
        descriptor["sidecars"],
        json!([{"name": "db", "image": "postgres"}, {"name": "log", "image": "fluent"}])
    );
    assert!(!descriptor.to_string().contains("canary"));
    let connected = AsyncSandbox::connect(fake.clone(), descriptor).await.unwrap();
    connected.sidecar("log").unwrap();
    connected.disconnect().await.unwrap();
    // None declared, none in the descriptor.
    let plain = AsyncSandbox::new(fake.clone());
    plain.start(Some(SandboxSpec::default())).await.unwrap();
    let descriptor = plain.serialize(None).await.unwrap();
    assert!(descriptor.get("sidecars").is_none());
    let connected = AsyncSandbox::connect(fake.clone(), descriptor).await.unwrap();
    assert_eq!(connected.sidecar("db").unwrap_err().kind(), ErrorKind::InvalidInput);
    plain.stop().await.unwrap();
    sandbox.stop().await.unwrap();
}

#[test]
fn a_spec_refuses_empty_and_repeated_names_and_what_is_no_list() {
    for bad in [
        json!("x"),
        json!({}),
        json!([{"name": "", "image": "x"}]),
        json!([{"name": "x"}]),
        json!([{"name": "a", "image": "x"}, {"name": "a", "image": "y"}]),
        json!([{"name": "a", "image": "x", "resources": {"cpus": 1}}]),
    ] {
        SandboxSpec::from_json(json!({"sidecars": bad.clone()})).expect_err(&bad.to_string());
    }
    let _: SandboxSidecarSpec = sandbox_core::serde_json::from_value(json!({"name": "a", "image": "x"})).unwrap();
}
