//! Finding and removing what was left behind.

use std::{sync::Arc, time::SystemTime};

use futures_util::{StreamExt, stream};
use sandbox_core::{ListFilter, ListSweep, Owner, Result, SandboxRecord, SandboxStatus, SweepReport, async_trait};
use serde_json::Value;

use crate::{
    daemon::Seen,
    labels::{self, MANAGED, RUN_KEY},
    lifecycle::read_time,
    provider::OpenSandboxProvider,
    shared::Shared,
    state::Kept,
};

/// So many are removed at once.
const AT_ONCE: usize = 32;

/// So often the list is read again: sandboxes may come while it is swept.
const ROUNDS: usize = 3;

#[async_trait]
impl ListSweep for OpenSandboxProvider {
    async fn list(&self, filter: ListFilter) -> Result<Vec<SandboxRecord>> {
        self.shared.records(&filter).await
    }

    async fn sweep(&self, filter: ListFilter, dry_run: bool) -> Result<SweepReport> {
        let mut report = SweepReport::default();
        for _ in 0..ROUNDS {
            let records = self.shared.records(&filter).await?;
            let stale: Vec<String> = records
                .into_iter()
                .filter(|record| is_stale(record) && !report.removed.contains(&record.handle.sandbox_id))
                .filter(|record| !report.failed.iter().any(|(id, _)| *id == record.handle.sandbox_id))
                .map(|record| record.handle.sandbox_id)
                .collect();
            if stale.is_empty() {
                break;
            }
            if dry_run {
                report.removed = stale;
                break;
            }
            let mut ends = stream::iter(stale)
                .map(|id| {
                    let shared = self.shared.clone();
                    async move { (shared.remove(&id).await, id) }
                })
                .buffer_unordered(AT_ONCE);
            while let Some((end, id)) = ends.next().await {
                match end {
                    Ok(()) => {
                        self.shared.forget(&id);
                        report.removed.push(id);
                    }
                    Err(error) => report.failed.push((id, error.to_string())),
                }
            }
        }
        report.removed.sort_unstable();
        Ok(report)
    }
}

impl Shared {
    async fn records(self: &Arc<Self>, filter: &ListFilter) -> Result<Vec<SandboxRecord>> {
        let mut wanted = vec![(MANAGED.0.to_owned(), MANAGED.1.to_owned())];
        if let Some(run) = &filter.run_id {
            wanted.push((RUN_KEY.to_owned(), labels::value(run)));
        }
        wanted.extend(filter.metadata.iter().map(|(key, text)| (key.clone(), labels::value(text))));
        let found = self.find(&wanted).await?;
        Ok(found
            .into_iter()
            .filter_map(record)
            .filter(|(record, age_s)| matches(record, *age_s, filter))
            .map(|(record, _)| record)
            .collect())
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A record, and its age in seconds.
fn record(described: Value) -> Option<(SandboxRecord, f64)> {
    let id = described["id"].as_str()?.to_owned();
    let kept = Kept::read(&described).unwrap_or_default();
    let created = read_time(&described["createdAt"]).or(kept.identity.as_ref().map(|identity| identity.created_at_ms));
    let age_s = created.map_or(0.0, |at| now_ms().saturating_sub(at) as f64 / 1000.0);
    let image = described["image"]["uri"].as_str().map(str::to_owned);
    let mut metadata = kept.metadata;
    if metadata.is_empty() {
        let labels = described["metadata"].as_object().into_iter().flatten();
        metadata = labels.filter_map(|(key, text)| Some((key.clone(), text.as_str()?.to_owned()))).collect();
    }
    let mut identity = kept.identity;
    if let (Some(identity), Some(at)) = (&mut identity, read_time(&described["expiresAt"])) {
        // The server's own is the one that counts, unless the lease itself is shorter.
        identity.expires_at_ms = Some(identity.expires_at_ms.map_or(at, |lease| lease.min(at)));
    }
    let status = Seen::read(described).status;
    let record = SandboxRecord { handle: kept.state.handle(&id), status, name: kept.name, image, metadata, identity };
    Some((record, age_s))
}

/// The labels of the server are cut to what it takes; what is asked for is compared word for word.
fn matches(record: &SandboxRecord, age_s: f64, filter: &ListFilter) -> bool {
    let run = record.identity.as_ref().map(|identity| &identity.run_id);
    filter.run_id.as_ref().is_none_or(|wanted| run == Some(wanted))
        && filter.metadata.iter().all(|(key, text)| {
            record.metadata.get(key).is_none_or(|found| found == text || *found == labels::value(text))
        })
        && filter.older_than_s.is_none_or(|limit| age_s > limit)
        && record.status != SandboxStatus::Stopped
}

/// Whether nobody answers for it any more.
fn is_stale(record: &SandboxRecord) -> bool {
    let Some(identity) = &record.identity else { return false };
    match &identity.owner {
        Owner::Lease => identity.expires_at_ms.is_some_and(|at| at <= now_ms()),
        Owner::Process { host, pid, start_time } => is_gone(host, *pid, *start_time),
        _ => false,
    }
}

/// Whether a process of this host is gone; of others nothing is known.
fn is_gone(host: &str, pid: u32, start_time: u64) -> bool {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if own.trim() != host || host.is_empty() {
        return false;
    }
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => {
            // The name in parentheses may hold anything; field 22 is the twentieth after it.
            let started = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
            started.is_some_and(|started: u64| started != start_time)
        }
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}
