//! Sandboxes that outlive the program: every command is a process of its own.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use crate::common::{Ran, eventually, run, run_with_input, sandboxctl, token};

/// A place for the state of one test; what is still there at its end is removed.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = sandboxctl(args);
        command.env("XDG_STATE_HOME", self.folder().join("state"));
        command
    }

    fn ctl(&self, args: &[&str]) -> Ran {
        run(self.command(args))
    }

    /// What it writes, when it succeeds.
    fn ok(&self, args: &[&str]) -> String {
        let ran = self.ctl(args);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    fn create(&self, name: &str) {
        assert_eq!(self.ok(&["create", "--name", name, "--ttl", "10m"]), name);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let ran = self.ctl(&["stop", "--all", "--yes"]);
        if ran.code != 0 && !std::thread::panicking() {
            panic!("not everything could be removed: {ran:?}");
        }
    }
}

#[test]
fn a_sandbox_is_created_used_listed_and_stopped_by_different_processes() {
    let place = Place::new();
    let created = place.ok(&["create", "--name", "eval-7", "--label", "run=42", "--ttl", "30m", "-e", "WHO=world"]);
    assert_eq!(created, "eval-7");
    assert_eq!(place.ok(&["exec", "eval-7", "--", "sh", "-c", "echo hello $WHO > f; cat f"]), "hello world");
    assert_eq!(place.ok(&["exec", "eva", "--", "cat", "f"]), "hello world", "the beginning of a name is enough");
    assert_eq!(place.ok(&["ls", "-q"]), "eval-7");
    let list = place.ok(&["ls"]);
    let row = list.lines().nth(1).unwrap_or_default();
    for part in ["eval-7", "local", "running", "run=42"] {
        assert!(row.contains(part), "{part} is not in {row:?}");
    }
    let json: serde_json::Value = serde_json::from_str(&place.ok(&["ls", "-o", "json"])).unwrap();
    assert_eq!(json["schema"], "v1");
    assert_eq!(json["sandboxes"][0]["state"], "running");
    let status: serde_json::Value = serde_json::from_str(&place.ok(&["status", "eval-7", "-o", "json"])).unwrap();
    assert_eq!((&status["state"], &status["isolation"]), (&"running".into(), &"namespaces".into()));
    place.ok(&["stop", "eval-7"]);
    assert_eq!(place.ok(&["ls", "-q"]), "");
    let gone = place.ctl(&["exec", "eval-7", "--", "true"]);
    assert_eq!(gone.code, 2, "{gone:?}");
    assert!(gone.stderr.contains("no sandbox \"eval-7\""), "{gone:?}");
}

#[test]
fn exec_passes_codes_input_and_limits_through() {
    let place = Place::new();
    place.create("box");
    let code = |args: &[&str]| place.ctl(&[&["exec", "box"], args].concat()).code;
    assert_eq!(code(&["--", "sh", "-c", "exit 7"]), 7);
    assert_eq!(code(&["--", "sh", "-c", "kill -9 $$"]), 137);
    assert_eq!(code(&["--", "nosuch-program"]), 127);
    assert_eq!(code(&["--timeout", "300ms", "--", "sleep", "60"]), 124);
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let output = run_with_input(place.command(&["exec", "box", "--", "cat"]), &bytes);
    assert!(output.status.success() && output.stdout == bytes, "a MiB through cat");
    let file = place.folder().join("result");
    let asked = place.ctl(&["exec", "box", "--result", file.to_str().unwrap(), "--", "sh", "-c", "exit 124"]);
    assert_eq!(asked.code, 124);
    let result: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(result["outcome"], "exited");
    assert_eq!(place.ok(&["exec", "box", "-w", "/tmp", "-e", "A=b", "--", "sh", "-c", "pwd; echo $A"]), "/tmp\nb");
}

#[test]
fn jobs_run_on_and_their_output_is_kept() {
    let place = Place::new();
    place.create("box");
    let script = "echo one; echo warn >&2; while ! test -e go; do sleep 0.05; done; echo two; exit 5";
    let job = place.ok(&["exec", "-d", "box", "--", "sh", "-c", script]);
    assert!(!job.is_empty());
    let has_output = || place.ctl(&["logs", "box", "--job", &job]).stdout == "one\n";
    assert!(eventually(has_output), "{:?}", place.ctl(&["logs", "box"]));
    assert_eq!(place.ctl(&["wait", "box", "--job", &job, "--timeout", "200ms"]).code, 124);
    place.ok(&["exec", "box", "--", "touch", "go"]);
    assert_eq!(place.ctl(&["wait", "box", "--job", &job]).code, 5);
    let logs = place.ctl(&["logs", "-f", "box"]);
    assert_eq!((logs.stdout.as_str(), logs.stderr.as_str()), ("one\ntwo\n", "warn\n"));
    assert_eq!(place.ctl(&["logs", "box", "--tail", "4"]).stdout, "two\n");
    assert_eq!(place.ctl(&["logs", "box", "--since", "4"]).stdout, "two\n");
    assert_eq!(place.ok(&["logs", "box", "--job", "all", "-q"]), job);
    let long = place.ok(&["exec", "-d", "box", "--", "sleep", "600"]);
    place.ok(&["kill", "box", "--job", &long]);
    assert_eq!(place.ctl(&["wait", "box", "--job", &long]).code, 137);
    let unknown = place.ctl(&["kill", "box", "--job", "nosuch"]);
    assert!(unknown.code != 0 && unknown.stderr.contains("nosuch"), "{unknown:?}");
}

#[test]
fn files_and_folders_are_copied_both_ways() {
    let place = Place::new();
    place.create("box");
    let here = |name: &str| place.folder().join(name).to_str().unwrap().to_owned();
    fs::create_dir_all(here("tree/sub")).unwrap();
    fs::write(here("tree/sub/f"), b"deep\0").unwrap();
    fs::write(here("file"), b"flat").unwrap();
    place.ok(&["cp", &here("file"), "box:copy"]);
    place.ok(&["cp", &here("tree"), "box:/tmp"]);
    place.ok(&["cp", &here("tree/."), "box:contents"]);
    let listing = "cat copy; cat /tmp/tree/sub/f contents/sub/f | od -An -tx1 | tr -d ' \\n'";
    assert_eq!(place.ok(&["exec", "box", "--", "sh", "-c", listing]), "flat64656570006465657000");
    fs::create_dir(here("out")).unwrap();
    place.ok(&["cp", "box:/tmp/tree", &here("out")]);
    place.ok(&["cp", "box:copy", &here("out")]);
    place.ok(&["cp", "box:copy", &here("renamed")]);
    assert_eq!(fs::read(here("out/tree/sub/f")).unwrap(), b"deep\0");
    assert_eq!(
        (fs::read(here("out/copy")).unwrap(), fs::read(here("renamed")).unwrap()),
        (b"flat".into(), b"flat".into())
    );
    let both = place.ctl(&["cp", "box:a", "box:b"]);
    assert_eq!(both.code, 2, "{both:?}");
    let missing = place.ctl(&["cp", &here("nosuch"), "box:x"]);
    assert!(missing.code == 2 && missing.stderr.contains("nosuch"), "{missing:?}");
}

#[test]
fn the_life_of_a_sandbox_is_moved_and_ends_by_itself() {
    let place = Place::new();
    place.ok(&["create", "--name", "short", "--ttl", "2s"]);
    place.ok(&["create", "--name", "moved", "--ttl", "2s"]);
    place.ok(&["renew", "moved", "10m"]);
    assert!(eventually(|| place.ctl(&["exec", "short", "--", "true"]).code != 0), "it outlives its time");
    place.ok(&["gc", "--provider", "local"]);
    assert_eq!(place.ok(&["exec", "moved", "--", "echo", "here"]), "here");
    assert_eq!(place.ok(&["ls", "-q"]), "moved");
}

#[test]
fn stats_are_shown_and_a_paused_sandbox_goes_on_after_its_resume() {
    let place = Place::new();
    place.create("box");
    let stats: serde_json::Value = serde_json::from_str(&place.ok(&["stats", "box", "-o", "json"])).unwrap();
    assert_eq!(stats["sandboxes"][0]["name"], "box");
    assert!(stats["sandboxes"][0]["metrics"]["processes"].as_u64().is_some_and(|count| count > 0), "{stats}");
    let paused = place.ctl(&["pause", "box"]);
    if paused.code != 0 {
        // Without a freezer that can be written the provider does not have it.
        assert!(paused.stderr.contains("pause"), "{paused:?}");
        return;
    }
    assert_eq!(place.ctl(&["status", "box"]).code, 1);
    assert_ne!(place.ctl(&["exec", "box", "--", "true"]).code, 0);
    place.ok(&["resume", "box"]);
    assert_eq!(place.ok(&["exec", "box", "--", "echo", "on"]), "on");
}

#[test]
fn names_are_checked_and_wrong_ones_are_answered_with_the_nearest() {
    let place = Place::new();
    place.create("eval-7");
    let taken = place.ctl(&["create", "--name", "eval-7"]);
    assert!(taken.code == 2 && taken.stderr.contains("already"), "{taken:?}");
    let path = place.ctl(&["create", "--name", "../x"]);
    assert!(path.code == 2 && path.stderr.contains("name: must be"), "{path:?}");
    let near = place.ctl(&["exec", "evl-7", "--", "true"]);
    assert!(near.code == 2 && near.stderr.contains("did you mean \"eval-7\""), "{near:?}");
    let json = place.ctl(&["-o", "json", "exec", "evl-7", "--", "true"]);
    let error: serde_json::Value = serde_json::from_str(json.stderr.trim()).unwrap();
    assert_eq!(error["error"]["code"], "sandbox.not_found");
    place.create("other");
    let several = place.ctl(&["stop", "eval-7", "other"]);
    assert!(several.code == 2 && several.stderr.contains("--yes"), "{several:?}");
    place.ok(&["stop", "--yes", "eval-7", "other"]);
}

#[test]
fn a_killed_create_leaves_nothing_behind_after_gc() {
    let place = Place::new();
    let mut marks = Vec::new();
    for round in 0..6_u64 {
        let mark = token("killed-create");
        marks.push(serde_json::Value::from(mark.clone()));
        let mut command = place.command(&["create", "--ttl", "10m", "--label", &format!("mark={mark}")]);
        let mut child = command.env("MARK", &mark).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 + 25 * round));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // What was made whole is known; what was not is found by the provider.
    place.ok(&["stop", "--all", "--yes"]);
    let is_clean = || place.ok(&["gc", "--provider", "local"]).is_empty();
    assert!(eventually(is_clean), "there is always something to remove");
    let all: serde_json::Value = serde_json::from_str(&place.ok(&["ls", "--all", "-o", "json"])).unwrap();
    // Other tests have sandboxes, too.
    let all = all["sandboxes"].as_array().unwrap().iter();
    let left: Vec<_> =
        all.filter(|entry| entry["state"] != "stopped" && marks.contains(&entry["labels"]["mark"])).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A terminal for the program, kept by python: writes each line of input when the output has what stands before it.
const TERMINAL: &str = r"
import os, pty, select, sys, time
steps = [line.split('\t') for line in sys.argv[1].split('\n')]
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
seen, at, end = b'', 0, time.time() + 40
while time.time() < end:
    if steps and steps[0][0].encode() in seen[at:]:
        at = len(seen)
        os.write(fd, steps.pop(0)[1].encode().decode('unicode_escape').encode('latin-1'))
    ready = select.select([fd], [], [], 0.1)[0]
    if not ready: continue
    try: data = os.read(fd, 65536)
    except OSError: break
    if not data: break
    seen += data
sys.stdout.buffer.write(seen)
sys.stdout.flush()
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
";

fn in_terminal(place: &Place, steps: &str, args: &[&str]) -> Ran {
    let inner = place.command(args);
    let mut command = Command::new("python3");
    command.args(["-c", TERMINAL, steps]).arg(inner.get_program()).args(inner.get_args()).env_clear();
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm");
    command.stdin(Stdio::null()).output().expect("python3 is there").into()
}

#[test]
fn a_shell_is_a_terminal_and_its_code_is_passed_on() {
    let place = Place::new();
    place.create("box");
    let ran =
        in_terminal(&place, "\techo $((40+2)); test -t 0 && echo is-a-tty\\n\nis-a-tty\texit 9\\n", &["shell", "box"]);
    assert_eq!(ran.code, 9, "{ran:?}");
    assert!(ran.stdout.contains("42") && ran.stdout.contains("is-a-tty"), "{ran:?}");
    let without = place.ctl(&["shell", "box"]);
    assert!(without.code == 2 && without.stderr.contains("terminal"), "{without:?}");
}

#[test]
fn a_shell_that_was_left_goes_on_and_is_come_back_to() {
    let place = Place::new();
    place.create("box");
    let steps = "\tKEPT=yes; echo re''ady\\n\nready\t\\x10\\x11";
    let left = in_terminal(&place, steps, &["shell", "box"]);
    assert_eq!(left.code, 0, "{left:?}");
    let session = left.stdout.split("--attach ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let session = session.unwrap_or_else(|| panic!("no session in {left:?}"));
    let steps = "\techo value=$KEPT.\\n\nvalue=yes.\texit 0\\n";
    let back = in_terminal(&place, steps, &["shell", "box", "--attach", session, "--since", "0"]);
    assert_eq!(back.code, 0, "{back:?}");
    assert!(back.stdout.contains("ready") && back.stdout.contains("value=yes."), "{back:?}");
}
