use sandbox_core::{ErrorKind, from_json};
use serde_json::{Value, json};

use super::OpenSandboxConfig;

fn refusal(value: Value) -> (ErrorKind, Option<String>) {
    let read = from_json::<OpenSandboxConfig>(value.clone(), "config").and_then(|config| config.validate());
    let error = read.expect_err(&value.to_string());
    (error.kind(), error.field().map(str::to_owned))
}

#[test]
fn every_bad_value_is_refused_with_its_key() {
    let cases = [
        ("connection.domain", json!("ftp://h")),
        ("connection.domian", json!("h")),
        ("connection.protocol", json!("ssh")),
        ("connection.api_key", json!("a\nb")),
        ("connection.execd_access_token", json!("a\u{e9}")),
        ("connection.request_timeout_s", json!(0)),
        ("connection.keepalive_expiry_s", json!(-1)),
        ("connection.max_connections", json!(0)),
        ("connection.max_keepalive_connections", json!(10_001)),
        ("connection.connect_retries", json!(101)),
        ("connection.ca_file", json!("rel.pem")),
        ("connection.transport_backend", json!("curl")),
        ("create.retries", json!(101)),
        ("create.retry_delay_s", json!(-0.1)),
        ("create.retry_max_delay_s", json!(1e9)),
        ("create.timeout_s", json!(0)),
        ("create.request_timeout_s", json!(-3)),
        ("create.ready_timeout_s", json!(0)),
        ("create.image_pull_policy", json!("Sometimes")),
        ("create.connect_attempt_timeout_s", json!(0)),
        ("create.connect_poll_s", json!(0)),
        ("create.renew_interval_s", json!(0)),
        ("create.default_image", json!(" ")),
        ("probe.command", json!(" ")),
        ("probe.timeout_s", json!(0)),
        ("probe.deadline_s", json!(0)),
        ("probe.stable_count", json!(0)),
        ("probe.stable_delay_s", json!(-1)),
        ("probe.user", json!("")),
        ("operations.retries", json!(101)),
        ("operations.retry_delay_s", json!(-1)),
        ("operations.retry_max_delay_s", json!(-1)),
        ("operations.command_retries", json!(101)),
        ("operations.close_timeout_s", json!(0)),
        ("operations.pause_resume_timeout_s", json!(0)),
        ("operations.background_poll_initial_s", json!(0)),
        ("operations.background_poll_interval_s", json!(0)),
        ("operations.status_poll_timeout_s", json!(0)),
        ("operations.output_dialect", json!("morse")),
        ("attribution.key_prefix", json!("Not A Name/")),
        ("attribution.key_prefix", json!("opensandbox.io/")),
        ("networking.python_executable", json!("")),
        ("networking.loopback_forwarding", json!(true)),
        ("networking.setup_command", json!(" ")),
        ("shared_storage.host_path", json!("a/b")),
        ("shared_storage.host_path", json!("/a/../b")),
        ("shared_storage.metadata", json!({"a": "b"})),
        ("runtime_requirements.shm_size_metadata_key", json!(" ")),
    ];
    for (key, value) in cases {
        let (section, name) = key.split_once('.').unwrap();
        let (kind, field) = refusal(json!({ section: { name: value } }));
        // A word that is not known stands behind its key.
        let is_named = field.as_deref().is_some_and(|field| field == key || field.starts_with(&format!("{key}.")));
        assert!(kind == ErrorKind::InvalidInput && is_named, "{key}: {kind:?} {field:?}");
    }
    let probes = json!({"runtime_requirements": {"capability_probes": {"CAP_X": "true"}}});
    assert_eq!(refusal(probes).1.as_deref(), Some("runtime_requirements.capability_probes.CAP_X"));
    let metadata = json!({"runtime_requirements": {"capability_metadata": {"SYS_PTRACE": {}}}});
    assert_eq!(refusal(metadata).1.as_deref(), Some("runtime_requirements.capability_metadata.SYS_PTRACE"));
}

#[test]
fn defaults_are_those_of_the_model_but_certificates_are_checked() {
    let config: OpenSandboxConfig = from_json(json!(null), "config").unwrap();
    config.validate().unwrap();
    assert!(config.connection.tls_verify);
    assert_eq!((config.connection.keepalive_expiry_s, config.connection.max_connections), (3.0, 100));
    assert_eq!((config.connection.max_keepalive_connections, config.connection.connect_retries), (20, 2));
    assert_eq!((config.create.retries, config.create.retry_delay_s, config.create.retry_max_delay_s), (2, 5.0, 60.0));
    assert_eq!((config.create.connect_attempt_timeout_s, config.create.connect_poll_s), (30.0, 2.0));
    assert_eq!((config.probe.timeout_s, config.probe.stable_count, config.probe.stable_delay_s), (30.0, 1, 0.0));
    let operations = config.operations;
    assert_eq!((operations.retries, operations.retry_delay_s, operations.retry_max_delay_s), (3, 1.0, 15.0));
    assert_eq!((operations.close_timeout_s, operations.pause_resume_timeout_s), (30.0, 600.0));
    assert_eq!((operations.background_poll_initial_s, operations.background_poll_interval_s), (0.25, 2.0));
    assert_eq!((operations.background_exec, operations.status_poll_timeout_s), (false, 10.0));
}

#[test]
fn every_section_of_the_model_is_taken_as_it_writes_it() {
    let model = json!({
        "connection": { "domain": "opensandbox.example:80/prefix", "api_key": "k", "protocol": "http",
            "request_timeout_s": 300, "use_server_proxy": true, "transport_backend": "aiohttp", "keepalive_expiry_s": 3.0,
            "max_connections": 100, "max_keepalive_connections": 20, "connect_retries": 2,
            "disable_connection_pooling": false, "tls_verify": false },
        "create": { "timeout_s": 1500, "request_timeout_s": 1200, "retries": 10, "retry_delay_s": 5,
            "retry_max_delay_s": 90, "image_pull_policy": "IfNotPresent", "skip_health_check": true,
            "connect_attempt_timeout_s": 1500, "connect_poll_s": 2, "renew_interval_s": 600 },
        "probe": { "command": "printf x", "expected_stdout": "x", "timeout_s": 60, "deadline_s": 180, "stable_count": 2,
            "stable_delay_s": 1.0, "user": "root" },
        "operations": { "retries": 5, "retry_delay_s": 1, "retry_max_delay_s": 45, "command_retries": 0,
            "close_timeout_s": 30, "pause_resume_timeout_s": 1500, "background_exec": true,
            "background_poll_initial_s": 0.5, "background_poll_interval_s": 30, "status_poll_timeout_s": 10 },
        "attribution": { "enabled": true, "team": "t", "user": "u", "workload": "w", "run": "r",
            "key_prefix": "nemo-gym.nvidia.com/" },
        "networking": { "enabled": true, "loopback_forwarding": true, "python_executable": "python3",
            "setup_command": "true" },
        "shared_storage": { "host_path": "/srv", "metadata": { "a": "b" } },
        "runtime_requirements": { "capability_probes": { "SYS_PTRACE": "true" },
            "capability_metadata": { "SYS_PTRACE": { "a": "b" } }, "shm_size_metadata_key": "shm" },
    });
    let config: OpenSandboxConfig = from_json(model, "config").unwrap();
    config.validate().unwrap();
    assert_eq!(config.attribution.key("run"), "nemo-gym.nvidia.com/run");
}

#[test]
fn null_turns_the_probe_and_the_pull_policy_off() {
    let value = json!({"probe": {"command": null}, "create": {"image_pull_policy": null}});
    let config: OpenSandboxConfig = from_json(value, "config").unwrap();
    config.validate().unwrap();
    assert_eq!((config.probe.command, config.create.image_pull_policy), (None, None));
}
