//! What machines read: JSON everywhere, names, and nothing in the log that is not theirs.

use crate::common::{ctl, run, sandboxctl};
use serde_json::Value;

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("no JSON ({error}): {text}"))
}

#[test]
fn every_command_writes_json_that_parses() {
    for args in [
        &["providers", "ls"][..],
        &["providers", "info", "local"],
        &["providers", "doctor", "local"],
        &["plugin", "ls"],
        &["explain", "-e", "A=b", "--timeout", "5s"],
        &["config", "show", "--origin"],
        &["config", "path"],
        &["version"],
    ] {
        let ran = ctl([args, &["-o", "json"]].concat());
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        assert_eq!(parse(&ran.stdout)["schema"], "v1", "{args:?}");
        assert_eq!(ran.stderr, "", "{args:?}");
    }
}

#[test]
fn every_failure_is_json_on_standard_error() {
    for (args, code, name) in [
        (&["run", "--bad", "--", "x"][..], 2, "usage"),
        (&["run", "echo", "hi"], 2, "usage"),
        (&["run", "-q", "--", "nosuch-program"], 127, "exec.not_found"),
        (&["run", "-q", "--timeout", "200ms", "--", "sleep", "9"], 124, "exec.timeout"),
        (&["run", "-q", "--provider", "loacl", "--", "x"], 2, "provider.not_found"),
        (&["run", "-q", "--set", "x=1", "--", "x"], 2, "unsupported"),
        (&["providers", "info", "nowhere"], 2, "provider.not_found"),
        (&["plugin", "verify", "/etc/passwd"], 1, "plugin"),
        (&["plugin", "install", "/no/such/file.so"], 1, "not_found"),
        (&["plugin", "rm", "nothing"], 1, "plugin.not_found"),
        (&["plugin", "new", "Bad Name"], 2, "invalid_input"),
        (&["explain", "--config", "/no/such.toml"], 2, "config.invalid"),
        (&["nothing"], 2, "usage"),
    ] {
        let ran = ctl([&["-o", "json"], args].concat());
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
        let error = &parse(&ran.stderr)["error"];
        assert_eq!(error["code"], name, "{args:?}: {ran:?}");
        for key in ["message", "field", "help", "retryable"] {
            assert!(error.get(key).is_some(), "{args:?} has no {key}");
        }
    }
}

#[test]
fn the_output_of_a_command_is_never_wrapped() {
    let ran = ctl(["run", "-q", "-o", "json", "--", "echo", "plain"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "plain\n", ""));
}

#[test]
fn lists_give_names_and_tables_have_no_escapes() {
    // Those that are not built are not listed.
    let names = ctl(["providers", "ls", "-q"]).stdout;
    assert!(names.lines().any(|name| name == "local"), "{names:?}");
    assert_eq!(ctl(["providers", "ls", "-o", "name"]).stdout, names);
    let mut command = sandboxctl(["providers", "ls"]);
    command.env("SANDBOX_OUTPUT", "jsonl");
    let lines = run(command).stdout;
    let listed: Vec<String> = lines.lines().map(|line| parse(line)["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(listed, names.lines().collect::<Vec<_>>());
    for args in [&["providers", "ls", "-o", "wide"][..], &["run", "--", "nosuch-program"]] {
        let ran = ctl(args);
        assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{ran:?}");
    }
    let mut command = sandboxctl(["run", "--", "nosuch-program"]);
    command.env("CLICOLOR_FORCE", "1");
    assert!(run(command).stderr.contains("\u{1b}[31merror:"));
    let mut command = sandboxctl(["run", "--", "nosuch-program"]);
    command.env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1");
    assert!(!run(command).stderr.contains('\u{1b}'));
}

#[test]
fn explain_fails_when_something_would_be_refused() {
    let ran = ctl(["explain", "-e", "A=b", "--set", "x=1", "--ttl", "1h"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.starts_with("FIELD"), "{ran:?}");
    assert!(ran.stdout.lines().any(|line| line.starts_with("provider_options") && line.contains("refused (")));
    assert!(ran.stdout.lines().any(|line| line.starts_with("env ") && line.ends_with("ok")), "{ran:?}");
}

#[test]
fn doctor_checks_every_step_and_says_so() {
    let ran = ctl(["providers", "doctor", "local"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for step in ["plugin", "provider", "create", "exec", "close"] {
        assert!(ran.stdout.lines().any(|line| line.starts_with("ok") && line.contains(step)), "{step}: {ran:?}");
    }
    let ran = ctl(["providers", "doctor", "nowhere"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.contains("FAIL") && ran.stdout.ends_with("0 passed, 1 failed\n"), "{ran:?}");
}

#[test]
fn secrets_are_in_no_log_and_no_error() {
    let canary = "canary4711";
    for tail in
        [&["--", "cat", canary][..], &["--", "/no/such/program", canary], &["-w", "/no/such", "--", "sh", "-c", canary]]
    {
        let variable = format!("SECRET={canary}");
        let args = [&["run", "--log", "trace", "-e", &variable], tail].concat();
        let output = crate::common::run_with_input(sandboxctl(args), canary.as_bytes());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("TRACE") || stderr.contains("DEBUG"), "the log is on: {stderr}");
        // What `cat` itself says of its missing file is its own output.
        let ours: Vec<_> = stderr.lines().filter(|line| !line.starts_with("cat: ")).collect();
        assert!(!ours.iter().any(|line| line.contains(canary)), "{ours:?}");
    }
    // Also not where the value itself is what is wrong.
    let ran = ctl(["run", "-e", &format!("={canary}"), "--", "true"]);
    assert_eq!(ran.code, 2);
    assert!(!ran.stderr.contains(canary), "{ran:?}");
}

#[test]
fn the_log_level_is_checked() {
    let ran = ctl(["--log", "=[", "version"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("off, error, warn, info, debug, trace"), "{ran:?}");
}
