//! What a command costs through the agent, against fork and exec from this process; a large file by descriptor, against
//! a copy by the kernel; and what the agent holds when it is idle. Medians of interleaved rounds.
//!
//! `cargo run --release -p sandbox-agent --example agent_overhead -- PATH-OF-AGENT`. On a machine that does something
//! else, too, run it with `chrt -r 5`: both sides of each ratio then come before the rest.

use std::{
    fs::File,
    os::{
        fd::AsRawFd,
        unix::{net::UnixStream as StdStream, process::CommandExt},
    },
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_core::{CaptureLimits, ExecOutcome, ExecRequest, ReadRange, WriteOptions};
use sandbox_protocol::{Client, ClientOptions};
use tokio::{net::UnixStream, task::JoinSet};

const ROUNDS: usize = 60;
const FILE_ROUNDS: usize = 7;
const FILE_BYTES: usize = 256 << 20;
/// Longer than the agent waits before it gives back what it does not need.
const IDLE: Duration = Duration::from_secs(12);
const PROGRAM: &str = "/bin/true";
const FD: i32 = 10;

fn main() {
    let agent = std::env::args().nth(1).expect("the agent's path is the argument");
    let (ours, theirs) = StdStream::pair().expect("a socket pair");
    let fd = theirs.as_raw_fd();
    let mut command = Command::new(agent);
    command.args(["serve", "--fd", &FD.to_string(), "--config", r#"{"die_on_disconnect":true}"#]);
    let place = move || {
        // dup2 onto itself would leave close-on-exec set.
        let placed = match fd {
            // SAFETY: fcntl takes plain numbers.
            FD => unsafe { libc::fcntl(fd, libc::F_SETFD, 0) },
            // SAFETY: dup2 takes plain numbers.
            _ => unsafe { libc::dup2(fd, FD) },
        };
        if placed < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: dup2, fcntl and the last error are all that is used between fork and exec.
    unsafe { command.pre_exec(place) };
    let mut child = command.spawn().expect("the agent starts");
    drop(theirs);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        ours.set_nonblocking(true).expect("a socket");
        let stream = UnixStream::from_std(ours).expect("a socket");
        let client = Arc::new(Client::connect_unix(stream, ClientOptions::default()).await.expect("the agent answers"));
        idle(child.id(), "after the handshake").await;
        println!("{:>8} {:>14} {:>14} {:>7}", "at once", "fork+exec", "agent", "ratio");
        for at_once in [1, 8, 32] {
            let (mut plain, mut through) = (Vec::new(), Vec::new());
            for round in 0..ROUNDS + 5 {
                let first = fork_exec(at_once);
                let second = exec(&client, at_once).await;
                if round >= 5 {
                    plain.push(first);
                    through.push(second);
                }
            }
            let (plain, through) = (median(plain), median(through));
            let each = |time: Duration| time.as_secs_f64() * 1e6 / at_once as f64;
            let ratio = through.as_secs_f64() / plain.as_secs_f64();
            println!("{at_once:>8} {:>11.0} us {:>11.0} us {ratio:>7.2}", each(plain), each(through));
        }
        transfers(&client).await;
        for _ in 0..1000 {
            exec(&client, 1).await;
        }
        idle(child.id(), "after 1,000 commands").await;
        client.close().await;
    });
    child.wait().expect("the agent ends");
}

/// What the agent holds when it had nothing to do for a while.
async fn idle(agent: u32, when: &str) {
    tokio::time::sleep(IDLE).await;
    let status = std::fs::read_to_string(format!("/proc/{agent}/status")).expect("the agent lives");
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a size");
        line.trim_end_matches(" kB").trim().parse::<u64>().expect("a number")
    };
    println!("idle {when}: {} KiB resident, {} KiB of them its own", kib("VmRSS:"), kib("RssAnon:"));
}

async fn transfers(client: &Client) {
    if !client.passes_descriptors() {
        return println!("no descriptors are passed");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("source"), vec![7; FILE_BYTES]).expect("is written");
    let inside = path("inside").to_str().expect("is text").to_owned();
    let (mut plain, mut up, mut down) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..FILE_ROUNDS {
        let begin = Instant::now();
        std::fs::copy(path("source"), path("plain")).expect("is copied");
        plain.push(begin.elapsed());
        let begin = Instant::now();
        let source = File::open(path("source")).expect("opens");
        let moved = client.write_file_from(inside.as_str(), WriteOptions::default(), &source).await.expect("is copied");
        up.push(begin.elapsed());
        assert_eq!(moved.bytes, FILE_BYTES as u64);
        let begin = Instant::now();
        let target = File::options().write(true).create_new(true).open(path("back")).expect("opens");
        client.read_file_into(inside.as_str(), ReadRange::default(), &target).await.expect("is copied");
        down.push(begin.elapsed());
        for name in ["plain", "inside", "back"] {
            std::fs::remove_file(path(name)).expect("is removed");
        }
    }
    let (plain, up, down) = (median(plain), median(up), median(down));
    let ratio = |time: Duration| time.as_secs_f64() / plain.as_secs_f64();
    println!("256 MiB: copied {plain:.0?}; in {up:.0?}, {:.2}; out {down:.0?}, {:.2}", ratio(up), ratio(down));
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// As many commands at once from threads, each with its output read to the end.
fn fork_exec(at_once: usize) -> Duration {
    let run = || {
        let output = Command::new(PROGRAM).env_clear().stdin(Stdio::null()).output().expect("starts");
        assert!(output.status.success());
    };
    let begin = Instant::now();
    match at_once {
        1 => run(),
        _ => std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(run)))),
    }
    begin.elapsed()
}

async fn exec(client: &Arc<Client>, at_once: usize) -> Duration {
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..at_once {
        let client = client.clone();
        tasks.spawn(async move {
            let stream = client.exec(ExecRequest::argv([PROGRAM])).await.expect("is taken");
            let result = stream.collect(CaptureLimits::default()).await.expect("ends");
            assert_eq!(result.exit.outcome, ExecOutcome::Exited(0));
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("ends well");
    }
    begin.elapsed()
}
