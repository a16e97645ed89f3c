//! Exit codes and texts of `sandboxctl run`.

use crate::common::{ctl, run, sandboxctl};

fn expect(args: &[&str], code: i32, says: &str) {
    let ran = ctl([&["run", "-q"], args].concat());
    assert_eq!(ran.code, code, "{args:?}: {ran:?}");
    assert!(ran.stderr.contains(says), "{args:?}: {ran:?}");
    if says.is_empty() {
        assert!(ran.stderr.is_empty(), "{args:?}: {ran:?}");
    }
}

#[test]
fn the_commands_own_code_is_passed_through() {
    for code in [0, 1, 3, 7, 123, 124, 127, 255] {
        expect(&["--", "sh", "-c", &format!("exit {code}")], code, "");
    }
}

#[test]
fn a_signalled_command_is_128_and_its_number() {
    expect(&["--", "sh", "-c", "kill -9 $$"], 137, "");
    expect(&["--", "sh", "-c", "kill -TERM $$"], 143, "");
}

#[test]
fn a_command_that_cannot_be_started_is_126_127_or_125_and_says_why() {
    expect(
        &["--", "nosuch-program"],
        127,
        "error: cannot start \"nosuch-program\": not found in PATH\nhelp: sandboxctl run ",
    );
    expect(&["--", "/no/such/program"], 127, "there is no such file in the sandbox");
    expect(&["--", "/etc/passwd"], 126, "it is not executable");
    expect(&["-w", "/no/such/folder", "--", "true"], 125, "\"/no/such/folder\" does not exist");
    expect(&["-w", "/etc/passwd", "--", "true"], 125, "is no directory");
    expect(&["--user", "no-such-user", "--", "true"], 125, "there is no user \"no-such-user\"");
}

#[test]
fn the_help_of_a_missing_program_can_be_run() {
    let ran = ctl(["run", "-q", "--", "nosuch-program"]);
    let help = ran.stderr.lines().find_map(|line| line.strip_prefix("help: ")).unwrap().to_owned();
    let mut shell = std::process::Command::new("sh");
    let bin = std::path::Path::new(crate::common::BIN).parent().unwrap().display().to_string();
    shell.args(["-c", &help]).env("PATH", format!("{bin}:/usr/bin:/bin"));
    shell.env("SANDBOX_PROVIDER_DIR", crate::common::provider_dir()).env("SANDBOX_NO_ISOLATION_WARNING", "1");
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let again = run(shell);
    assert_eq!(again.code, 0, "{help}: {again:?}");
    assert!(again.stdout.contains("/bin"), "{again:?}");
}

#[test]
fn a_time_limit_is_124() {
    expect(&["--timeout", "300ms", "--", "sleep", "20"], 124, "command timed out after 300ms; it was killed");
    expect(&["--idle-timeout", "300ms", "--", "sleep", "20"], 124, "silent for too long");
    expect(&["--timeout", "20s", "--", "true"], 0, "");
}

#[test]
fn wrong_lines_and_refused_specs_are_2() {
    expect(&["--bad", "--", "true"], 2, "unexpected argument '--bad'");
    expect(&["--timeout", "soon", "--", "true"], 2, "90s, 5m, 1h30m");
    expect(&["--memory", "1q", "--", "true"], 2, "512m");
    expect(&["-v", "x", "--", "true"], 2, "SRC:DST");
    expect(&["--set", "no_such_option=1", "--", "true"], 2, "provider_options");
    let folder = tempfile::tempdir().unwrap();
    let spec = folder.path().join("spec.json");
    std::fs::write(&spec, r#"{"security": {"privileged": true}}"#).unwrap();
    expect(&["-f", spec.to_str().unwrap(), "--", "true"], 2, "security.privileged");
    expect(&["--name", "a b", "--", "true"], 2, "name:");
    expect(&["--", ""], 2, "must name a program");
}

#[test]
fn a_command_without_separator_is_2_and_the_right_line_is_shown() {
    expect(&["echo", "hi there"], 2, "help: sandboxctl run -q -- echo 'hi there'\n");
    expect(&["ls", "-la"], 2, "help: sandboxctl run -q -- ls -la\n");
    expect(&["python:3.12", "python", "-c", "1"], 2, "help: sandboxctl run -q python:3.12 -- python -c 1\n");
    expect(&["python:3.12"], 2, "there is an image but no command");
    expect(&[], 2, "there is no command");
}

#[test]
fn an_absent_provider_is_2_and_never_another_one() {
    expect(&["--provider", "loacl", "--", "true"], 2, "help: did you mean \"local\"?");
    // An image means docker; where its plugin is not installed, nothing runs.
    let mut command = sandboxctl(["run", "-q", "debian:12", "--", "echo", "ran"]);
    command.env("SANDBOX_PROVIDER_DIR", "/no/such/folder");
    let ran = run(command);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
    assert!(ran.stderr.contains("help: "), "{ran:?}");
    let mut command = sandboxctl(["run", "-q", "--", "true"]);
    command.env("SANDBOX_PROVIDER", "nowhere");
    let ran = run(command);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("was chosen by: SANDBOX_PROVIDER"), "{ran:?}");
    // A program on its own: there may be plugins beside the one that is tested.
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("sandboxctl");
    std::fs::copy(crate::common::BIN, &alone).unwrap();
    let mut command = std::process::Command::new(alone);
    command.args(["run", "-q", "--", "true"]).env_clear().env("HOME", folder.path());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let ran = run(command);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("is not installed"), "{ran:?}");
}

#[test]
fn missing_isolation_is_said_once_and_can_be_silenced() {
    let warning = "warning: provider local runs commands on this machine without isolation";
    assert_eq!(ctl(["run", "--", "true"]).stderr, "", "isolation is the default, and nothing to talk about");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("none.toml");
    std::fs::write(&config, "[providers.local]\nisolation = \"none\"\n").unwrap();
    let not_isolated = |args: &[&str]| sandboxctl([&["--config", config.to_str().unwrap(), "run"], args].concat());
    let ran = run(not_isolated(&["--", "true"]));
    assert_eq!((ran.code, ran.stderr.matches(warning).count()), (0, 1), "{ran:?}");
    assert_eq!(run(not_isolated(&["-q", "--", "true"])).stderr, "");
    let mut command = not_isolated(&["--", "true"]);
    command.env("SANDBOX_NO_ISOLATION_WARNING", "1");
    assert_eq!(run(command).stderr, "");
}

#[test]
fn the_result_file_tells_our_codes_from_the_commands() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let outcome = |args: &[&str]| {
        ctl([&["run", "-q", "--result", file.to_str().unwrap()], args].concat());
        let result: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        (result["outcome"].as_str().unwrap().to_owned(), result["exit_code"].as_i64().unwrap())
    };
    assert_eq!(outcome(&["--", "sh", "-c", "exit 124"]), ("exited".to_owned(), 124));
    assert_eq!(outcome(&["--timeout", "200ms", "--", "sleep", "9"]), ("timeout".to_owned(), 124));
    assert_eq!(outcome(&["--", "nosuch-program"]), ("start_failed".to_owned(), 127));
    assert_eq!(outcome(&["--", "sh", "-c", "kill -9 $$"]), ("signalled".to_owned(), 137));
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "\"$0\" run -q --result fd:3 -- sh -c 'echo data; exit 5' 3>&2", crate::common::BIN]);
    shell.env("SANDBOX_PROVIDER_DIR", crate::common::provider_dir());
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let ran = run(shell);
    assert_eq!((ran.code, ran.stdout.as_str()), (5, "data\n"), "{ran:?}");
    assert!(ran.stderr.contains("\"exit_code\":5"), "{ran:?}");
}
