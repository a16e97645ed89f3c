//! Finding sandboxes, moving their expiry, and removing what dead processes left.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use sandbox_core::{
    ListFilter, ListSweep, Renew, Result, SandboxError, SandboxHandle, SandboxRecord, SweepReport, async_trait, tracing,
};

use crate::{
    create::expiry_ms,
    fate::Fate,
    isolated,
    isolated::Held,
    provider::{LocalProvider, Shared, blocking, remove_left_behind},
    record::{Record, now_ms},
    sandbox::Sandbox,
};

/// The longest time to live: ten years, in seconds.
const MAX_TTL_S: f64 = 315_360_000.0;

fn matches(filter: &ListFilter, record: &Record) -> bool {
    let is_of_run = filter.run_id.as_ref().is_none_or(|run_id| *run_id == record.identity.run_id);
    let has_labels = filter.metadata.iter().all(|(key, value)| record.metadata.get(key) == Some(value));
    let age_s = now_ms().saturating_sub(record.identity.created_at_ms) as f64 / 1000.0;
    is_of_run && has_labels && filter.older_than_s.is_none_or(|older_than_s| age_s > older_than_s)
}

/// What a program that was killed left behind is taken by the next one, when it is at least so old, in seconds.
const LEFT_BEHIND_S: f64 = 60.0;

impl Shared {
    /// Takes what killed programs left behind. Runs beside the first creation and delays nobody.
    pub(crate) fn sweep_in_background(self: &Arc<Self>) {
        if self.has_swept.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = self.clone();
        tokio::spawn(async move {
            let filter = ListFilter { older_than_s: Some(LEFT_BEHIND_S), ..ListFilter::default() };
            if let Err(error) = shared.sweep(filter, false).await {
                tracing::debug!(%error, "what was left behind could not be swept");
            }
        });
    }

    async fn records_of(&self, filter: ListFilter) -> Result<Vec<Record>> {
        let records = self.records.clone();
        let task = tokio::task::spawn_blocking(move || {
            let mut all = records.read_all()?;
            all.retain(|record| matches(&filter, record));
            Ok(all)
        });
        task.await.unwrap_or_else(|_| Err(SandboxError::internal("listing panicked")))
    }

    /// Removes one sandbox that nobody answers for.
    async fn sweep_one(self: &Arc<Self>, record: Record) -> Result<()> {
        // Its owner is gone, but its commands run here.
        if let Some(sandbox) = Sandbox::find_here(&record.id) {
            return sandbox.close(Fate::Closed).await;
        }
        let shared = self.clone();
        let task = tokio::task::spawn_blocking(move || remove_left_behind(&shared.root, &shared.records, &record));
        task.await.unwrap_or_else(|_| Err(SandboxError::internal("sweeping panicked")))
    }

    async fn sweep(self: &Arc<Self>, filter: ListFilter, dry_run: bool) -> Result<SweepReport> {
        let mut report = SweepReport::default();
        for record in self.records_of(filter).await? {
            if !record.is_stale() {
                continue;
            }
            let id = record.id.clone();
            match if dry_run { Ok(()) } else { self.sweep_one(record).await } {
                Ok(()) => report.removed.push(id),
                Err(error) => report.failed.push((id, error.to_string())),
            }
        }
        if !dry_run {
            let shared = self.clone();
            let task = tokio::task::spawn_blocking(move || {
                shared.records.remove_unfinished()?;
                isolated::sweep_cgroups()?;
                isolated::Door::sweep()?;
                isolated::Networks::new(&shared.root, &shared.records).sweep()?;
                isolated::Volumes::new(&shared.root, &shared.records).sweep()?;
                isolated::images(&shared.config, &shared.root, &shared.records).sweep()
            });
            task.await.unwrap_or_else(|_| Err(SandboxError::internal("sweeping panicked")))?;
        }
        tracing::debug!(removed = report.removed.len(), failed = report.failed.len(), dry_run, "swept");
        Ok(report)
    }
}

#[async_trait]
impl ListSweep for LocalProvider {
    async fn list(&self, filter: ListFilter) -> Result<Vec<SandboxRecord>> {
        Ok(self.shared.records_of(filter).await?.into_iter().map(Record::into_public).collect())
    }

    async fn sweep(&self, filter: ListFilter, dry_run: bool) -> Result<SweepReport> {
        self.shared.sweep(filter, dry_run).await
    }
}

#[async_trait]
impl Renew for LocalProvider {
    async fn renew(&self, handle: &SandboxHandle, ttl_s: f64) -> Result<u64> {
        if !(ttl_s > 0.0 && ttl_s <= MAX_TTL_S) {
            return Err(SandboxError::invalid_input(
                "ttl_s",
                format!("must be above 0 and at most {MAX_TTL_S} seconds"),
            ));
        }
        let ttl = Duration::from_secs_f64(ttl_s);
        let expires_at_ms = expiry_ms(ttl);
        let sandbox = match self.open_or_paused(handle).await? {
            Held::Open(sandbox) => sandbox,
            Held::Elsewhere(mut record) => {
                // Its agent hears of it when it goes on.
                record.identity.expires_at_ms = Some(expires_at_ms);
                let records = self.shared.records.clone();
                blocking("writing the record", move || records.rewrite(&record)).await?;
                return Ok(expires_at_ms);
            }
        };
        let busy = sandbox.enter()?;
        if let Some(inside) = &sandbox.inside {
            isolated::renew(inside, &sandbox, ttl_s).await.map_err(|error| sandbox.explain(error))?;
        }
        // Whoever made one that outlives its clients looks at what is written down.
        if !sandbox.is_lasting || sandbox.has_timer() {
            sandbox.live_until(tokio::time::Instant::now() + ttl);
        }
        // A close waits for this write, also when nobody waits for the renewal any more.
        let task = tokio::task::spawn_blocking(move || {
            let written = sandbox.record_expiry(expires_at_ms);
            drop(busy);
            written
        });
        task.await.unwrap_or_else(|_| Err(SandboxError::internal("writing the record panicked")))?;
        Ok(expires_at_ms)
    }
}
