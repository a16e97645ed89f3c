//! The conformance suite on every provider: those that share this machine's kernel in one lane, those with a backend of
//! their own in another beside it. The suite mostly waits, so that two of them fit on two cores.

use std::{
    env,
    process::{Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context, Result, bail};

use crate::{build, conformance::conformance, engine::Engine};

/// What runs on this machine's kernel: it measures limits and counts what is left, so it is not run beside its like.
const OF_THIS_KERNEL: [&str; 2] = ["docker", "local"];

/// A provider, and how its run ended.
pub(crate) type Ended = (String, Result<()>);

/// Runs the suite on every provider and tells how each run ended.
///
/// # Errors
/// When the providers, or this program, cannot be found.
pub(crate) fn every_provider(engine: &Engine) -> Result<Vec<Ended>> {
    let this = env::current_exe().context("cannot find this program")?;
    let (own, others): (Vec<_>, Vec<_>) =
        build::providers()?.into_iter().partition(|name| OF_THIS_KERNEL.contains(&name.as_str()));
    let mut ended = thread::scope(|scope| {
        let beside = scope.spawn(|| others.into_iter().map(|name| apart(&this, name)).collect::<Vec<_>>());
        let mut ended: Vec<Ended> = own
            .into_iter()
            .map(|name| {
                let run = conformance(&name, false, Some(engine)).and_then(succeeded);
                (name, run)
            })
            .collect();
        match beside.join() {
            Ok(others) => ended.extend(others),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        ended
    });
    ended.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(ended)
}

/// Runs the suite on one provider in a process of its own, and shows what it said in one piece.
fn apart(this: &std::path::Path, name: String) -> Ended {
    let output = Command::new(this).args(["conformance", &name]).stdin(Stdio::null()).output();
    let run = output.context("cannot start the conformance suite").and_then(|output| {
        let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        println!("==> conformance of {name}\n{said}{told}");
        if !output.status.success() {
            bail!("it failed, see above: {}", output.status);
        }
        Ok(())
    });
    (name, run)
}

/// Runs the suite on every provider, and says which of them failed.
pub(crate) fn all() -> Result<ExitCode> {
    let engine = Engine::start()?;
    let ended = every_provider(&engine)?;
    Ok(report(ended.into_iter().map(|(name, run)| (format!("conformance of {name}"), run))))
}

/// Success, or that something failed.
pub(crate) fn succeeded(code: ExitCode) -> Result<()> {
    match code {
        ExitCode::SUCCESS => Ok(()),
        _ => bail!("it failed, see above"),
    }
}

/// Prints how each part ended; a success when all of them were.
pub(crate) fn report(parts: impl IntoIterator<Item = (String, Result<()>)>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for (part, ended) in parts {
        match ended {
            Ok(()) => println!("==> {part}: passed"),
            Err(error) => {
                println!("==> {part}: FAILED: {error:#}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
