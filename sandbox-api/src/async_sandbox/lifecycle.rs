use std::sync::PoisonError;

use sandbox_core::{
    Capability, Owner, Result, SandboxEndpoint, SandboxError, SandboxIdentity, SandboxStatus, Snapshot,
};
use tokio::time::Instant;

use super::{
    AsyncSandbox, Ownership,
    state::{Origin, ProviderEnd, State},
};
use crate::{
    checks,
    cleanup::{self, ProviderAfter},
    telemetry,
};

impl AsyncSandbox {
    /// Removes the sandbox, confirms that it is gone and ends the provider if it is owned. Idempotent.
    ///
    /// * Also removes the sandbox of an object made by [`connect`](Self::connect); [`disconnect`](Self::disconnect)
    ///   does not.
    /// * When removing fails, nothing changes: commands still work and `stop` can be called again. When only ending the
    ///   provider fails, the next `stop` tries just that again.
    /// * Commands under way end as `Lost`. Several stops at the same time are fine.
    /// * When a start was dropped and still goes on in the background, an owned provider ends there, after it.
    ///
    /// # Errors
    /// `InvalidState` while it is starting: drop that future instead. `TimedOut`, and whatever kept the provider from
    /// it.
    pub async fn stop(&self) -> Result<()> {
        let span = tracing::debug_span!(
            "sandbox.stop",
            provider = self.provider.name(),
            sandbox_id = tracing::field::Empty,
            error_kind = tracing::field::Empty,
            duration_ms = tracing::field::Empty,
        );
        telemetry::in_span(span, self.stop_inner()).await
    }

    async fn stop_inner(&self) -> Result<()> {
        let handle = match &*self.cell.lock() {
            State::Starting => {
                return Err(SandboxError::invalid_state("the sandbox is still starting")
                    .with_help("drop the future of start() to give it up"));
            }
            State::Live(live) | State::Abandoned(live) => Some(live.handle.clone()),
            State::New | State::Stopped(ProviderEnd::Open) => None,
            State::Stopped(ProviderEnd::Ended) | State::Disconnected => return Ok(()),
        };
        if let Some(handle) = handle {
            tracing::Span::current().record("sandbox_id", handle.sandbox_id.as_str());
            let closed = self.call("close", self.timeouts.close, self.provider.close(&handle)).await;
            let mut state = self.cell.lock();
            match (&*state, closed) {
                // Another stop was faster and may have ended the provider under this one.
                (State::Stopped(_) | State::Disconnected, _) => {}
                (_, Ok(())) => {
                    *state = State::Stopped(ProviderEnd::Open);
                    self.shell.lock().unwrap_or_else(PoisonError::into_inner).take();
                }
                (_, Err(error)) => return Err(error),
            }
        }
        self.end_provider().await?;
        let mut state = self.cell.lock();
        if matches!(&*state, State::New | State::Stopped(_)) {
            *state = State::Stopped(ProviderEnd::Ended);
        }
        Ok(())
    }

    pub(super) async fn end_provider(&self) -> Result<()> {
        match self.ownership {
            // A dropped start still needs it; then it ends there.
            Ownership::Owned if self.unfinished.is_any() => {
                cleanup::close_later(self.provider.clone(), None, self.provider_after());
                Ok(())
            }
            Ownership::Owned => self.call("closing the provider", self.timeouts.aclose, self.provider.aclose()).await,
            Ownership::Shared => Ok(()),
        }
    }

    /// Gives a started sandbox up without waiting: only `stop` works afterwards, and the removal is queued.
    pub(crate) fn abandon(&self) {
        let mut state = self.cell.lock();
        if let State::Live(live) = &*state {
            let live = live.clone();
            *state = State::Abandoned(live.clone());
            let sandbox = (live.handle.clone(), live.slot.clone());
            cleanup::close_later(self.provider.clone(), Some(sandbox), ProviderAfter::Stays);
        }
    }

    /// The state of the sandbox.
    ///
    /// | situation | answer |
    /// |---|---|
    /// | never started, or disconnected | `Unknown`; the provider is not asked |
    /// | `start` under way | `Starting`; the provider is not asked |
    /// | started, connected, or a `stop` failed | the provider's |
    /// | stopped | `Stopped`; the provider is not asked |
    ///
    /// # Errors
    /// `TimedOut`, and those of [`status`](sandbox_core::SandboxProvider::status); never because of the object's state.
    pub async fn status(&self) -> Result<SandboxStatus> {
        let live = match &*self.cell.lock() {
            State::New | State::Disconnected => return Ok(SandboxStatus::Unknown),
            State::Starting => return Ok(SandboxStatus::Starting),
            State::Stopped(_) => return Ok(SandboxStatus::Stopped),
            State::Live(live) | State::Abandoned(live) => live.clone(),
        };
        self.call("status", self.timeouts.status, self.provider.status(&live.handle)).await
    }

    /// Where a declared port can be reached.
    ///
    /// Checked in this order: the number, that it was declared, the capability, that the sandbox is started. Before the
    /// start the ports of [`with_spec`](Self::with_spec) count; after [`connect`](Self::connect) those of the
    /// descriptor.
    ///
    /// # Errors
    /// `InvalidInput` (port 0, or not declared), `Unsupported`, `InvalidState`, `TimedOut`, `Internal` for an address
    /// that is no URL, and those of the provider.
    pub async fn endpoint(&self, port: u16) -> Result<SandboxEndpoint> {
        if port == 0 {
            return Err(SandboxError::invalid_input("port", "must be 1 to 65535, not 0"));
        }
        let declared = match &*self.cell.lock() {
            State::Live(live) | State::Abandoned(live) => live.spec.ports.clone(),
            _ => self.spec.as_ref().map(|spec| spec.ports.clone()).unwrap_or_default(),
        };
        if !declared.contains(&port) {
            let message = format!("{port} is not a declared port of this sandbox; declared: {declared:?}");
            return Err(SandboxError::invalid_input("port", message).with_help("name it in the spec's ports"));
        }
        let provider = checks::require(self.provider.name(), self.provider.as_endpoint(), Capability::Endpoint)?;
        let live = self.cell.live()?;
        let endpoint = self.call("endpoint", self.timeouts.query, provider.endpoint(&live.handle, port)).await?;
        SandboxEndpoint::new(&endpoint.endpoint, endpoint.headers).map_err(|error| {
            SandboxError::internal("the provider returned an endpoint that is no absolute URL")
                .with_provider(self.provider.name())
                .with_source(error)
        })
    }

    /// Freezes the sandbox. Open terminals are detached; what else survives is the backend's affair. The time to live
    /// goes on outside and is enforced on resume.
    ///
    /// # Errors
    /// `InvalidState` when it is not started, then `Unsupported`; `TimedOut`; the provider's.
    pub async fn pause(&self) -> Result<()> {
        let live = self.cell.live()?;
        let provider = checks::require(self.provider.name(), self.provider.as_pause_resume(), Capability::PauseResume)?;
        self.call("pause", self.timeouts.pause, provider.pause(&live.handle)).await
    }

    /// Thaws the sandbox and returns when commands run again. After a `TimedOut`, ask for its status.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn resume(&self) -> Result<()> {
        let live = self.cell.live()?;
        let provider = checks::require(self.provider.name(), self.provider.as_pause_resume(), Capability::PauseResume)?;
        let handle = self.call("resume", self.timeouts.pause, provider.resume(&live.handle)).await?;
        self.cell.update(|live| live.handle = handle);
        Ok(())
    }

    /// Lets the sandbox live for `ttl_s` seconds from now. Returns the new expiry in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// `InvalidState` when it is not started; `InvalidInput` for a number that is no lifetime; `Unsupported`;
    /// `TimedOut`; the provider's.
    pub async fn renew(&self, ttl_s: f64) -> Result<u64> {
        let live = self.cell.live()?;
        let ttl = sandbox_core::SandboxSpec::default().with_ttl_s(ttl_s);
        ttl.validate()?;
        let provider = checks::require(self.provider.name(), self.provider.as_renew(), Capability::Renew)?;
        // Taken before the call: what the sandbox has left is never overestimated.
        let asked_at = Instant::now();
        let expires_at_ms = self.call("renew", self.timeouts.query, provider.renew(&live.handle, ttl_s)).await?;
        self.cell.update(|live| live.expires_at = ttl.ttl().map(|ttl| asked_at + ttl));
        Ok(expires_at_ms)
    }

    /// Keeps the state of the sandbox under a name. The id of what is made is an image of new sandboxes.
    ///
    /// # Errors
    /// `InvalidState` when it is not started; `InvalidInput` for a blank name; `Unsupported`; `TimedOut` (a limit of
    /// [`ControlTimeouts::pause`](crate::ControlTimeouts::pause)); the provider's.
    pub async fn create_snapshot(&self, name: &str) -> Result<Snapshot> {
        let live = self.cell.live()?;
        if name.trim().is_empty() {
            return Err(SandboxError::invalid_input("name", "must not be blank"));
        }
        let provider = checks::require(self.provider.name(), self.provider.as_snapshots(), Capability::Snapshots)?;
        let made = provider.create_snapshot(&live.handle, name.to_owned());
        self.call("create_snapshot", self.timeouts.pause, made).await
    }

    /// Sets the user of later commands that name none: `NAME`, `UID`, `UID:GID` or `NAME:GROUP`; none: the sandbox's
    /// own. For an account made after the start. The account is not made and nothing changes its owner.
    ///
    /// # Errors
    /// `InvalidState` when it is not started; `InvalidInput` for the form; `Unsupported` when the provider cannot
    /// switch users.
    pub fn set_default_user(&self, user: Option<&str>) -> Result<()> {
        self.cell.live()?;
        if let Some(user) = user {
            sandbox_core::SandboxSpec::default().with_user(user).validate()?;
            checks::require_field(self.info(), sandbox_core::Field::ExecUser)?;
        }
        self.cell.update(|live| live.default_user = user.map(str::to_owned));
        Ok(())
    }

    /// Sets the directory of later commands that name none, against which relative paths of commands and files are
    /// resolved from now on; none: the sandbox's own. The directory is not made.
    ///
    /// # Errors
    /// `InvalidState` when it is not started; `InvalidInput` when it is not absolute; `Unsupported` when the provider
    /// cannot choose directories.
    pub fn set_default_workdir(&self, workdir: Option<&str>) -> Result<()> {
        self.cell.live()?;
        if let Some(workdir) = workdir {
            sandbox_core::SandboxSpec::default().with_workdir(workdir).validate()?;
            checks::require_field(self.info(), sandbox_core::Field::ExecCwd)?;
        }
        self.cell.update(|live| live.default_workdir = workdir.map(str::to_owned));
        Ok(())
    }

    /// Ends the use of a sandbox that [`connect`](Self::connect) found; the sandbox lives on. Idempotent.
    ///
    /// When ending an owned provider fails, the object stays connected and this can be called again.
    ///
    /// # Errors
    /// `InvalidState` for an object that was not made by `connect`; the provider's.
    pub async fn disconnect(&self) -> Result<()> {
        match &*self.cell.lock() {
            State::Stopped(_) | State::Disconnected => return Ok(()),
            State::Live(live) | State::Abandoned(live) if live.origin == Origin::Connected => {}
            _ => {
                return Err(SandboxError::invalid_state("only a sandbox made by connect() can be disconnected")
                    .with_help("end it with stop()"));
            }
        }
        self.end_provider().await?;
        *self.cell.lock() = State::Disconnected;
        Ok(())
    }

    /// Ends the use of a sandbox that this object made and leaves it running, for others to
    /// [`connect`](Self::connect) to: [`serialize`](Self::serialize) it first. Its provider is ended if it is owned.
    ///
    /// # Errors
    /// `InvalidState` when it is not started, or when it belongs to this process and would be swept after it: start it
    /// with an identity whose owner is [`Owner::Lease`](sandbox_core::Owner::Lease). The provider's, when it cannot be
    /// ended; the object stays as it was then.
    pub async fn leave(&self) -> Result<()> {
        let live = self.cell.live()?;
        let is_leased = |identity: &SandboxIdentity| identity.owner == Owner::Lease;
        if live.origin != Origin::Connected && !live.spec.identity.as_ref().is_some_and(is_leased) {
            return Err(SandboxError::invalid_state("the sandbox belongs to this process and ends with it")
                .with_help("start it with an identity whose owner is a lease"));
        }
        self.end_provider().await?;
        *self.cell.lock() = State::Disconnected;
        Ok(())
    }
}
