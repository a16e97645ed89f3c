//! The conformance suite on every provider: those that share this machine's kernel in one lane, those with a backend of
//! their own in another beside it. The suite mostly waits, so that two of them fit on two cores.

use std::{
    process::{Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Result, anyhow, bail};

use crate::{
    build,
    engine::{self, Engine},
};

/// What runs on this machine's kernel: it measures limits and counts what is left, so it is not run beside its like.
const OF_THIS_KERNEL: [&str; 2] = ["docker", "local"];

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
    let (own, others): (Vec<_>, Vec<_>) =
        build::providers()?.into_iter().partition(|name| OF_THIS_KERNEL.contains(&name.as_str()));
    let lane = |names: Vec<String>| names.into_iter().map(|name| apart(name, engine)).collect::<Vec<_>>();
    let mut ended = thread::scope(|scope| {
        let beside = scope.spawn(|| lane(others));
        let mut ended = lane(own);
        match beside.join() {
            Ok(others) => ended.extend(others),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        ended
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
