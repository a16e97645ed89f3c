//! Whose sandboxes there are, and which may be removed.

use std::time::{SystemTime, UNIX_EPOCH};

use sandbox_core::{ListFilter, ListSweep, Owner, SandboxRecord, SandboxStatus};

use super::cases;
use crate::{
    check::{Check, Stop},
    context::Context,
    host::{dead_owner, identity, this_process},
    sandbox::TestSandbox,
};

cases! { "ownership":
    running_sandbox_is_listed_until_it_is_closed, "contract: Lifecycle, list", capability ListSweep;
    labels_are_listed_and_filter, "I04, contract: Lifecycle, attribution", field Metadata, capability ListSweep;
    identity_is_kept, "contract: Lifecycle, every sandbox carries", capability ListSweep;
    age_filters, "contract: Lifecycle, list", capability ListSweep;
    sweep_takes_the_sandbox_of_a_dead_owner, "C01, contract: Lifecycle, sweep", capability ListSweep;
    sweep_never_takes_the_sandbox_of_a_live_owner, "C01, contract: Lifecycle, sweep", capability ListSweep;
    sweep_takes_a_lease_only_when_it_is_past, "C05, decisions: ownership", capability ListSweep;
    dry_run_removes_nothing, "decisions: gc", capability ListSweep;
}

fn ability(cx: &Context) -> Check<&dyn ListSweep> {
    cx.provider().as_list_sweep().ok_or_else(|| Stop::failed("list_sweep is declared, but its accessor is empty"))
}

fn of_this_case(cx: &Context) -> ListFilter {
    ListFilter { run_id: Some(cx.token().to_owned()), ..Default::default() }
}

async fn owned_by(cx: &Context, owner: Owner, expires_in_s: Option<i64>) -> Check<TestSandbox> {
    let mut spec = cx.spec();
    let mut made = identity(cx.token(), owner);
    made.expires_at_ms = expires_in_s.map(|seconds| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
        (now + seconds * 1000) as u64
    });
    spec.identity = Some(made);
    cx.sandbox_with(spec).await
}

async fn listed(cx: &Context, filter: ListFilter) -> Check<Vec<SandboxRecord>> {
    Ok(ability(cx)?.list(filter).await?)
}

async fn is_running(sandbox: &TestSandbox) -> Check<bool> {
    Ok(sandbox.provider().status(sandbox.handle()).await? == SandboxStatus::Running)
}

async fn running_sandbox_is_listed_until_it_is_closed(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let records = listed(&cx, of_this_case(&cx)).await?;
    ensure_eq!(records.len(), 1, "sandboxes of this run");
    ensure_eq!(records[0].handle.sandbox_id, sandbox.handle().sandbox_id, "id");
    ensure_eq!(records[0].status, SandboxStatus::Running, "status");
    let all = listed(&cx, ListFilter::default()).await?;
    ensure!(all.iter().any(|record| record.handle == records[0].handle), "a list without filter does not hold it");
    let other = ListFilter { run_id: Some("another-run".to_owned()), ..Default::default() };
    ensure_eq!(listed(&cx, other).await?.len(), 0, "sandboxes of another run");
    let again = TestSandbox::new(cx.clone(), records[0].handle.clone());
    ensure_eq!(again.text("echo usable").await?, "usable", "stdout by the listed handle");
    sandbox.close().await?;
    ensure_eq!(listed(&cx, of_this_case(&cx)).await?.len(), 0, "sandboxes of this run after the close");
    Ok(())
}

async fn labels_are_listed_and_filter(cx: Context) -> Check {
    let (one, two) = (cx.spec().with_metadata("color", "red"), cx.spec().with_metadata("color", "blue"));
    let sandbox = cx.sandbox_with(one.with_metadata("team", "a b=c")).await?;
    cx.sandbox_with(two).await?;
    let mut filter = of_this_case(&cx);
    filter.metadata.insert("color".to_owned(), "red".to_owned());
    let records = listed(&cx, filter).await?;
    ensure_eq!(records.len(), 1, "sandboxes with that label");
    ensure_eq!(records[0].handle.sandbox_id, sandbox.handle().sandbox_id, "id");
    ensure_eq!(records[0].metadata.get("team").map(String::as_str), Some("a b=c"), "another label");
    Ok(())
}

async fn identity_is_kept(cx: Context) -> Check {
    let spec = cx.spec();
    let given = spec.identity.clone();
    cx.sandbox_with(spec).await?;
    let records = listed(&cx, of_this_case(&cx)).await?;
    ensure_eq!(records.len(), 1, "sandboxes of this run");
    let kept = records[0].identity.clone().map(|identity| (identity.run_id, identity.owner, identity.created_at_ms));
    ensure_eq!(kept, given.map(|identity| (identity.run_id, identity.owner, identity.created_at_ms)), "identity");
    Ok(())
}

async fn age_filters(cx: Context) -> Check {
    cx.sandbox().await?;
    let old = ListFilter { older_than_s: Some(3600.0), ..of_this_case(&cx) };
    ensure_eq!(listed(&cx, old).await?.len(), 0, "sandboxes older than an hour");
    Ok(())
}

async fn sweep_takes_the_sandbox_of_a_dead_owner(cx: Context) -> Check {
    let sandbox = owned_by(&cx, dead_owner()?, None).await?;
    let report = ability(&cx)?.sweep(of_this_case(&cx), false).await?;
    ensure_eq!(report.removed, [sandbox.handle().sandbox_id.clone()], "what was removed");
    ensure!(report.failed.is_empty(), "what could not be removed: {:?}", report.failed);
    ensure!(!is_running(&sandbox).await?, "it still runs");
    Ok(())
}

async fn sweep_never_takes_the_sandbox_of_a_live_owner(cx: Context) -> Check {
    let sandbox = owned_by(&cx, this_process(), None).await?;
    // The same process id with another start time is another process.
    let mut reused = this_process();
    if let Owner::Process { start_time, .. } = &mut reused {
        *start_time += 1;
    }
    let gone = owned_by(&cx, reused, None).await?;
    let report = ability(&cx)?.sweep(of_this_case(&cx), false).await?;
    ensure_eq!(report.removed, [gone.handle().sandbox_id.clone()], "what was removed");
    ensure!(is_running(&sandbox).await?, "a sandbox whose owner lives was removed");
    Ok(())
}

async fn sweep_takes_a_lease_only_when_it_is_past(cx: Context) -> Check {
    let held = owned_by(&cx, Owner::Lease, Some(3600)).await?;
    let past = owned_by(&cx, Owner::Lease, Some(-10)).await?;
    let report = ability(&cx)?.sweep(of_this_case(&cx), false).await?;
    ensure!(is_running(&held).await?, "a sandbox whose lease is held was removed");
    ensure!(!is_running(&past).await?, "a sandbox whose lease is past still runs");
    ensure!(!report.removed.contains(&held.handle().sandbox_id), "the report names the wrong sandbox");
    Ok(())
}

async fn dry_run_removes_nothing(cx: Context) -> Check {
    let sandbox = owned_by(&cx, dead_owner()?, None).await?;
    let report = ability(&cx)?.sweep(of_this_case(&cx), true).await?;
    ensure_eq!(report.removed, [sandbox.handle().sandbox_id.clone()], "what would be removed");
    ensure!(is_running(&sandbox).await?, "a dry run removed a sandbox");
    Ok(())
}
