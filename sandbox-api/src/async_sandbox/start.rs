use std::{sync::Arc, time::Duration};

use sandbox_core::{ByteString, Result, SandboxError, SandboxHandle, SandboxSpec, StartupFile, bytes::Bytes};
use tokio::time::Instant;

use super::{
    AsyncSandbox,
    state::{Created, Live, Origin, Slot},
};
use crate::{admission::Permit, checks, cleanup::Orphan, identity, staging::Staged, telemetry, timeouts::timed_out};

impl AsyncSandbox {
    /// Makes the sandbox and writes its start-up files.
    ///
    /// * `spec` beats the spec of [`with_spec`](Self::with_spec).
    /// * The spec is checked as a whole, values and what the provider honours, before the provider hears of it.
    /// * When creating fails, nothing is there and `start` may be called again. When a start-up file cannot be written,
    ///   the sandbox is removed, the files after it are not sent, and the error of that file is returned.
    /// * Dropping the future leaks nothing: the provider's `create` goes on in the background and what it makes is
    ///   removed there. The same happens when `ready_timeout_s` has passed.
    /// * While one start is under way, another one on the same object is refused.
    ///
    /// # Errors
    /// `InvalidState` when it is started, starting or stopped; `InvalidInput` without a spec or for a wrong value;
    /// `Unsupported` for what the provider does not honour; `TimedOut` after `ready_timeout_s`; the errors of
    /// [`create`](sandbox_core::SandboxProvider::create) and
    /// [`upload_file`](sandbox_core::SandboxProvider::upload_file).
    pub async fn start(&self, spec: Option<SandboxSpec>) -> Result<()> {
        let span = tracing::debug_span!(
            "sandbox.start",
            provider = self.provider.name(),
            sandbox_id = tracing::field::Empty,
            error_kind = tracing::field::Empty,
            duration_ms = tracing::field::Empty,
        );
        telemetry::in_span(span, self.start_inner(spec)).await
    }

    /// [`start`](Self::start), then `setup` on the running sandbox. When `setup` fails, or the future is dropped, the
    /// sandbox is removed.
    ///
    /// # Errors
    /// Those of `start`, and what `setup` returns.
    pub async fn start_with_setup<T>(
        &self,
        spec: Option<SandboxSpec>,
        setup: impl AsyncFnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        self.start(spec).await?;
        let unless_finished = StopOnDrop(Some(self));
        let result = setup(self).await;
        unless_finished.disarm();
        match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.stop_after(error).await),
        }
    }

    async fn start_inner(&self, spec: Option<SandboxSpec>) -> Result<()> {
        let starting = self.cell.begin_start()?;
        let mut spec = spec.or_else(|| self.spec.clone()).ok_or_else(|| {
            SandboxError::invalid_input("spec", "starting a sandbox requires a SandboxSpec")
                .with_help("give one to start() or with_spec()")
        })?;
        spec.validate()?;
        checks::check_spec(self.info(), &spec)?;
        let files = std::mem::take(&mut spec.files.0);
        identity::fill(&mut spec);
        let expires_at = spec.ttl().map(|ttl| Instant::now() + ttl);
        let (handle, slot) = self.create(spec.clone()).await?;
        tracing::Span::current().record("sandbox_id", handle.sandbox_id.as_str());
        tracing::debug!(sandbox_id = %handle.sandbox_id, "sandbox created");
        let created = starting.created(
            &self.provider,
            Live {
                handle,
                spec: Arc::new(spec),
                origin: Origin::Created,
                slot: Some(slot),
                default_user: None,
                default_workdir: None,
                expires_at,
            },
        );
        match self.write_startup_files(&created, files).await {
            Ok(()) => {
                created.finish();
                Ok(())
            }
            Err(error) => {
                created.abandon();
                Err(self.stop_after(error).await)
            }
        }
    }

    /// Creates it when it is its turn, as often as the admission says.
    async fn create(&self, spec: SandboxSpec) -> Result<(SandboxHandle, Arc<Slot>)> {
        let limit: Option<Duration> = spec.ready_timeout();
        let creating = self.create_in_turn(spec);
        let result = match limit {
            Some(limit) => {
                tokio::time::timeout(limit, creating).await.unwrap_or_else(|_| Err(timed_out("create", limit)))
            }
            None => creating.await,
        };
        result.map_err(|error| error.with_provider(self.provider.name()))
    }

    async fn create_in_turn(&self, spec: SandboxSpec) -> Result<(SandboxHandle, Arc<Slot>)> {
        // Always in this order: the place first, then the turn.
        let permit = match &self.admission {
            Some(admission) => admission.sandbox().await?,
            None => Permit::default(),
        };
        let mut slot = Slot::new(permit);
        let mut attempt = 1;
        loop {
            let turn = match &self.admission {
                Some(admission) => Some(admission.create().await?),
                None => None,
            };
            let held = Arc::new(slot);
            let (provider, spec) = (self.provider.clone(), spec.clone());
            let work = Box::pin(async move { provider.create(spec).await });
            let began = Instant::now();
            let created = Orphan::new(self.provider.clone(), work, &self.unfinished, &held).await;
            if let Some(turn) = turn {
                turn.over(created.as_ref().err());
            }
            let error = match created {
                Ok(handle) => {
                    telemetry::startup(self.provider.name(), began.elapsed());
                    held.activate(self.provider.name());
                    return Ok((handle, held));
                }
                Err(error) => error,
            };
            let pause = self.admission.as_ref().and_then(|admission| admission.pause_after(attempt, &error));
            // The turn was given back: nobody waits for one that only waits itself.
            let Some(pause) = pause else { return Err(error) };
            telemetry::create_retry(self.provider.name());
            tracing::debug!(provider = self.provider.name(), attempt, kind = %error.kind(), "a create is tried again");
            tokio::time::sleep(pause).await;
            attempt += 1;
            slot = Arc::into_inner(held).unwrap_or_default();
        }
    }

    async fn write_startup_files(&self, created: &Created<'_>, files: Vec<StartupFile>) -> Result<()> {
        for file in files {
            let staged = Staged::with_contents(Bytes::from(file.contents.into_bytes()), None).await?;
            let remote = ByteString::from(file.path);
            let upload = self.provider.upload_file(&created.live().handle, staged.path(), &remote);
            self.call("writing a start-up file", self.timeouts.transfer, upload).await?;
        }
        Ok(())
    }

    /// Removes a sandbox whose start went wrong. The error that made it go wrong stays the one to tell.
    pub(crate) async fn stop_after(&self, error: SandboxError) -> SandboxError {
        match self.stop().await {
            Ok(()) => error,
            Err(stop) => {
                let kind = stop.kind();
                tracing::warn!(provider = self.provider.name(), %kind, "a sandbox could not be closed after its start failed");
                error.with_help(format!(
                    "the sandbox is still there, since closing it failed too ({kind}); call stop() again"
                ))
            }
        }
    }
}

/// Removes the sandbox in the background if the setup is not run to its end.
struct StopOnDrop<'a>(Option<&'a AsyncSandbox>);

impl StopOnDrop<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(sandbox) = self.0 {
            sandbox.abandon();
        }
    }
}
