//! Finding sandboxes, whoever made them, and removing those that nobody answers for.

use bollard::{models::ContainerSummaryStateEnum as State, query_parameters::ListContainersOptionsBuilder};
use sandbox_core::{
    ListFilter, ListSweep, Owner, Result, SandboxRecord, SandboxStatus, SweepReport, async_trait, tracing,
};
use sandbox_protocol::methods::{self, AgentInfo, Nothing};

use crate::{
    error, found,
    labels::{ID, Labels, is_stale, now_ms, pool_identity},
    network::ours,
    pool::{records, remove_record},
    provider::{DockerProvider, Shared},
    run_folder,
    sandbox::{handle, remove_container},
};

/// How long an agent may take to say until when its sandbox lives.
const EXPIRY_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// A folder whose container is not made after so long belongs to a program that was killed in between.
const FOLDER_AGE: std::time::Duration = std::time::Duration::from_secs(3600);

struct Listed {
    labels: Labels,
    status: SandboxStatus,
}

/// The name of a listed container.
fn name_of(names: Option<Vec<String>>) -> Option<String> {
    Some(names?.first()?.trim_start_matches('/').to_owned())
}

fn matches(filter: &ListFilter, labels: &Labels) -> bool {
    let is_of_run = filter.run_id.as_ref().is_none_or(|run_id| *run_id == labels.identity.run_id);
    let has_labels = filter.metadata.iter().all(|(key, value)| labels.traits.metadata.get(key) == Some(value));
    let age_s = now_ms().saturating_sub(labels.identity.created_at_ms) as f64 / 1000.0;
    is_of_run && has_labels && filter.older_than_s.is_none_or(|older_than_s| age_s > older_than_s)
}

impl Shared {
    async fn listed(&self, filter: &ListFilter) -> Result<Vec<Listed>> {
        let options = ListContainersOptionsBuilder::default().all(true).filters(&ours("sandbox")).build();
        let all = self.engine.docker().await?.list_containers(Some(options)).await;
        let mut all = all.map_err(|error| error::engine("listing sandboxes", error))?;
        let pooled = records(&self.engine).await?;
        if !pooled.is_empty() {
            let options = ListContainersOptionsBuilder::default().all(true).filters(&ours("pool")).build();
            let members = self.engine.docker().await?.list_containers(Some(options)).await;
            all.extend(members.map_err(|error| error::engine("listing sandboxes", error))?);
        }
        let listed = all.into_iter().filter_map(|container| {
            let own = container.labels.unwrap_or_default();
            let recorded = || pooled.get(&name_of(container.names)?).cloned();
            let labels = if pool_identity(&own).is_some() { recorded() } else { Labels::read(&own) }?;
            let status = match container.state {
                Some(State::RUNNING) => SandboxStatus::Running,
                Some(State::PAUSED) => SandboxStatus::Paused,
                Some(State::CREATED | State::RESTARTING) => SandboxStatus::Starting,
                Some(State::EXITED | State::DEAD | State::REMOVING) => SandboxStatus::Stopped,
                _ => SandboxStatus::Unknown,
            };
            Some(Listed { labels, status })
        });
        Ok(listed.filter(|listed| matches(filter, &listed.labels)).collect())
    }

    /// Containers that were made ahead by a process that is gone, and that serve no sandbox.
    async fn lonely_members(&self) -> Result<Vec<String>> {
        let options = ListContainersOptionsBuilder::default().all(true).filters(&ours("pool")).build();
        let all = self.engine.docker().await?.list_containers(Some(options)).await;
        let all = all.map_err(|error| error::engine("listing the pool", error))?;
        let sandboxes = self.listed(&ListFilter::default()).await?;
        let is_used = |name: &String| {
            let is_of =
                |listed: &Listed| listed.labels.id == *name || listed.labels.traits.holder.as_ref() == Some(name);
            sandboxes.iter().any(is_of)
        };
        let lonely = all.into_iter().filter_map(|container| {
            let identity = pool_identity(&container.labels.unwrap_or_default())?;
            let name = name_of(container.names)?;
            (is_stale(&identity, None, now_ms()) && !is_used(&name)).then_some(name)
        });
        Ok(lonely.collect())
    }

    /// Records whose container was removed by somebody else.
    async fn remove_lonely_records(&self) -> Result<()> {
        for (id, labels) in records(&self.engine).await? {
            let is_lonely = is_stale(&labels.identity, labels.identity.expires_at_ms, now_ms());
            if is_lonely && found::find(&self.engine, &id).await?.is_none() {
                remove_record(&self.engine, &id).await?;
            }
        }
        Ok(())
    }

    /// Until when a sandbox lives: the agent knows whether that was moved.
    async fn expiry(&self, listed: &Listed) -> Option<u64> {
        let written = listed.labels.identity.expires_at_ms;
        if listed.status != SandboxStatus::Running || listed.labels.identity.owner != Owner::Lease {
            return written;
        }
        if written.is_none_or(|at| at > now_ms()) {
            return written;
        }
        let ask = async {
            let sandbox = self.open(&handle(&listed.labels)).await?;
            let work = async |client: sandbox_protocol::Client| client.call(methods::INFO, &Nothing {}).await;
            let info: AgentInfo = sandbox.ask(&self.engine, "its expiry", work).await?;
            Ok::<_, sandbox_core::SandboxError>(info.expires_at_ms)
        };
        let asked = tokio::time::timeout(EXPIRY_LIMIT, ask).await;
        asked.ok().and_then(Result::ok).flatten().or(written)
    }

    /// Removes folders for sockets whose sandbox is gone.
    async fn remove_lonely_folders(&self, age: std::time::Duration) -> Result<()> {
        for folder in run_folder::older_than(self.engine.config.run_dir(), age).await? {
            let Some(id) = folder.file_name().and_then(|name| name.to_str()).map(str::to_owned) else { continue };
            if found::find(&self.engine, &id).await?.is_none() {
                run_folder::remove(folder, id).await?;
            }
        }
        Ok(())
    }

    /// Sidecars whose sandbox is gone.
    async fn lonely_sidecars(&self) -> Result<Vec<String>> {
        let options = ListContainersOptionsBuilder::default().all(true).filters(&ours("sidecar")).build();
        let docker = self.engine.docker().await?;
        let failed = |error| error::engine("listing sidecars", error);
        let all = docker.list_containers(Some(options)).await.map_err(failed)?;
        let mut lonely = Vec::new();
        for sidecar in all {
            let sandbox = sidecar.labels.unwrap_or_default().get(ID).cloned().unwrap_or_default();
            match docker.inspect_container(&sandbox, None).await {
                Err(error) if error::is_missing(&error) => lonely.extend(sidecar.id),
                _ => {}
            }
        }
        Ok(lonely)
    }
}

#[async_trait]
impl ListSweep for DockerProvider {
    async fn list(&self, filter: ListFilter) -> Result<Vec<SandboxRecord>> {
        let listed = self.shared.listed(&filter).await?;
        let record = |Listed { mut labels, status }: Listed| {
            if let Some(sandbox) = self.shared.sandboxes().get(&labels.id) {
                labels.identity.expires_at_ms = sandbox.expires_at_ms();
            }
            SandboxRecord {
                handle: handle(&labels),
                status,
                name: labels.traits.name,
                image: Some(labels.traits.image),
                metadata: labels.traits.metadata,
                identity: Some(labels.identity),
            }
        };
        Ok(listed.into_iter().map(record).collect())
    }

    async fn sweep(&self, filter: ListFilter, dry_run: bool) -> Result<SweepReport> {
        let mut report = SweepReport::default();
        for listed in self.shared.listed(&filter).await? {
            let expires_at_ms = self.shared.expiry(&listed).await;
            if !is_stale(&listed.labels.identity, expires_at_ms, now_ms()) {
                continue;
            }
            let id = listed.labels.id.clone();
            match if dry_run { Ok(()) } else { self.shared.close(&handle(&listed.labels)).await } {
                Ok(()) => report.removed.push(id),
                Err(error) => report.failed.push((id, error.to_string())),
            }
        }
        if !dry_run {
            for sidecar in self.shared.lonely_sidecars().await? {
                remove_container(&self.shared.engine, &sidecar).await?;
            }
            for member in self.shared.lonely_members().await? {
                remove_container(&self.shared.engine, &member).await?;
                let folder = self.shared.engine.config.run_dir().join(&member);
                run_folder::remove(folder, member).await?;
            }
            self.shared.remove_lonely_records().await?;
            self.shared.remove_lonely_folders(FOLDER_AGE).await?;
        }
        tracing::debug!(removed = report.removed.len(), failed = report.failed.len(), dry_run, "swept");
        Ok(report)
    }
}
