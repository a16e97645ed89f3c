//! `sandboxctl gc`: remove what was left behind.

use clap::Args;
use sandbox_api::compose::sweep_stacks;
use sandbox_core::{ListFilter, SandboxError, SandboxProvider, SandboxRecord, SandboxStatus, SweepReport};
use serde_json::json;

use super::Finder;
use crate::{
    app::{App, success_if},
    failure::Failure,
    output::{self, SCHEMA},
    providers, runtime,
    state::Reservation,
    values,
};

/// Removes sandboxes whose owner is gone or whose time to live is over, and what belongs to them. One whose owner lives
/// is never touched.
#[derive(Args)]
pub(crate) struct GcArgs {
    /// Of these providers; may be repeated [default: the one that `run` would take, and those that `ls` shows]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    provider: Vec<String>,
    /// Only what this run made
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Only with this label; may be repeated
    #[arg(short = 'l', long, value_name = "KEY=VALUE", value_parser = values::pair)]
    label: Vec<(String, String)>,
    /// Only what this user made
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Only what is older
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    older: Option<f64>,
    /// Show what would be removed
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(app: &App, args: &GcArgs) -> Result<u8, Failure> {
    let finder = Finder::new(app)?;
    let saved = finder.store.all()?;
    let mut names = args.provider.clone();
    let abandoned = finder.store.abandoned()?;
    if names.is_empty() {
        names = saved.iter().map(|saved| saved.provider.clone()).collect();
        names.extend(abandoned.iter().map(|reservation| reservation.provider.clone()));
        names.push(finder.config.provider(None, false).value);
        names.sort();
        names.dedup();
    }
    let filter = ListFilter {
        run_id: args.run.clone(),
        metadata: args.label.iter().cloned().collect(),
        older_than_s: args.older,
    };
    let mut is_clean = true;
    let mut reports = Vec::new();
    runtime::block_on_until_signal(async {
        for name in &names {
            let mine: Vec<_> = abandoned.iter().filter(|reservation| reservation.provider == *name).collect();
            match sweep(&finder, name, &filter, args.owner.as_deref(), &mine, args.dry_run).await {
                Ok(report) => reports.push((name.clone(), report)),
                Err(failure) => {
                    is_clean = false;
                    failure.report(app.format, app.colour);
                }
            }
        }
        Ok(())
    })?;
    for saved in saved.iter().filter(|_| !args.dry_run) {
        let is_gone =
            |(name, report): &(String, SweepReport)| *name == saved.provider && report.removed.contains(&saved.id);
        if reports.iter().any(is_gone) {
            finder.store.forget(&saved.name);
        }
    }
    is_clean = is_clean && reports.iter().all(|(_, report)| report.failed.is_empty());
    if app.format.is_json() {
        let providers: serde_json::Map<_, _> =
            reports.iter().map(|(name, report)| (name.clone(), json!(report))).collect();
        output::json_line(&json!({ "schema": SCHEMA, "dry_run": args.dry_run, "providers": providers }))?;
    } else {
        output::data(&reports.iter().map(|(name, report)| lines(name, report, args.dry_run)).collect::<String>())?;
    }
    Ok(success_if(is_clean))
}

fn lines(name: &str, report: &SweepReport, is_dry: bool) -> String {
    let verb = if is_dry { "would remove" } else { "removed" };
    let removed = report.removed.iter().map(|id| format!("{verb} {name} {id}\n"));
    let failed = report.failed.iter().map(|(id, why)| format!("not removed {name} {id}: {why}\n"));
    removed.chain(failed).collect()
}

async fn sweep(
    finder: &Finder,
    name: &str,
    filter: &ListFilter,
    owner: Option<&str>,
    abandoned: &[&Reservation],
    is_dry: bool,
) -> Result<SweepReport, Failure> {
    let provider = providers::create(&finder.host, &finder.config, name)?;
    let Some(list) = provider.as_list_sweep() else {
        return Err(Failure::failed("unsupported", format!("provider {name} cannot list what was left behind")));
    };
    let swept = async {
        if let Some(owner) = owner {
            return sweep_of(&*provider, filter, owner, is_dry).await;
        }
        let mut report = list.sweep(filter.clone(), is_dry).await?;
        // Networks and volumes of stacks go behind their sandboxes.
        let more = sweep_stacks(&provider, filter, &report.removed, is_dry).await?;
        report.removed.extend(more.removed);
        report.failed.extend(more.failed);
        if *filter == ListFilter::default() {
            remove_abandoned(finder, &*provider, abandoned, &mut report, is_dry).await?;
        }
        Ok(report)
    };
    let report = swept.await.map_err(|error: SandboxError| Failure::of_command(&error));
    let _ = provider.aclose().await;
    report
}

/// The same for what one user made: providers know no such filter, so that what they would take is looked through.
async fn sweep_of(
    provider: &dyn SandboxProvider,
    filter: &ListFilter,
    owner: &str,
    is_dry: bool,
) -> sandbox_core::Result<SweepReport> {
    let mut report = SweepReport::default();
    let Some(list) = provider.as_list_sweep() else { return Ok(report) };
    let records = list.list(filter.clone()).await?;
    let stale = list.sweep(filter.clone(), true).await?.removed;
    let is_his = |record: &&SandboxRecord| {
        let user = record.identity.as_ref().and_then(|identity| identity.attribution.get("user"));
        user.is_some_and(|user| user == owner) && stale.contains(&record.handle.sandbox_id)
    };
    for record in records.iter().filter(is_his) {
        let id = record.handle.sandbox_id.clone();
        match if is_dry { Ok(()) } else { provider.close(&record.handle).await } {
            Ok(()) => report.removed.push(id),
            Err(error) => report.failed.push((id, error.to_string())),
        }
    }
    report.removed.sort_unstable();
    Ok(report)
}

/// Removes what a program was making that was killed before it had written it down: nobody was told of it.
async fn remove_abandoned(
    finder: &Finder,
    provider: &dyn SandboxProvider,
    abandoned: &[&Reservation],
    report: &mut SweepReport,
    is_dry: bool,
) -> sandbox_core::Result<()> {
    let Some(list) = provider.as_list_sweep().filter(|_| !abandoned.is_empty()) else { return Ok(()) };
    let records = list.list(ListFilter::default()).await?;
    for reservation in abandoned {
        let is_meant = |record: &&SandboxRecord| record.name.as_deref() == Some(reservation.name.as_str());
        let mut is_gone = true;
        for record in records.iter().filter(is_meant) {
            let id = record.handle.sandbox_id.clone();
            if report.removed.contains(&id) || record.status == SandboxStatus::Stopped {
                continue;
            }
            match if is_dry { Ok(()) } else { provider.close(&record.handle).await } {
                Ok(()) => report.removed.push(id),
                Err(error) => {
                    is_gone = false;
                    report.failed.push((id, error.to_string()));
                }
            }
        }
        if is_gone && !is_dry {
            finder.store.forget(&reservation.name);
        }
    }
    Ok(())
}
