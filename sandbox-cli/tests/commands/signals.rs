//! Whatever ends `sandboxctl run`, nothing is left and it is never a success.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use crate::common::{eventually, processes_with, sandboxctl, send, token, wait};

const LIMIT: Duration = Duration::from_secs(10);

/// `env FLAGS sandboxctl run ARGS`: env becomes the program, so its process number is the program's.
fn with_signals(flags: &[&str], args: &[&str], temp: &Path) -> Child {
    let mut command = sandboxctl([flags, &[crate::common::BIN, "run", "-q"], args].concat());
    command.env("TMPDIR", temp);
    let mut env = Command::new("env");
    env.args(command.get_args()).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    env.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    env.spawn().expect("env of coreutils is there")
}

/// A run whose script has started.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// In the environment of every process of it.
    token: String,
    /// Where its sandbox is, and nothing else.
    temp: tempfile::TempDir,
}

impl Running {
    fn start(name: &str, script: &str) -> Self {
        let (token, temp) = (token(name), tempfile::tempdir().unwrap());
        let variable = format!("TOKEN={token}");
        let script = format!("echo started; {script}");
        let args = ["-e", &variable, "--", "sh", "-c", &script];
        // SIGINT ignored as well: a script that starts the program in the background makes it ignore that.
        let mut child = with_signals(&["--ignore-signal=INT", "--default-signal=HUP"], &args, temp.path());
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self { child, stdout, token, temp };
        let mut line = String::new();
        running.stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "started\n");
        assert!(!processes_with(&running.token, running.child.id()).is_empty(), "the token can be found");
        assert_eq!(running.sandboxes().len(), 1, "the sandbox can be found");
        running
    }

    fn send(&self, signal: &str) {
        send(&self.child, signal);
    }

    /// Waits for the end, which must have this code, and looks for what is left.
    fn ends_with(mut self, code: i32) {
        assert_eq!(wait(&mut self.child, LIMIT).expect("it ends").code(), Some(code));
        assert_eq!(self.sandboxes(), Vec::<String>::new(), "folders of sandboxes");
        self.no_process_is_left();
    }

    fn no_process_is_left(&self) {
        let left = || processes_with(&self.token, 0);
        assert!(eventually(|| left().is_empty()), "left: {:?}", left());
    }

    /// The folders of sandboxes that are there.
    fn sandboxes(&self) -> Vec<String> {
        let roots = fs::read_dir(self.temp.path()).unwrap().filter_map(Result::ok);
        let folders = roots.flat_map(|root| [root.path(), root.path().join(".inside")]);
        let sandboxes = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().filter_map(Result::ok);
        sandboxes
            .map(|found| found.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with("local-"))
            .collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of a test that has failed; what has ended needs neither.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

#[test]
fn one_interrupt_reaches_the_command_and_the_run_is_130_even_if_the_command_succeeds() {
    let mut running = Running::start("int", "trap 'echo caught; exit 0' INT; sleep 30 & wait");
    running.send("INT");
    let mut rest = String::new();
    running.stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "caught\n");
    running.ends_with(130);
}

#[test]
fn termination_and_hangup_are_143_and_129() {
    for (signal, code) in [("TERM", 143), ("HUP", 129)] {
        let running = Running::start(signal, "sleep 30 & setsid sleep 31 & wait");
        running.send(signal);
        running.ends_with(code);
    }
}

#[test]
fn a_second_interrupt_kills_a_command_that_ignores_the_first() {
    let mut running = Running::start("int2", "trap '' INT TERM; while :; do sleep 1; done");
    running.send("INT");
    assert!(wait(&mut running.child, Duration::from_millis(700)).is_none(), "the first one leaves it time");
    running.send("INT");
    running.ends_with(130);
}

#[test]
fn a_command_that_ignores_termination_is_killed_after_a_while() {
    let running = Running::start("term", "trap '' INT TERM; while :; do sleep 1; done");
    running.send("TERM");
    running.ends_with(143);
}

#[test]
fn an_interrupt_ends_a_run_whose_output_nobody_reads() {
    // The pipe is full: the program is in the middle of a write.
    let running = Running::start("full", "trap '' INT; yes");
    std::thread::sleep(Duration::from_millis(300));
    running.send("INT");
    std::thread::sleep(Duration::from_millis(50));
    running.send("INT");
    running.ends_with(130);
}

#[test]
fn interrupts_in_quick_succession_end_it_at_once_and_leave_no_process() {
    let mut running = Running::start("int3", "trap '' INT TERM; while :; do sleep 1; done");
    for _ in 0..3 {
        running.send("INT");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(wait(&mut running.child, LIMIT).expect("it ends").code(), Some(130));
    running.no_process_is_left();
}

#[test]
fn killing_the_program_kills_the_command() {
    let mut running = Running::start("kill", "sleep 30 & setsid sleep 31 & wait");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    running.no_process_is_left();
}

#[test]
fn a_hangup_that_we_were_started_to_ignore_stays_ignored() {
    let temp = tempfile::tempdir().unwrap();
    let args = ["--", "sh", "-c", "echo started; sleep 0.5; echo done"];
    let mut child = with_signals(&["--ignore-signal=HUP"], &args, temp.path());
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    stdout.read_line(&mut text).unwrap();
    send(&child, "HUP");
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!(wait(&mut child, LIMIT).expect("it ends").code(), Some(0));
    assert_eq!(text, "started\ndone\n");
}
