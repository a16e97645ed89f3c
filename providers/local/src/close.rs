//! Ending a sandbox: by its caller, by its time to live, or by a sweep.

use std::{
    sync::{Arc, PoisonError, Weak},
    time::Duration,
};

use sandbox_core::{Result, SandboxError, tracing};
use tokio::{sync::watch, time::Instant};

use crate::{
    error::NAME,
    fate::Fate,
    isolated::{self, Networks},
    record::now_ms,
    sandbox::Sandbox,
};

/// How long the processes and file operations of a sandbox may take to end.
const END_WITHIN: Duration = Duration::from_secs(10);

/// How often the processes are looked after while a start or a file operation is being waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Sandbox {
    /// Ends every process and removes what belongs to the sandbox. Callers at the same time wait for one another; after
    /// a failure it can be called again. Dropping the future leaves the sandbox closed, and the next call goes on.
    pub(crate) async fn close(self: &Arc<Self>, why: Fate) -> Result<()> {
        self.gate.end(why);
        self.is_gone.get_or_try_init(|| self.end()).await.copied()
    }

    async fn end(self: &Arc<Self>) -> Result<()> {
        let started = Instant::now();
        self.end_inside().await?;
        let mut busy = self.gate.watch_busy();
        loop {
            // Nobody starts anything once nobody is busy: then what is left now is all there is.
            let is_idle = *busy.borrow_and_update() == 0;
            let time_left = END_WITHIN.saturating_sub(started.elapsed());
            let processes = self.processes.kill_all(time_left).await;
            if is_idle && processes == 0 {
                break;
            }
            if started.elapsed() >= END_WITHIN {
                return Err(SandboxError::timed_out(format!(
                    "sandbox {} still has {processes} process trees and {} operations",
                    self.id,
                    *busy.borrow()
                ))
                .with_provider(NAME)
                .with_help("close it again"));
            }
            let _ = tokio::time::timeout(LOOK_EVERY, busy.changed()).await;
        }
        let sandbox = self.clone();
        let removed = tokio::task::spawn_blocking(move || sandbox.remove_files()).await;
        removed.unwrap_or_else(|_| Err(SandboxError::internal("removing the workspace panicked")))?;
        tracing::debug!(sandbox_id = self.id, fate = ?self.gate.fate(), "sandbox is gone");
        Ok(())
    }

    /// Ends PID 1 of an isolated sandbox, and with it everything inside. What is asked of it fails then.
    async fn end_inside(&self) -> Result<()> {
        let Some(inside) = self.inside.clone() else { return Ok(()) };
        let ended = tokio::task::spawn_blocking(move || inside.running.end());
        match tokio::time::timeout(END_WITHIN, ended).await {
            Ok(ended) => ended.unwrap_or_else(|_| Err(SandboxError::internal("ending the sandbox panicked"))),
            Err(_) => {
                let message = format!("the processes of sandbox {} do not end", self.id);
                Err(SandboxError::timed_out(message).with_provider(NAME).with_help("close it again"))
            }
        }
    }

    /// Removes the folder, if it is the sandbox's own, and then the record.
    pub(crate) fn remove_files(&self) -> Result<()> {
        let networks = self.record.lock().unwrap_or_else(PoisonError::into_inner).networks.clone();
        if self.is_owned {
            self.root.remove_workspace(&self.id)?;
        }
        self.records.remove(&self.id)?;
        isolated::leave(&Networks::new(&self.root, &self.records), &self.id, &networks);
        Ok(())
    }

    /// Whether this object ends it at its expiry.
    pub(crate) fn has_timer(&self) -> bool {
        self.expiry.receiver_count() > 0
    }

    /// Lets the sandbox live until then. Its timer is started when there was none.
    pub(crate) fn live_until(self: &Arc<Self>, expiry: Instant) {
        let has_timer = self.has_timer();
        self.expiry.send_replace(Some(expiry));
        if !has_timer {
            tokio::spawn(enforce(Arc::downgrade(self), self.expiry.subscribe()));
        }
    }

    /// Forgets the expiry; its record still tells it.
    pub(crate) fn stop_timer(&self) {
        self.expiry.send_replace(None);
    }

    /// Writes a new expiry down.
    pub(crate) fn record_expiry(&self, expires_at_ms: u64) -> Result<()> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.identity.expires_at_ms = Some(expires_at_ms);
        self.records.rewrite(&record)
    }

    /// When it is to end, if that is not now: another process may have moved it, and one that is paused is not ended.
    fn not_yet(&self) -> Option<Option<Instant>> {
        if self.inside.as_ref().is_some_and(|inside| inside.is_paused()) {
            // Resuming it sets the time again.
            return Some(None);
        }
        let at_ms = self.is_lasting.then(|| self.records.read(&self.id)?.identity.expires_at_ms).flatten()?;
        let left_ms = at_ms.checked_sub(now_ms()).filter(|left_ms| *left_ms > 0)?;
        Some(Some(Instant::now() + Duration::from_millis(left_ms)))
    }
}

/// Closes a sandbox at its expiry. Ends with the sandbox.
async fn enforce(sandbox: Weak<Sandbox>, mut expiry: watch::Receiver<Option<Instant>>) {
    loop {
        let at = *expiry.borrow_and_update();
        let passed = async {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = expiry.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = passed => {
                let Some(sandbox) = sandbox.upgrade() else { return };
                let looking = sandbox.clone();
                let not_yet = tokio::task::spawn_blocking(move || looking.not_yet()).await;
                if let Some(expiry) = not_yet.unwrap_or_default() {
                    // Unless it was moved meanwhile.
                    sandbox.expiry.send_if_modified(|now| {
                        let is_mine = *now == at;
                        if is_mine {
                            *now = expiry;
                        }
                        is_mine
                    });
                    continue;
                }
                tracing::debug!(sandbox_id = sandbox.id, "sandbox has expired");
                if let Err(error) = sandbox.close(Fate::Expired).await {
                    tracing::warn!(sandbox_id = sandbox.id, kind = %error.kind(), "an expired sandbox could not be closed");
                }
                return;
            }
        }
    }
}
