//! Measures how long a sandbox takes from its launch to its PID 1, beside fork+exec and bubblewrap, interleaved.
//!
//! `cargo run --release -p sandbox-agent --example ready -- AGENT [ROUNDS]`; needs `bwrap`, as root or as a user.

use std::io::{BufRead, BufReader, Error, Result};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandbox_agent::{LaunchConfig, Launcher, Network};

const BWRAP: &[&str] = &[
    "--unshare-all",
    "--die-with-parent",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--tmpfs",
    "/run",
    "--tmpfs",
    "/home",
    "/usr/bin/true",
];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let agent = arguments.next().ok_or_else(|| Error::other("usage: ready AGENT [ROUNDS]"))?;
    let rounds = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(100);
    let launcher = Launcher::new(agent);
    let kept = LaunchConfig { die_with_parent: Some(std::process::id()), ..LaunchConfig::default() };
    let detached = LaunchConfig { die_with_parent: None, ..kept.clone() };
    let host = LaunchConfig { network: Network::Host, ..detached.clone() };
    let init = LaunchConfig { init: Some(vec!["/usr/bin/true".into()]), ..kept.clone() };
    type Way<'a> = Box<dyn Fn() -> Result<Duration> + 'a>;
    let ways: Vec<(&str, Way<'_>)> = vec![
        ("fork+exec /usr/bin/true, to its end", Box::new(|| run("/usr/bin/true", &[]))),
        ("bwrap … /usr/bin/true, to its end", Box::new(|| run("/usr/bin/bwrap", BWRAP))),
        ("launch … init /usr/bin/true, to its end", Box::new(|| to_end(&launcher, &init))),
        ("launch → agent's first byte, kept", Box::new(|| ready(&launcher, &kept))),
        ("launch → agent's first byte, detached", Box::new(|| ready(&launcher, &detached))),
        ("prepared launch → agent's first byte, detached", Box::new(|| prepared(&launcher, &detached))),
        ("launch → agent's first byte, detached, host network", Box::new(|| ready(&launcher, &host))),
    ];
    let mut times = vec![Vec::new(); ways.len()];
    for round in 0..rounds + 3 {
        for at in 0..ways.len() {
            let at = (at + round) % ways.len();
            let took = ways[at].1()?;
            if round >= 3 {
                times[at].push(took);
            }
        }
    }
    println!("{:55} {:>8} {:>8} {:>8}", "", "p50 ms", "p90 ms", "min ms");
    for ((name, _), times) in ways.iter().zip(&mut times) {
        times.sort();
        let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
        println!("{name:55} {:8.2} {:8.2} {:8.2}", at(50), at(90), at(0));
    }
    Ok(())
}

fn run(program: &str, arguments: &[&str]) -> Result<Duration> {
    let before = Instant::now();
    let status = Command::new(program).args(arguments).stdin(Stdio::null()).status()?;
    if status.success() { Ok(before.elapsed()) } else { Err(Error::other(format!("{program} failed"))) }
}

fn to_end(launcher: &Launcher, config: &LaunchConfig) -> Result<Duration> {
    let before = Instant::now();
    let (_ours, theirs) = UnixStream::pair()?;
    let mut launched = launcher.launch(config, theirs.into()).map_err(|error| Error::other(format!("{error:?}")))?;
    launched.wait()?;
    Ok(before.elapsed())
}

fn prepared(launcher: &Launcher, config: &LaunchConfig) -> Result<Duration> {
    let failed = |error| Error::other(format!("{error:?}"));
    let (ours, theirs) = UnixStream::pair()?;
    let prepared = launcher.prepare(theirs.into()).map_err(failed)?;
    // The process start is what has been done before.
    std::thread::sleep(Duration::from_millis(2));
    let before = Instant::now();
    let mut launched = prepared.launch(config).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(&ours).read_line(&mut line)?;
    let took = before.elapsed();
    drop(ours);
    launched.wait()?;
    Ok(took)
}

fn ready(launcher: &Launcher, config: &LaunchConfig) -> Result<Duration> {
    let before = Instant::now();
    let (ours, theirs) = UnixStream::pair()?;
    let mut launched = launcher.launch(config, theirs.into()).map_err(|error| Error::other(format!("{error:?}")))?;
    let mut line = String::new();
    BufReader::new(&ours).read_line(&mut line)?;
    let took = before.elapsed();
    drop(ours);
    launched.wait()?;
    Ok(took)
}
