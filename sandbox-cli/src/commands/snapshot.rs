//! `sandboxctl snapshot`: states of sandboxes that are kept.

use std::sync::Arc;

use clap::{Args, Subcommand};
use sandbox_core::{SandboxProvider, Snapshot, Snapshots};
use serde_json::json;

use crate::{
    app::{App, success_if},
    commands::sandbox::{Finder, SandboxArg},
    failure::Failure,
    output::{self, List, SCHEMA, Table},
    providers, runtime,
    state::now_ms,
    values::{self, show_seconds},
};

#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Keep the state of a sandbox under a name, and print its id: an image of new sandboxes
    Create(CreateArgs),
    /// List what is kept
    Ls(LsArgs),
    /// Remove what is kept
    Rm(RmArgs),
}

#[derive(Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    sandbox: SandboxArg,
    /// The name
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Args)]
pub(crate) struct LsArgs {
    /// Of this provider [default: the one that `run` would take]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
}

#[derive(Args)]
pub(crate) struct RmArgs {
    /// Ids or names
    #[arg(value_name = "SNAPSHOT", required_unless_present = "older", conflicts_with = "older")]
    snapshots: Vec<String>,
    /// All that are older
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    older: Option<f64>,
    /// Of this provider [default: the one that `run` would take]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Show what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// Runs one of them.
pub(crate) fn run(app: &App, command: &SnapshotCommand) -> Result<u8, Failure> {
    match command {
        SnapshotCommand::Create(args) => create(app, args).map(|()| 0),
        SnapshotCommand::Ls(args) => ls(app, args).map(|()| 0),
        SnapshotCommand::Rm(args) => rm(app, args),
    }
}

fn create(app: &App, args: &CreateArgs) -> Result<(), Failure> {
    let finder = Finder::new(app)?;
    let made = runtime::block_on_until_signal(async {
        let (_, sandbox) = finder.find(&args.sandbox.sandbox).await?;
        sandbox.create_snapshot(&args.name).await.map_err(|error| Failure::of_command(&error))
    })?;
    match app.format.is_json() {
        true => output::json_line(&json!({ "schema": SCHEMA, "snapshot": made })),
        false => output::data(&format!("{}\n", made.id)),
    }
}

/// The provider whose snapshots are meant.
fn provider(app: &App, name: Option<&str>) -> Result<(String, Arc<dyn SandboxProvider>), Failure> {
    let config = app.config()?;
    let name = config.provider(name, false).value;
    let provider = providers::create(&providers::host(&config)?, &config, &name)?;
    Ok((name, provider))
}

fn snapshots<'a>(name: &str, provider: &'a dyn SandboxProvider) -> Result<&'a dyn Snapshots, Failure> {
    provider
        .as_snapshots()
        .ok_or_else(|| Failure::failed("unsupported", format!("provider {name} keeps no states of sandboxes")))
}

/// How old it is, in seconds.
fn age(snapshot: &Snapshot) -> Option<f64> {
    snapshot.created_at_ms.map(|at| now_ms().saturating_sub(at) as f64 / 1000.0)
}

fn ls(app: &App, args: &LsArgs) -> Result<(), Failure> {
    let (name, provider) = provider(app, args.provider.as_deref())?;
    let mut all = runtime::block_on_until_signal(async {
        let all = snapshots(&name, &*provider)?.list_snapshots().await;
        let _ = provider.aclose().await;
        all.map_err(|error| Failure::of_command(&error))
    })?;
    all.sort_by(|a, b| (a.created_at_ms, &a.id).cmp(&(b.created_at_ms, &b.id)));
    let mut table = Table::new(["ID", "NAME", "AGE"]);
    for one in &all {
        let name = if one.name.is_empty() { "-" } else { one.name.as_str() };
        table.row([
            one.id.clone(),
            name.to_owned(),
            age(one).map_or_else(|| "-".to_owned(), |age| show_seconds(age.floor())),
        ]);
    }
    let list = List {
        key: "snapshots",
        entries: all.iter().map(|one| json!(one)).collect(),
        names: all.iter().map(|one| one.id.clone()).collect(),
        table,
    };
    list.print(app.list_format())
}

/// The one that a word means: its id, or a name that no other one has.
fn find<'a>(all: &'a [Snapshot], word: &str) -> Result<&'a Snapshot, Failure> {
    if let Some(one) = all.iter().find(|one| one.id == word) {
        return Ok(one);
    }
    let mut named = all.iter().filter(|one| one.name == word);
    match (named.next(), named.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => Err(Failure::usage(format!("several snapshots are called {word:?}"))
            .with_help("name one by its id; see sandboxctl snapshot ls")),
        _ => Err(Failure::usage(format!("there is no snapshot {word:?}")).with_help("see sandboxctl snapshot ls")),
    }
}

fn rm(app: &App, args: &RmArgs) -> Result<u8, Failure> {
    let (name, provider) = provider(app, args.provider.as_deref())?;
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    runtime::block_on_until_signal(async {
        let snapshots = snapshots(&name, &*provider)?;
        let all = snapshots.list_snapshots().await.map_err(|error| Failure::of_command(&error))?;
        let meant: Vec<&Snapshot> = match args.older {
            Some(limit) => all.iter().filter(|one| age(one).is_some_and(|age| age > limit)).collect(),
            None => args.snapshots.iter().map(|word| find(&all, word)).collect::<Result<_, _>>()?,
        };
        for one in meant {
            match if args.dry_run { Ok(()) } else { snapshots.remove_snapshot(one.id.clone()).await } {
                Ok(()) => removed.push(one.id.clone()),
                Err(error) => failed.push((one.id.clone(), error.to_string())),
            }
        }
        let _ = provider.aclose().await;
        Ok(())
    })?;
    if app.format.is_json() {
        let report = json!({ "schema": SCHEMA, "dry_run": args.dry_run, "removed": removed, "failed": failed });
        output::json_line(&report)?;
    } else {
        let verb = if args.dry_run { "would remove" } else { "removed" };
        let lines = removed.iter().map(|id| format!("{verb} {id}\n"));
        let failures = failed.iter().map(|(id, why)| format!("not removed {id}: {why}\n"));
        output::data(&lines.chain(failures).collect::<String>())?;
    }
    Ok(success_if(failed.is_empty()))
}

#[cfg(test)]
mod tests {
    use sandbox_core::Snapshot;

    use super::find;

    #[test]
    fn a_snapshot_is_found_by_its_id_or_by_a_name_of_its_own() {
        let one = |id: &str, name: &str| Snapshot {
            id: id.to_owned(),
            name: name.to_owned(),
            created_at_ms: None,
            size_bytes: None,
        };
        let all = [one("1", "a"), one("2", "b"), one("3", "b"), one("b", "c")];
        assert_eq!(find(&all, "2").unwrap().id, "2");
        assert_eq!(find(&all, "a").unwrap().id, "1");
        // An id goes before names.
        assert_eq!(find(&all, "b").unwrap().id, "b");
        let several = [one("1", "x"), one("2", "x")];
        for word in ["x", "y"] {
            assert_eq!(find(&several, word).unwrap_err().exit(), 2, "{word}");
        }
    }
}
