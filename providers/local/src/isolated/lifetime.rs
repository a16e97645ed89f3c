//! Pausing an isolated sandbox, and how long it lives.

use std::{sync::Arc, time::Duration};

use sandbox_core::{PauseResume, Result, SandboxError, SandboxHandle, SandboxStatus, async_trait};
use sandbox_protocol::methods::{self, TtlRenew, TtlRenewed};
use tokio::time::Instant;

use crate::{
    error::{NAME, not_open},
    fate::Fate,
    isolated::{create::TTL_SLACK_S, inside::Inside},
    provider::{LocalProvider, blocking, remove_left_behind},
    record::{Record, now_ms},
    sandbox::Sandbox,
};

/// The times that the agent takes, in seconds.
const TTL_MIN_S: f64 = 0.001;
const TTL_MAX_S: f64 = 1e9;

#[async_trait]
impl PauseResume for LocalProvider {
    async fn pause(&self, handle: &SandboxHandle) -> Result<()> {
        let sandbox = self.open(handle).await?;
        set_paused(sandbox, true).await
    }

    async fn resume(&self, handle: &SandboxHandle) -> Result<SandboxHandle> {
        let record = self.shared.record_of(handle).await?;
        if let Some(record) = record.filter(|record| record.is_expired() && record.status() == SandboxStatus::Paused) {
            self.end_expired(handle, record).await?;
            return Err(not_open(&handle.sandbox_id, Fate::Expired));
        }
        match self.open_or_paused(handle).await? {
            Held::Open(sandbox) => set_paused(sandbox, false).await?,
            Held::Elsewhere(record) => thaw(record).await?,
        }
        let sandbox = self.open(handle).await?;
        let record = self.shared.record_of(handle).await?;
        if let (Some(inside), Some(at_ms)) = (&sandbox.inside, record.and_then(|record| record.identity.expires_at_ms))
        {
            // It may have been moved while the agent could not hear of it.
            let left = Duration::from_millis(at_ms.saturating_sub(now_ms()));
            renew(inside, &sandbox, left.as_secs_f64()).await.map_err(|error| sandbox.explain(error))?;
            if sandbox.has_timer() {
                sandbox.live_until(Instant::now() + left);
            }
        }
        Ok(handle.clone())
    }
}

/// Who can do something about a sandbox.
pub(crate) enum Held {
    Open(Arc<Sandbox>),
    /// It is paused, so its agent does not answer, and this process has no connection from before.
    Elsewhere(Box<Record>),
}

impl LocalProvider {
    /// The sandbox of a handle, also where it is paused and was never used by this process.
    pub(crate) async fn open_or_paused(&self, handle: &SandboxHandle) -> Result<Held> {
        match self.open(handle).await {
            Ok(sandbox) => Ok(Held::Open(sandbox)),
            Err(refusal) => match self.shared.record_of(handle).await? {
                Some(record) if record.status() == SandboxStatus::Paused => Ok(Held::Elsewhere(Box::new(record))),
                _ => Err(refusal),
            },
        }
    }

    /// Ends a paused sandbox whose time is over: that does not happen while it is paused.
    async fn end_expired(&self, handle: &SandboxHandle, record: Record) -> Result<()> {
        if let Some(sandbox) = self.shared.find(handle) {
            return sandbox.close(Fate::Expired).await;
        }
        let shared = self.shared.clone();
        blocking("closing", move || remove_left_behind(&shared.root, &shared.records, &record)).await
    }
}

async fn set_paused(sandbox: Arc<Sandbox>, paused: bool) -> Result<()> {
    let busy = sandbox.enter()?;
    let Some(inside) = sandbox.inside.clone() else {
        return Err(SandboxError::unsupported_field(NAME, "isolation", "only isolated sandboxes can be paused"));
    };
    blocking("pausing", move || {
        let done = inside.set_paused(&sandbox.id, paused);
        drop(busy);
        done.map_err(|error| error.with_provider(NAME))
    })
    .await
}

async fn thaw(record: Box<Record>) -> Result<()> {
    let Some(cgroup) = record.inside.as_ref().and_then(|inside| inside.cgroup.clone()) else {
        return Err(SandboxError::invalid_state(format!("sandbox {} is not paused", record.id)).with_provider(NAME));
    };
    blocking("resuming", move || {
        cgroup.thaw().map_err(|error| {
            SandboxError::timed_out(format!("sandbox {} could not be resumed: {error}", record.id)).with_provider(NAME)
        })
    })
    .await
}

/// Moves the expiry that the agent keeps by itself.
pub(crate) async fn renew(inside: &Inside, sandbox: &Sandbox, ttl_s: f64) -> Result<()> {
    // A paused one does not answer; it is told when it goes on.
    if inside.is_paused() {
        return Ok(());
    }
    // Where this process sees to the expiry, the agent is there for the case that it cannot.
    let slack_s = if sandbox.is_lasting { 0.0 } else { TTL_SLACK_S };
    let request = TtlRenew { ttl_s: (ttl_s + slack_s).clamp(TTL_MIN_S, TTL_MAX_S) };
    inside.client.call::<TtlRenewed>(methods::TTL_RENEW, &request).await.map(drop)
}
