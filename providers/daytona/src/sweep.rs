//! Finding sandboxes, and removing those that nobody answers for.

use reqwest::Method;
use sandbox_agent_client::{Life, life};
use sandbox_core::{
    ErrorKind, ListFilter, ListSweep, Owner, Result, SandboxIdentity, SandboxRecord, SweepReport, async_trait, tracing,
};
use serde_json::json;

use crate::{
    config::seconds,
    labels::{MANAGED, PAUSED, RUN, now_ms},
    provider::{DaytonaProvider, Shared},
    toolbox::ASK_WITHIN,
    wire::{Page, Phase, SandboxDto},
};

/// Sandboxes of one page, and the most pages that are read.
const PAGE: usize = 200;
const MAX_PAGES: usize = 500;

fn matches(filter: &ListFilter, dto: &SandboxDto) -> bool {
    let identity = dto.identity();
    let age_s = identity.map(|identity| now_ms().saturating_sub(identity.created_at_ms) as f64 / 1000.0);
    let is_of_run = filter.run_id.as_deref().is_none_or(|run| dto.label(RUN) == Some(run));
    let has_labels = filter.metadata.iter().all(|(key, value)| dto.label(key) == Some(value));
    is_of_run && has_labels && filter.older_than_s.is_none_or(|limit| age_s.is_some_and(|age_s| age_s > limit))
}

/// Whether nobody answers for it any more.
fn is_stale(identity: &SandboxIdentity) -> bool {
    let is_past = identity.expires_at_ms.is_some_and(|expires| expires <= now_ms());
    match &identity.owner {
        Owner::Process { .. } => match life(&identity.owner) {
            Life::Gone => true,
            Life::Alive => false,
            Life::Unknown => is_past,
        },
        _ => is_past,
    }
}

impl Shared {
    async fn all(&self, filter: &ListFilter) -> Result<Vec<SandboxDto>> {
        let mut labels = filter.metadata.clone();
        labels.insert(MANAGED.to_owned(), "1".to_owned());
        if let Some(run) = &filter.run_id {
            labels.insert(RUN.to_owned(), run.clone());
        }
        let mut found = Vec::new();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let mut call = self.client.api(Method::GET, "/sandbox", ASK_WITHIN);
            call.query = vec![("limit", PAGE.to_string()), ("labels", json!(labels).to_string())];
            if let Some(cursor) = cursor {
                call.query.push(("cursor", cursor));
            }
            let answer = self.client.call(&call).await.and_then(|answer| answer.json::<Page>());
            let page = answer.map_err(|failure| failure.into_error("listing sandboxes"))?;
            // What the service filters by is not taken on trust.
            found.extend(
                page.items
                    .into_iter()
                    .filter(|dto| dto.label(MANAGED).is_some() && dto.phase() != Phase::Gone && matches(filter, dto)),
            );
            cursor = page.next_cursor.filter(|cursor| !cursor.is_empty());
            if cursor.is_none() {
                break;
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl ListSweep for DaytonaProvider {
    async fn list(&self, filter: ListFilter) -> Result<Vec<SandboxRecord>> {
        let record = |dto: SandboxDto| SandboxRecord {
            handle: dto.handle(),
            status: dto.status(dto.label(PAUSED).is_some()),
            name: dto.person_name(),
            image: dto.image(),
            metadata: dto.metadata(),
            identity: dto.identity(),
        };
        Ok(self.shared.all(&filter).await?.into_iter().map(record).collect())
    }

    async fn sweep(&self, filter: ListFilter, dry_run: bool) -> Result<SweepReport> {
        let mut report = SweepReport::default();
        for dto in self.shared.all(&filter).await? {
            if !dto.identity().as_ref().is_some_and(is_stale) {
                continue;
            }
            let close = seconds(self.shared.config.operations.close_timeout_s);
            match if dry_run { Ok(()) } else { self.shared.delete(&dto.id, close).await } {
                Ok(()) => report.removed.push(dto.id),
                Err(error) if error.kind() == ErrorKind::Unauthorized => return Err(error),
                Err(error) => report.failed.push((dto.id, error.to_string())),
            }
        }
        tracing::debug!(removed = report.removed.len(), failed = report.failed.len(), dry_run, "swept");
        Ok(report)
    }
}
