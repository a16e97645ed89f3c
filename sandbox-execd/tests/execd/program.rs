//! The program as the first process of a container, and as an image.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
};

use crate::support::Daemon;

/// The program under the name of a container's first process, in a network of its own: its port is a fixed one.
fn bootstrap(folder: &Path, command: &[&str]) -> Command {
    let program = folder.join("bootstrap.sh");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_sandbox-execd"), &program).unwrap();
    let mut own = Command::new("unshare");
    own.args(["--net", "--"]).arg(program).args(command).stdin(Stdio::null()).stdout(Stdio::piped());
    own
}

#[test]
fn the_first_process_of_a_container_is_as_the_command_that_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo out; echo err >&2; exit 7";
    let output = bootstrap(folder.path(), &["sh", "-c", script]).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    std::fs::remove_file(folder.path().join("bootstrap.sh")).unwrap();
    let missing = bootstrap(folder.path(), &["no-such-program"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
}

#[test]
fn signals_to_the_first_process_reach_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let mut child = bootstrap(folder.path(), &["sh", "-c", script]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn an_image_holds_the_program_and_a_link_to_it_by_its_other_name() {
    let output = Command::new(env!("CARGO_BIN_EXE_sandbox-execd")).arg("--image").output().unwrap();
    assert!(output.status.success());
    let own = std::fs::read(env!("CARGO_BIN_EXE_sandbox-execd")).unwrap();
    let mut archive = tar::Archive::new(&output.stdout[..]);
    let mut entries = archive.entries().unwrap();
    let mut program = entries.next().unwrap().unwrap();
    assert_eq!((program.path().unwrap().to_str(), program.header().mode().unwrap()), (Some("execd"), 0o755));
    let mut contents = Vec::new();
    program.read_to_end(&mut contents).unwrap();
    assert!(contents == own);
    let link = entries.next().unwrap().unwrap();
    let (name, target) = (link.path().unwrap(), link.link_name().unwrap().unwrap());
    assert_eq!((name.to_str(), target.to_str()), (Some("bootstrap.sh"), Some("execd")));
    assert!(entries.next().is_none());
}

#[tokio::test]
async fn a_signal_ends_it_in_order() {
    let mut daemon = Daemon::start();
    // From its first answer on.
    assert_eq!(daemon.get("/ping").await.status, 200);
    let pid = daemon.child.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    assert!(daemon.child.wait().unwrap().success());
}

#[test]
fn wrong_words_are_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_sandbox-execd")).arg("--what").output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage"));
}
