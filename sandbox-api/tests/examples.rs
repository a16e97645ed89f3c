//! The examples, run as they are.

mod built;
mod local;

use std::process::{Command, Stdio};

fn run(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(built::examples().join(name))
        .args(arguments)
        .env("SANDBOX_AGENT", local::agent())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn quickstart() {
    assert_eq!(run("quickstart", &[]), "hello world\nkept\nexit code 3\n");
}

#[test]
fn streaming() {
    assert_eq!(run("streaming", &[]), "got one\ngot two\nend of input\nended with 143\n");
}

#[test]
fn terminal() {
    let said = run("terminal", &[]).replace('\r', "");
    assert!(said.starts_with("hello terminal in /tmp\n") && said.contains("50 120\nbye\nended with 0\n"), "{said}");
}

#[test]
fn blocking() {
    assert_eq!(run("blocking", &[]), "0\n1\n2\n3\n");
}

#[test]
fn reattach_from_a_second_process() {
    let said = run("reattach", &[]).replace('\r', "");
    for part in ["from the first\n", "got from the second\n", "the second one ended with exit status: 0\n"] {
        assert!(said.contains(part), "{part:?} in {said:?}");
    }
}

fn nothing_is_left(said: &str, sandboxes: usize) {
    assert!(said.contains(" 0 wrong answers\n"), "{said}");
    assert!(said.contains("left: 0 processes, 0 folders\n"), "{said}");
    let number = |before: &str| -> usize {
        let rest = said.split_once(before).unwrap().1;
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let (before, with_all, after) = (number("descriptors "), number("before, "), number("all up, "));
    assert!(with_all <= before + 64 + sandboxes * 8, "{said}");
    assert!(after <= before + 16, "{said}");
    assert!(number("memory at most ") <= 128 + sandboxes / 4, "{said}");
}

#[test]
fn j02_a_hundred_sandboxes_at_once_leave_nothing() {
    nothing_is_left(&run("many", &["100", "2", "none"]), 100);
}

#[test]
fn j02_a_thousand_isolated_sandboxes_at_once_run_ten_commands_each_and_leave_nothing() {
    nothing_is_left(&run("many", &["1000", "10", "namespaces"]), 1000);
}

#[test]
fn j02_isolated_ones_leave_nothing_either() {
    nothing_is_left(&run("many", &["20", "10", "namespaces"]), 20);
}
