//! Documents of every kind in the normal form of `docker compose config`, and in the official schema.
//!
//! `cases/NAME` holds a document, what it is loaded with (`run.json`: `args`, `env`), and its normal form
//! (`expected.json`, with `$DIR` for the folder). What is expected was written by the real program, and a test has it
//! write that again: `SANDBOX_TEST_COMPOSE` names it, and `cargo xtask test` gets it.

mod case;
mod schema;

use case::{Case, cases};
use serde_json::Value;

/// Where our form differs from the program's, on purpose: a pointer with `*` for any key, and why.
const DIFFERENCES: &[(&str, &str)] = &[
    ("/services/*/volumes/*/bind", "a folder that is not there is refused, and never made"),
    ("/services/*/x-own", "what a service is extended with is kept; the program keeps it in YAML only"),
];

/// At least so many documents.
const DOCUMENTS: usize = 40;

#[test]
fn every_document_has_the_normal_form_that_was_checked() {
    let mut wrong = Vec::new();
    let cases = cases();
    assert!(cases.len() >= DOCUMENTS, "{}", cases.len());
    for case in &cases {
        let (ours, expected) = (comparable(case.resolved()), comparable(case.expected()));
        if ours != expected {
            let differences = differences("", &ours, &expected);
            assert!(!differences.is_empty());
            wrong.extend(differences.into_iter().map(|what| format!("{}: {what}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_is_expected_is_what_the_real_program_writes() {
    let program = std::env::var("SANDBOX_TEST_COMPOSE").unwrap_or_else(|_| {
        panic!("SANDBOX_TEST_COMPOSE names no docker-compose of version 2; cargo xtask test gets one")
    });
    for case in cases() {
        assert_eq!(case.by_program(&program), case.expected(), "{}", case.name);
    }
}

#[test]
fn the_normal_form_loads_again_and_stays_what_it_is() {
    for case in cases() {
        let once = case.resolved();
        let again = case.again(&once.to_string());
        assert_eq!(again.resolved(), once, "{}", case.name);
    }
}

#[test]
fn documents_and_their_normal_forms_agree_with_the_official_schema() {
    let schema = schema::Schema::new();
    let mut wrong = Vec::new();
    for case in cases() {
        for (file, document) in case.documents() {
            wrong.extend(schema.errors(&document).into_iter().map(|error| format!("{}/{file}: {error}", case.name)));
        }
        let errors = schema.errors(&case.resolved());
        wrong.extend(errors.into_iter().map(|error| format!("{}, resolved: {error}", case.name)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_the_schema_refuses_is_refused_when_it_is_loaded() {
    let schema = schema::Schema::new();
    let documents = [
        "services: {a: {image: 5}}",
        "services: {a: {image: i, imgae: x}}",
        "services: {a: {image: i, ports: {a: b}}}",
        "services: {a: {image: i, depends_on: 3}}",
        "services: {a: {image: i, depends_on: {b: {condition: sometimes}}}, b: {image: i}}",
        "services: {a: {image: i, healthcheck: {retries: {}}}}",
        "services: {a: {image: i, networks: 5}}",
        "services: {a: {image: i, volumes: [{target: /x}]}}",
        "services: {a: {image: i, init: sometimes-not}, b: []}",
        "services: []",
        "networks: {n: {internal: []}}\nservices: {a: {image: i}}",
        "nosuch: {}\nservices: {a: {image: i}}",
    ];
    for text in documents {
        assert!(!schema.errors(&schema::yaml(text)).is_empty(), "the schema takes {text}");
        assert!(Case::of_text("refused", text).load().project.is_none(), "we take {text}");
    }
}

/// Without what is said by silence, and without the differences.
fn comparable(mut value: Value) -> Value {
    prune("", &mut value);
    value
}

fn prune(path: &str, value: &mut Value) {
    let says_nothing = |key: &str, value: &Value| {
        matches!(key, "ipam" | "placement" | "resources" | "volume")
            && value.as_object().is_some_and(serde_json::Map::is_empty)
    };
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !DIFFERENCES.iter().any(|(pattern, _)| matches(pattern, &format!("{path}/{key}"))));
            for (key, value) in map.iter_mut() {
                prune(&format!("{path}/{key}"), value);
            }
            map.retain(|key, value| !says_nothing(key, value));
        }
        Value::Array(list) => {
            for (index, value) in list.iter_mut().enumerate() {
                prune(&format!("{path}/{index}"), value);
            }
        }
        _ => {}
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern.split('/'), path.split('/'));
    loop {
        match (pattern.next(), path.next()) {
            (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(wanted), Some(found)) if wanted == found => {}
            _ => return false,
        }
    }
}

/// Where two documents differ.
fn differences(path: &str, ours: &Value, expected: &Value) -> Vec<String> {
    match (ours, expected) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            let none = Value::from("(absent)");
            keys.into_iter()
                .flat_map(|key| {
                    let of =
                        |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_else(|| none.clone());
                    differences(&format!("{path}/{key}"), &of(one), &of(other))
                })
                .collect()
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let pairs = one.iter().zip(other).enumerate();
            pairs.flat_map(|(index, (one, other))| differences(&format!("{path}/{index}"), one, other)).collect()
        }
        _ if ours == expected => Vec::new(),
        _ => vec![format!("{path} is {ours}, not {expected}")],
    }
}
