//! Bytes in and out of `sandboxctl run`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
    time::Duration,
};

use crate::common::{ctl, eventually, processes_with, run, run_with_input, sandboxctl, token, wait};

/// Every byte value, and no pattern that a text layer would keep by chance.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_u32;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}

#[test]
fn ten_megabytes_through_cat_are_equal() {
    let data = noise(10 * 1024 * 1024);
    let output = run_with_input(sandboxctl(["run", "-q", "--", "cat"]), &data);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == data, "{} bytes came back", output.stdout.len());
}

#[test]
fn a_file_as_input_comes_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (path, data) = (folder.path().join("in"), noise(300_001));
    std::fs::write(&path, &data).unwrap();
    let output = sandboxctl(["run", "-q", "--stdin", path.to_str().unwrap(), "--", "cat"]).output().unwrap();
    assert!(output.stdout == data);
    assert_eq!(ctl(["run", "--stdin", "/no/such/file", "--", "cat"]).code, 2);
}

#[test]
fn both_streams_stay_apart() {
    let ran = ctl(["run", "-q", "--", "sh", "-c", "printf 'o\\0\\377'; printf e >&2"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "e"));
    let output = sandboxctl(["run", "-q", "--", "printf", "o\\0\\377"]).output().unwrap();
    assert_eq!(output.stdout, b"o\0\xff");
}

#[test]
fn input_arrives_while_it_is_written() {
    let mut child = sandboxctl(["run", "-q", "--", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for word in ["one\n", "two\n"] {
        stdin.write_all(word.as_bytes()).unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, word);
    }
    drop(stdin);
    assert_eq!(wait(&mut child, Duration::from_secs(10)).unwrap().code(), Some(0));
}

#[test]
fn a_command_that_does_not_read_its_input_ends() {
    // The writer keeps our input open: nobody may wait for its end.
    let mut child = sandboxctl(["run", "-q", "--", "true"]).stdin(Stdio::piped()).spawn().unwrap();
    let _held = child.stdin.take().unwrap();
    assert_eq!(wait(&mut child, Duration::from_secs(10)).unwrap().code(), Some(0));
}

#[test]
fn closed_input_reads_as_end_of_file() {
    assert_eq!(ctl(["run", "-q", "--", "cat"]).code, 0);
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", "\"$0\" run -q -- cat <&-", crate::common::BIN])
        .env("SANDBOX_PROVIDER_DIR", crate::common::provider_dir());
    assert_eq!(run(shell).code, 0);
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let token = token("pipe");
    let command = format!("SEEN={token}");
    let mut child = sandboxctl(["run", "-q", "-e", &command, "--", "yes"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 2];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let status = wait(&mut child, Duration::from_secs(10)).expect("it ends");
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(141), ""));
    assert!(eventually(|| processes_with(&token, 0).is_empty()));
}

#[test]
fn a_list_that_is_cut_off_ends_quietly_too() {
    // Nobody reads from the start: what is written first finds that out.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = sandboxctl(["completion", "bash"]).stdout(writer).spawn().unwrap();
    let status = wait(&mut child, Duration::from_secs(10)).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(141), ""));
}

#[test]
fn nothing_of_our_environment_is_in_the_sandbox() {
    let mut command = sandboxctl(["run", "-q", "-e", "GIVEN=1", "-e", "COPIED", "--", "env"]);
    command.env("CANARY", "canary").env("COPIED", "copy");
    let ran = run(command);
    assert!(ran.stdout.contains("GIVEN=1\n") && ran.stdout.contains("COPIED=copy\n"), "{ran:?}");
    assert!(!ran.stdout.contains("CANARY") && !ran.stdout.contains("SANDBOX_PROVIDER_DIR"), "{ran:?}");
}

#[test]
fn arguments_are_not_read_by_a_shell() {
    let ran = ctl(["run", "-q", "--", "printf", "%s|", "$HOME", "a b", "*", "", "-o", "--", "-q"]);
    assert_eq!(ran.stdout, "$HOME|a b|*||-o|--|-q|");
}
