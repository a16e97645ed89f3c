//! `sandboxctl stop`: remove sandboxes.

use std::io::{self, IsTerminal, Write};

use clap::Args;

use super::Finder;
use crate::{app::App, failure::Failure, runtime, state::Saved};

#[derive(Args)]
pub(crate) struct StopArgs {
    /// Names, ids, or beginnings of them
    #[arg(value_name = "SANDBOX", required_unless_present = "all", conflicts_with = "all")]
    sandboxes: Vec<String>,
    /// Every sandbox that `ls` shows
    #[arg(short = 'a', long)]
    all: bool,
    /// Do not ask before several are removed
    #[arg(short = 'y', long)]
    yes: bool,
}

pub(crate) fn run(app: &App, args: &StopArgs) -> Result<u8, Failure> {
    let finder = Finder::new(app)?;
    let found: Vec<Saved> = match args.all {
        true => finder.store.all()?,
        false => args.sandboxes.iter().map(|word| finder.store.find(word)).collect::<Result<_, _>>()?,
    };
    if found.len() > 1 && !args.yes && !confirm(found.len())? {
        return Ok(crate::exit::FAILED);
    }
    let mut is_done = true;
    runtime::block_on_until_signal(async {
        for saved in found {
            if let Err(failure) = stop(&finder, &saved).await {
                is_done = false;
                failure.report(app.format, app.colour);
            }
        }
        Ok(())
    })?;
    Ok(crate::app::success_if(is_done))
}

async fn stop(finder: &Finder, saved: &Saved) -> Result<(), Failure> {
    match finder.connect(saved).await {
        Ok(sandbox) => sandbox.stop().await.map_err(|error| Failure::of_command(&error))?,
        // It has ended by itself.
        Err(failure) if failure.code() == "not_found" => {}
        Err(failure) => return Err(failure),
    }
    finder.store.forget(&saved.name);
    Ok(())
}

fn confirm(count: usize) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{count} sandboxes would be removed")).with_help("say that with --yes"));
    }
    eprint!("remove {count} sandboxes? [y/N] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::failed("input", error.to_string()))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
