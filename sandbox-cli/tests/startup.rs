//! Help, version and completion load nothing and read nothing.

mod common;

use std::{
    io::Write,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::{bare, run};

/// A folder whose plugin cannot be read as one: whoever looks at it says so.
fn broken_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libsandbox_provider_local.so"), "broken").unwrap();
    folder
}

fn broken(args: &[&str], folder: &tempfile::TempDir) -> Command {
    let mut command = bare(args);
    command.env("SANDBOX_PROVIDER_DIR", folder.path()).env("SANDBOX_PLUGIN_PATH", folder.path());
    command
}

#[test]
fn help_takes_less_than_20_ms_beside_a_broken_plugin() {
    let folder = broken_folder();
    assert_eq!(run(broken(&["run", "-q", "--", "true"], &folder)).code, 125, "the folder is looked at otherwise");
    for args in [&["--help"][..], &["run", "--help"], &["version"], &["completion", "bash"]] {
        // Noise of the machine only adds: the fastest is the program's own.
        let best = fastest_of_60(args, &folder);
        println!("{args:?}: {best:?}");
        assert!(best < Duration::from_millis(20), "{args:?}: {best:?}");
    }
}

fn fastest_of_60(args: &[&str], folder: &tempfile::TempDir) -> Duration {
    let once = |_| {
        let started = Instant::now();
        let ran = run(broken(args, folder));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
        started.elapsed()
    };
    (0..60).map(once).min().expect("there are some")
}

#[test]
fn help_reads_no_configuration() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sandbox.toml"), "not toml [").unwrap();
    for args in [&["--help"][..], &["version"], &["completion", "zsh"], &["-V"]] {
        let mut command = bare(args);
        command.current_dir(folder.path());
        assert_eq!(run(command).code, 0, "{args:?}");
    }
    let mut command = bare(["providers", "ls"]);
    command.current_dir(folder.path());
    assert_eq!(run(command).code, 2, "where it counts, it is read");
}

#[test]
fn completion_scripts_are_read_by_their_shells() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(bare(["completion", shell]));
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.stdout.contains("providers"), "{shell}");
    }
    let script = run(bare(["completion", "bash"])).stdout;
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = bash.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn help_lists_what_works_and_nothing_else() {
    let help = run(bare(["--help"])).stdout;
    for command in [
        "run",
        "create",
        "exec",
        "shell",
        "ls",
        "status",
        "stop",
        "cp",
        "logs",
        "wait",
        "kill",
        "pause",
        "resume",
        "renew",
        "stats",
        "snapshot",
        "gc",
        "compose",
        "providers",
        "plugin",
        "explain",
        "config",
        "completion",
        "version",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
    }
    for later in ["serve", "mcp", "bench"] {
        assert!(!help.contains(&format!("\n  {later} ")), "{later}");
    }
}
