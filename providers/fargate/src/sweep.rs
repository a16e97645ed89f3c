//! Finding sandboxes, whoever made them, and stopping those that nobody answers for.

use std::collections::BTreeMap;

use sandbox_agent_client::{Life, life, this_process};
use sandbox_core::{
    ListFilter, ListSweep, Owner, Result, SandboxError, SandboxIdentity, SandboxRecord, SandboxSpec, SandboxStatus,
    SweepReport, async_trait, tracing,
};
use tokio::time::Instant;

use crate::{
    aws::{Cluster, TASKS_MAX, Task},
    provider::{CALL_LIMIT, FargateProvider, Shared},
    sandbox::handle,
    tags::Labels,
    time::now_ms,
};

/// Who answers for a sandbox whose spec does not say.
pub(crate) fn identity(spec: &SandboxSpec, run_id: &str, ttl_s: Option<f64>) -> SandboxIdentity {
    let now = now_ms();
    let mut identity = spec.identity.clone().unwrap_or_else(|| SandboxIdentity {
        run_id: run_id.to_owned(),
        owner: this_process(),
        created_at_ms: now,
        expires_at_ms: None,
        attribution: BTreeMap::new(),
    });
    if identity.expires_at_ms.is_none() {
        identity.expires_at_ms = ttl_s.map(|ttl_s| now + (ttl_s * 1000.0) as u64);
    }
    identity
}

/// True if nobody answers for it any more, at this time.
fn is_stale(identity: &SandboxIdentity, expires_at_ms: Option<u64>, now_ms: u64) -> bool {
    let is_past = expires_at_ms.is_some_and(|at| at <= now_ms);
    match &identity.owner {
        owner @ Owner::Process { .. } => match life(owner) {
            Life::Gone => true,
            Life::Alive => false,
            // Of another machine: its time is what is known.
            Life::Unknown => is_past,
        },
        Owner::Lease => is_past,
        // A kind of owner that this version does not know.
        _ => false,
    }
}

fn matches(filter: &ListFilter, labels: &Labels) -> bool {
    let is_of_run = filter.run_id.as_ref().is_none_or(|run_id| *run_id == labels.identity.run_id);
    let has_labels = filter.metadata.iter().all(|(key, value)| labels.metadata.get(key) == Some(value));
    let age_s = now_ms().saturating_sub(labels.identity.created_at_ms) as f64 / 1000.0;
    is_of_run && has_labels && filter.older_than_s.is_none_or(|older_than_s| age_s > older_than_s)
}

struct Listed {
    task: Task,
    labels: Labels,
}

impl Shared {
    async fn listed(&self, filter: &ListFilter) -> Result<Vec<Listed>> {
        let deadline = Instant::now() + CALL_LIMIT;
        let cluster = Cluster { aws: &self.aws, name: &self.settings(deadline).await?.cluster };
        let arns = cluster.list(&self.config.started_by, deadline).await.map_err(SandboxError::from)?;
        let mut listed = Vec::new();
        for some in arns.chunks(TASKS_MAX) {
            let found = cluster.describe(some, deadline).await.map_err(SandboxError::from)?;
            listed.extend(found.tasks.into_iter().filter_map(|task| {
                let labels = Labels::read(&task.tags()).filter(|labels| matches(filter, labels))?;
                let is_ours = task.started_by == self.config.started_by && task.status() != SandboxStatus::Stopped;
                is_ours.then_some(Listed { task, labels })
            }));
        }
        Ok(listed)
    }
}

#[async_trait]
impl ListSweep for FargateProvider {
    async fn list(&self, filter: ListFilter) -> Result<Vec<SandboxRecord>> {
        let listed = self.shared.listed(&filter).await?;
        let record = |Listed { task, mut labels }: Listed| {
            let known = self.shared.sandboxes().get(task.id()).cloned();
            if let Some(sandbox) = &known {
                labels.identity.expires_at_ms = sandbox.expires_at_ms();
            }
            let host_key = known.and_then(|sandbox| sandbox.link.host_key());
            SandboxRecord {
                handle: handle(&task.task_arn, &labels, host_key),
                status: task.status(),
                name: labels.name,
                image: Some(labels.image),
                metadata: labels.metadata,
                identity: Some(labels.identity),
            }
        };
        Ok(listed.into_iter().map(record).collect())
    }

    async fn sweep(&self, filter: ListFilter, dry_run: bool) -> Result<SweepReport> {
        let mut report = SweepReport::default();
        for listed in self.shared.listed(&filter).await? {
            // Whoever renews it writes that down.
            let identity = &listed.labels.identity;
            if !is_stale(identity, identity.expires_at_ms, now_ms()) {
                continue;
            }
            let id = listed.task.id().to_owned();
            let done = match dry_run {
                true => Ok(()),
                false => self.shared.close(&handle(&listed.task.task_arn, &listed.labels, None)).await,
            };
            match done {
                Ok(()) => report.removed.push(id),
                Err(error) => report.failed.push((id, error.to_string())),
            }
        }
        tracing::debug!(removed = report.removed.len(), failed = report.failed.len(), dry_run, "swept");
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sandbox_agent_client::this_process;
    use sandbox_core::{Owner, SandboxIdentity};

    use super::is_stale;

    #[test]
    fn only_what_nobody_answers_for_is_stale() {
        let identity = |owner| SandboxIdentity {
            run_id: "r".into(),
            owner,
            created_at_ms: 0,
            expires_at_ms: None,
            attribution: BTreeMap::new(),
        };
        let elsewhere = || Owner::Process { host: "elsewhere".into(), pid: 1, start_time: 1 };
        let Owner::Process { host, pid, start_time } = this_process() else { panic!("a process") };
        let gone = Owner::Process { host, pid, start_time: start_time + 1 };
        for (owner, expires_at_ms, expected) in [
            (this_process(), Some(5), false),
            (gone, None, true),
            (elsewhere(), None, false),
            (elsewhere(), Some(5), true),
            (elsewhere(), Some(15), false),
            (Owner::Lease, Some(5), true),
            (Owner::Lease, Some(15), false),
            (Owner::Lease, None, false),
        ] {
            assert_eq!(is_stale(&identity(owner.clone()), expires_at_ms, 10), expected, "{owner:?} {expires_at_ms:?}");
        }
    }
}
