//! The conformance suite on every provider, two at a time: more would only wait for each other on two cores.

use std::{
    panic::resume_unwind,
    process::{Command, ExitCode, Stdio},
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Result, anyhow, bail};

use crate::{
    build,
    engine::{self, Engine},
};

/// How many suites run at once.
const LANES: usize = 2;

/// Those that take longest, first of all: what is short fills the gap at the end.
const LONGEST_FIRST: [&str; 4] = ["docker", "opensandbox", "fargate", "local"];

/// This program, also when its file is another by now: cargo has built it again with the workspace.
const THIS: &str = "/proc/self/exe";

/// A part of a run, how it ended, and what is to be seen at the very end of it all.
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) ended: Result<()>,
    pub(crate) notes: Vec<String>,
}

impl Part {
    pub(crate) fn new(name: impl Into<String>, ended: Result<()>) -> Self {
        Self { name: name.into(), ended, notes: Vec::new() }
    }
}

/// Runs the suite on every provider and tells how each run ended.
///
/// # Errors
/// When the providers cannot be found.
pub(crate) fn every_provider(engine: &Engine) -> Result<Vec<Part>> {
    let mut names = build::providers()?;
    names.sort_by_key(|name| LONGEST_FIRST.iter().position(|first| first == name).unwrap_or(LONGEST_FIRST.len()));
    let waiting = Mutex::new(names.into_iter());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let lane = || std::iter::from_fn(next).map(|name| apart(name, engine)).collect::<Vec<_>>();
    let mut ended: Vec<Part> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        let ended = lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic)));
        ended.flatten().collect()
    });
    ended.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(ended)
}

/// Runs the suite on one provider in a process of its own, and shows what it said in one piece.
fn apart(name: String, engine: &Engine) -> Part {
    let mut run = Command::new(THIS);
    run.args(["conformance", &name]).env(engine::VARIABLE, engine.address()).stdin(Stdio::null());
    let mut part = Part::new(format!("conformance of {name}"), Ok(()));
    match run.output() {
        Ok(output) => {
            let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            println!("==> {}\n{said}{told}", part.name);
            let of_note =
                |line: &&str| line.starts_with(" FAIL ") || line.contains(" (flaky;") || line.starts_with("error: ");
            part.notes = said.lines().chain(told.lines()).filter(of_note).map(str::to_owned).collect();
            if !output.status.success() {
                part.ended = Err(anyhow!("{}", output.status));
            }
        }
        Err(error) => part.ended = Err(anyhow!("cannot start the conformance suite: {error}")),
    }
    part
}

/// Runs the suite on every provider, and says which of them failed.
pub(crate) fn all() -> Result<ExitCode> {
    let engine = Engine::start()?;
    Ok(report(every_provider(&engine)?))
}

/// Success, or that something failed.
pub(crate) fn succeeded(code: ExitCode) -> Result<()> {
    match code {
        ExitCode::SUCCESS => Ok(()),
        _ => bail!("it failed, see above"),
    }
}

/// Prints how each part ended, with its notes; a success when all of them were.
pub(crate) fn report(parts: impl IntoIterator<Item = Part>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for part in parts {
        match part.ended {
            Ok(()) => println!("==> {}: passed", part.name),
            Err(error) => {
                println!("==> {}: FAILED: {error:#}", part.name);
                code = ExitCode::FAILURE;
            }
        }
        for note in part.notes {
            println!("    {}", note.trim());
        }
    }
    code
}
