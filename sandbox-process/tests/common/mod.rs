//! Helpers of the tests: run a command to its end, find what is left of it, wait with a deadline.
#![allow(dead_code, unreachable_pub, reason = "each test file uses some of them")]

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sandbox_process::{Command, Ending, Event, Exit, Limits, Process, ProcessSet, StartError};

/// Everything a command did.
pub struct Done {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit: Exit,
}

impl Done {
    pub fn ending(&self) -> Ending {
        self.exit.ending
    }
}

/// Takes events to the end and checks that nothing follows the exit.
pub async fn collect(process: &mut Process) -> Done {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match process.next_event().await {
            Some(Event::Stdout(bytes)) => stdout.extend_from_slice(&bytes),
            Some(Event::Stderr(bytes)) => stderr.extend_from_slice(&bytes),
            Some(Event::Exit(exit)) => {
                assert!(process.next_event().await.is_none(), "the exit must be the last event");
                return Done { stdout, stderr, exit };
            }
            other => panic!("no exit event: {other:?}"),
        }
    }
}

pub async fn run(set: &ProcessSet, command: Command, limits: Limits) -> Result<Done, StartError> {
    let mut process = set.spawn(command, limits).await?;
    Ok(collect(&mut process).await)
}

/// A shell command whose processes can be found by their environment.
pub fn marked(script: &str) -> (Command, Mark) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mark = Mark(format!("SBX_MARK={}-{}-end", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let (name, value) = mark.0.split_once('=').expect("made above");
    (sh(script).env(name, value), mark)
}

pub fn sh(script: &str) -> Command {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    Command::new(["/bin/sh", "-c", script]).env("PATH", path)
}

/// Finds the living processes of one command, wherever they moved to.
pub struct Mark(String);

impl Mark {
    pub fn text(&self) -> &str {
        &self.0
    }

    pub fn from_text(text: &str) -> Mark {
        Mark(text.to_owned())
    }

    pub fn alive(&self) -> usize {
        let mark = self.0.as_bytes();
        processes()
            .filter(|pid| {
                let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environ.split(|&byte| byte == 0).any(|entry| entry == mark) && state(*pid).is_some_and(|s| s != b'Z')
            })
            .count()
    }
}

pub fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc is there");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The state letter of a process.
pub fn state(pid: u32) -> Option<u8> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(name_end + 2).copied()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The children of a process, dead ones included.
pub fn children(of: u32) -> Vec<u32> {
    processes().filter(|&pid| parent(pid) == Some(of)).collect()
}

/// Dead but unreaped children of this process.
pub fn zombies() -> usize {
    children(std::process::id()).into_iter().filter(|&pid| state(pid) == Some(b'Z')).count()
}

pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is there").count()
}

/// Waits until the condition holds; fails after thirty seconds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails when the future takes longer than it may.
pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("took longer than {limit:?}"))
}

pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
