//! Programs that may crash or hang, run so that the test lives on.

use std::{
    io::Read,
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It was still running at the deadline, and was killed.
    Deadline,
}

/// A child that is over.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub ending: Ending,
    /// What it printed.
    pub stdout: String,
    /// What it complained.
    pub stderr: String,
}

/// Runs a program to its end, or to the deadline.
///
/// # Panics
/// When it cannot be started.
pub fn run(command: &mut Command, deadline: Duration) -> Ended {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // Both are read all the time, so that a full pipe holds nobody.
    let stdout = thread::spawn(move || read(stdout));
    let stderr = thread::spawn(move || read(stderr));
    let start = Instant::now();
    let ending = loop {
        match child.try_wait().expect("a child of ours can be waited for") {
            Some(status) => {
                break status.code().map_or_else(|| Ending::Signal(status.signal().unwrap_or(0)), Ending::Code);
            }
            None if start.elapsed() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                break Ending::Deadline;
            }
            None => thread::sleep(Duration::from_millis(2)),
        }
    };
    let join = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Ended { ending, stdout: join(stdout), stderr: join(stderr) }
}

fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
