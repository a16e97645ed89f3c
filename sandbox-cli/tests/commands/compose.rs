//! `sandboxctl compose`, with the real local provider.

use std::{path::Path, process::Output};

use crate::common::{bare, eventually, sandboxctl};

const STACK: &str = r#"
services:
  app:
    command: [sh, -c, "trap 'exit 0' TERM; echo \"up $$WHO\"; while :; do sleep 0.05; done"]
    environment: {WHO: world}
    network_mode: bridge
"#;

fn folder_of(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("compose.yaml"), text).unwrap();
    folder
}

fn compose(folder: &Path, args: &[&str]) -> Output {
    let mut command = sandboxctl(["compose", "--provider", "local"].iter().chain(args));
    command.current_dir(folder).env("XDG_STATE_HOME", folder.join("state")).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ok(output: Output) -> String {
    assert!(output.status.success(), "{:?}: {}{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn config_prints_the_resolved_document_and_all_problems_have_places() {
    let good = folder_of(
        "name: p\nservices:\n  a: {image: 'x:${TAG:-1}', ports: ['80:80'], command: echo 'a b', env_file: v}\n",
    );
    std::fs::write(good.path().join("v"), "A=1\n").unwrap();
    let run = |folder: &Path, args: &[&str]| bare(["compose"].iter().chain(args)).current_dir(folder).output().unwrap();
    let json: serde_json::Value = serde_json::from_str(&ok(run(good.path(), &["config", "-o", "json"]))).unwrap();
    let service = &json["services"]["a"];
    assert_eq!((json["name"].as_str(), service["image"].as_str()), (Some("p"), Some("x:1")));
    assert_eq!(service["command"], serde_json::json!(["echo", "a b"]));
    assert_eq!(service["environment"], serde_json::json!({"A": "1"}));
    let port = serde_json::json!([{"mode": "ingress", "target": 80, "published": "80", "protocol": "tcp"}]);
    assert_eq!(service["ports"], port);
    assert_eq!(json["networks"]["default"]["name"], "p_default");
    // What is printed is a compose file again.
    let again = folder_of(&ok(run(good.path(), &["config"])));
    let same: serde_json::Value = serde_json::from_str(&ok(run(again.path(), &["config", "-o", "json"]))).unwrap();
    assert_eq!(same, json);
    let bad = folder_of("services:\n  a: {image: 5, imgae: x}\n  b: {image: x, depends_on: [c]}\n");
    let output = run(bad.path(), &["config"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = text(&output.stderr);
    for place in ["compose.yaml:2:14", "compose.yaml:2:17", "compose.yaml:3:30", "the compose document has 3 problems"]
    {
        assert!(stderr.contains(place), "{place}: {stderr}");
    }
    let output = run(bad.path(), &["config", "-o", "json"]);
    let findings = text(&output.stderr).lines().filter(|line| line.contains("\"finding\"")).count();
    assert_eq!(findings, 3);
}

#[test]
fn explain_names_every_key_that_a_provider_refuses() {
    let folder = folder_of("services:\n  a: {image: x, privileged: true, sysctls: {a: 1}}\n  b: {image: x}\n");
    let output = compose(folder.path(), &["explain", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = json["providers"]["local"]["findings"].as_array().unwrap();
    for key in ["services.a", "services.a.privileged", "services.a.sysctls", "services.b"] {
        assert!(
            findings.iter().any(|finding| finding["key"] == key && finding["line"].as_u64() > Some(0)),
            "{key}: {json}"
        );
    }
}

#[test]
fn a_stack_in_the_background_is_listed_read_and_stopped() {
    let folder = folder_of(STACK);
    let here = folder.path();
    let id = ok(compose(here, &["-p", "bg", "up", "-d"]));
    assert!(id.starts_with("bg-"), "{id}");
    let again = compose(here, &["-p", "bg", "up", "-d"]);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stderr));
    let json: serde_json::Value = serde_json::from_str(&ok(compose(here, &["-p", "bg", "ps", "-o", "json"]))).unwrap();
    assert_eq!(
        (json["services"][0]["service"].as_str(), json["services"][0]["phase"].as_str()),
        (Some("app"), Some("running"))
    );
    assert!(eventually(|| ok(compose(here, &["-p", "bg", "logs"])) == "app-1 | up world\n"), "the log");
    assert!(ok(compose(here, &["-p", "bg", "logs", "app", "--tail", "1"])).contains("up world"));
    assert_eq!(compose(here, &["-p", "bg", "logs", "nosuch"]).status.code(), Some(1));
    let events = || ok(compose(here, &["-p", "bg", "events"]));
    assert!(eventually(|| events().contains(" app 1 started")), "{}", events());
    ok(compose(here, &["-p", "bg", "down"]));
    assert_eq!(compose(here, &["-p", "bg", "ps"]).status.code(), Some(1));
    ok(compose(here, &["-p", "bg", "down"]));
    assert!(!here.join("state/sandboxctl/compose/bg").exists());
}

#[test]
fn a_start_that_fails_says_why_and_leaves_nothing() {
    let folder = folder_of("services:\n  a: {command: /no/such/program, network_mode: bridge}\n");
    for args in [&["-p", "bad", "up"][..], &["-p", "bad", "up", "-d"][..]] {
        let output = compose(folder.path(), args);
        assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("service \"a\" failed"), "{}", text(&output.stderr));
        assert!(!folder.path().join("state/sandboxctl/compose/bad").exists());
    }
}

#[test]
fn a_stack_whose_programs_end_is_over_with_their_code() {
    let folder = folder_of("services:\n  a: {command: sh -c 'echo out; exit 7', network_mode: bridge}\n");
    let output = compose(folder.path(), &["-p", "over", "up"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(7), "a-1 | out\n"),
        "{}",
        text(&output.stderr)
    );
    let dry = ok(compose(folder.path(), &["-p", "over", "up", "--dry-run"]));
    assert!(dry.contains("SERVICE") && dry.contains("a  "), "{dry}");
}
