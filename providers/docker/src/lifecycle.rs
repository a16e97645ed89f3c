//! Pausing, finding again, the expiry, and what is measured.

use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use sandbox_agent_client::{metrics, renew};
use sandbox_core::{
    Connect, Metrics, PauseResume, Renew, Result, SandboxError, SandboxHandle, SandboxMetrics, SandboxStatus,
    async_trait,
    serde_json::{Value, json},
};

use crate::{
    error::{self, NAME},
    found,
    labels::now_ms,
    provider::{DockerProvider, not_found},
    sandbox::GENERATION,
};

/// What a descriptor says it is.
const FORM: &str = "docker/1";

#[async_trait]
impl PauseResume for DockerProvider {
    async fn pause(&self, handle: &SandboxHandle) -> Result<()> {
        let sandbox = self.open(handle).await?;
        sandbox.check_not_paused()?;
        // First: whoever is refused too early is better off than whoever waits for ever.
        sandbox.is_paused.store(true, Ordering::Release);
        let docker = self.shared.engine.docker().await?;
        let paused = docker.pause_container(&sandbox.container).await;
        if let Err(error) = paused {
            let found = found::find(&self.shared.engine, &sandbox.container).await?;
            let is_paused = found.as_ref().is_some_and(|found| found.status == SandboxStatus::Paused);
            sandbox.is_paused.store(is_paused, Ordering::Release);
            return Err(match found {
                Some(found) if found.status == SandboxStatus::Stopped => {
                    not_found(sandbox.id(), &format!("is gone: {}", found.ending()))
                }
                _ => error::engine("pausing the sandbox", error),
            });
        }
        Ok(())
    }

    async fn resume(&self, handle: &SandboxHandle) -> Result<SandboxHandle> {
        let sandbox = self.open(handle).await?;
        let engine = &self.shared.engine;
        let found = found::find(engine, &sandbox.container).await?;
        match found.map(|found| found.status) {
            Some(SandboxStatus::Paused) => {}
            None => return Err(not_found(sandbox.id(), "is closed, or was removed by somebody else")),
            Some(_) => {
                sandbox.is_paused.store(false, Ordering::Release);
                let message = format!("sandbox {} is not paused", sandbox.id());
                return Err(SandboxError::invalid_state(message).with_provider(NAME));
            }
        }
        if sandbox.expires_at_ms().is_some_and(|at| at <= now_ms()) {
            // Its time does not run inside while it is paused; it is over all the same.
            self.shared.close(handle).await?;
            return Err(not_found(sandbox.id(), "has expired: its ttl passed while it was paused"));
        }
        let resumed = engine.docker().await?.unpause_container(&sandbox.container).await;
        resumed.map_err(|error| error::engine("resuming the sandbox", error))?;
        sandbox.is_paused.store(false, Ordering::Release);
        if sandbox.link.is_some() {
            // Commands run again when the agent answers.
            let expiry = sandbox.expires_at_ms();
            let work = async |client: sandbox_protocol::Client| match expiry {
                Some(at) => renew(&client, at.saturating_sub(now_ms()).max(1) as f64 / 1000.0).await.map(drop),
                None => metrics(&client).await.map(drop),
            };
            sandbox.ask(engine, "resuming", work).await?;
        }
        Ok(handle.clone())
    }
}

#[async_trait]
impl Renew for DockerProvider {
    async fn renew(&self, handle: &SandboxHandle, ttl_s: f64) -> Result<u64> {
        let sandbox = self.open(handle).await?;
        let work = async |client| renew(&client, ttl_s).await;
        let at_ms = sandbox.ask(&self.shared.engine, "moving the expiry", work).await?;
        sandbox.renew_until(at_ms);
        Ok(at_ms)
    }
}

#[async_trait]
impl Connect for DockerProvider {
    async fn serialize_handle(&self, handle: &SandboxHandle, scope: Option<String>) -> Result<Value> {
        if let Some(scope) = scope {
            let message =
                format!("there is no scope {scope:?}: a descriptor holds wherever the same engine is reached");
            return Err(SandboxError::invalid_input("scope", message).with_provider(NAME));
        }
        let sandbox = self.open(handle).await?;
        let incarnation = &sandbox.labels.incarnation;
        Ok(json!({ "form": FORM, "sandbox_id": sandbox.id(), "incarnation": incarnation }))
    }

    async fn connect(&self, descriptor: Value) -> Result<SandboxHandle> {
        let text = |key: &str| {
            let value = descriptor.get(key).and_then(Value::as_str).filter(|value| !value.is_empty());
            value.map(str::to_owned).ok_or_else(|| {
                SandboxError::invalid_input("descriptor", format!("has no {key}: it is none of this provider"))
                    .with_provider(NAME)
            })
        };
        if text("form")? != FORM {
            return Err(SandboxError::invalid_input("descriptor", "is of another release").with_provider(NAME));
        }
        let (id, incarnation) = (text("sandbox_id")?, text("incarnation")?);
        let mut handle = SandboxHandle::new(id, NAME).with_state(json!({ "incarnation": incarnation }));
        handle.generation = GENERATION;
        let sandbox = self.open(&handle).await?;
        if !sandbox.is_paused.load(Ordering::Acquire) && sandbox.link.is_some() {
            sandbox.ask(&self.shared.engine, "connecting", async |client| metrics(&client).await.map(drop)).await?;
        }
        Ok(sandbox.handle())
    }
}

#[async_trait]
impl Metrics for DockerProvider {
    async fn metrics(&self, handle: &SandboxHandle) -> Result<SandboxMetrics> {
        let sandbox = self.open(handle).await?;
        let engine = &self.shared.engine;
        let options = bollard::query_parameters::StatsOptionsBuilder::default().stream(false).one_shot(true).build();
        let docker = engine.docker().await?;
        let mut stats = Box::pin(docker.stats(&sandbox.container, Some(options)));
        let with_size = bollard::query_parameters::InspectContainerOptionsBuilder::default().size(true).build();
        let (found, inspected) =
            tokio::join!(stats.next(), docker.inspect_container(&sandbox.container, Some(with_size)));
        let found = match found {
            Some(Ok(found)) => found,
            Some(Err(error)) if error::is_missing(&error) => {
                return Err(not_found(sandbox.id(), "is closed, or was removed by somebody else"));
            }
            Some(Err(error)) => return Err(error::engine("measuring the sandbox", error)),
            None => return Err(SandboxError::unavailable("the engine measures nothing").with_provider(NAME)),
        };
        let cpu = found.cpu_stats.and_then(|cpu| cpu.cpu_usage).and_then(|usage| usage.total_usage);
        let memory = found.memory_stats.and_then(|memory| {
            // What the cache holds is given back when it is needed.
            let files = memory
                .stats
                .as_ref()
                .and_then(|stats| stats.get("inactive_file").or_else(|| stats.get("total_inactive_file")).copied());
            memory.usage.map(|usage| usage.saturating_sub(files.unwrap_or(0)))
        });
        let networks = found.networks.unwrap_or_default();
        let sum = |part: fn(&bollard::models::ContainerNetworkStats) -> Option<u64>| {
            (!networks.is_empty()).then(|| networks.values().filter_map(part).sum())
        };
        Ok(SandboxMetrics {
            cpu_time_s: cpu.map(|nanos| nanos as f64 / 1e9),
            memory_bytes: memory,
            processes: found.pids_stats.and_then(|pids| pids.current),
            // What it has written beside its volumes. An engine that does not count has no figure.
            disk_bytes: inspected.ok().and_then(|found| found.size_rw).and_then(|bytes| u64::try_from(bytes).ok()),
            received_bytes: sum(|network| network.rx_bytes),
            sent_bytes: sum(|network| network.tx_bytes),
        })
    }
}
