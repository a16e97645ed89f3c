use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use sandbox_core::{ProviderInfo, Result, SandboxHandle, SandboxProvider, SandboxSpec};
use serde_json::Value;

use super::state::{Cell, Live, Origin, ProviderEnd, State};
use crate::{
    Admission,
    cleanup::{self, ProviderAfter, Unfinished},
    pty::SandboxPtySession,
    timeouts::{ControlTimeouts, within},
};

/// Whether a sandbox object ends its provider when it ends itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// It does. For a provider that nobody else uses.
    #[default]
    Owned,
    /// It never does. For a provider that several sandboxes share.
    Shared,
}

/// One sandbox on one provider.
///
/// * Made with a provider and a spec, alive after [`start`](Self::start), gone after [`stop`](Self::stop). An object is
///   used for one sandbox.
/// * All methods take `&self` and may be called at the same time, from any task; [`start`](Self::start) works once.
/// * Every future may be dropped at any time. What is then under way inside is cancelled; nothing leaks.
/// * Needs a tokio runtime with time enabled. [`Sandbox`](crate::Sandbox) is the same for code without one.
///
/// **`stop` is the way to end it.** Dropping a started object never blocks: it queues the removal for a background
/// thread, which [`flush_cleanup`](crate::flush_cleanup) waits for. Dropping an object made by
/// [`connect`](Self::connect) only disconnects.
///
/// **By default the object owns its provider** and ends it in `stop`, as in the model. Where several sandboxes share a
/// provider, say so: [`with_ownership`](Self::with_ownership)`(Ownership::Shared)`. Whoever ends a shared provider
/// calls [`flush_cleanup`](crate::flush_cleanup) first: what was dropped needs it to be closed.
pub struct AsyncSandbox {
    pub(crate) provider: Arc<dyn SandboxProvider>,
    // Asked once: a provider's answer does not change, and asking may cross the ABI.
    pub(super) info: OnceLock<ProviderInfo>,
    pub(super) ownership: Ownership,
    pub(super) spec: Option<SandboxSpec>,
    pub(crate) timeouts: ControlTimeouts,
    // Dropped starts that still need the provider.
    pub(super) unfinished: Unfinished,
    pub(super) cell: Cell,
    pub(super) shell: Mutex<Option<SandboxPtySession>>,
    pub(crate) admission: Option<Admission>,
}

impl AsyncSandbox {
    /// An object for one sandbox of this provider, which it owns. Nothing is created yet.
    pub fn new(provider: Arc<dyn SandboxProvider>) -> Self {
        Self {
            provider,
            info: OnceLock::new(),
            ownership: Ownership::default(),
            spec: None,
            timeouts: ControlTimeouts::default(),
            unfinished: Unfinished::none(),
            cell: Cell::new(State::New),
            shell: Mutex::new(None),
            admission: None,
        }
    }

    /// An object for one sandbox of a provider made from its configuration by
    /// [`create_provider`](crate::create_provider).
    ///
    /// # Errors
    /// As there.
    pub fn from_config(config: &Value) -> Result<Self> {
        Ok(Self::new(crate::create_provider(config)?))
    }

    /// Sets the spec for a `start` without one.
    #[must_use]
    pub fn with_spec(mut self, spec: SandboxSpec) -> Self {
        self.spec = Some(spec);
        self
    }

    /// Says whether the object ends its provider when it ends itself.
    #[must_use]
    pub fn with_ownership(mut self, ownership: Ownership) -> Self {
        self.ownership = ownership;
        self
    }

    /// Sets how long control calls may take.
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: ControlTimeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Keeps the limits that all sandboxes of its provider share.
    #[must_use]
    pub fn with_admission(mut self, admission: &Admission) -> Self {
        self.admission = Some(admission.clone());
        self
    }

    /// Whether the object ends its provider when it ends itself.
    pub fn owns_provider(&self) -> Ownership {
        self.ownership
    }

    /// The provider.
    pub fn provider(&self) -> &Arc<dyn SandboxProvider> {
        &self.provider
    }

    /// What the provider says of itself: capabilities, fields, isolation. Does not reach the backend.
    pub fn info(&self) -> &ProviderInfo {
        self.info.get_or_init(|| self.provider.full_info())
    }

    /// What names the sandbox on its provider's side.
    ///
    /// # Errors
    /// `InvalidState` when it is not started.
    pub fn handle(&self) -> Result<SandboxHandle> {
        Ok(self.cell.live()?.handle.clone())
    }

    /// What becomes of the provider when this object ends.
    pub(super) fn provider_after(&self) -> ProviderAfter {
        match self.ownership {
            Ownership::Owned => ProviderAfter::Ends(self.unfinished.clone()),
            Ownership::Shared => ProviderAfter::Stays,
        }
    }

    /// A call to the provider under its deadline. Errors name the provider.
    pub(super) async fn call<T>(
        &self,
        operation: &str,
        limit: Duration,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        within(operation, limit, call).await.map_err(|error| error.with_provider(self.provider.name()))
    }
}

impl Drop for AsyncSandbox {
    fn drop(&mut self) {
        let sandbox = match &*self.cell.lock() {
            State::Live(live) if live.origin == Origin::Created => Some((live.handle.clone(), live.slot.clone())),
            // Its removal is queued already when the start was cancelled; once more does no harm.
            State::Abandoned(live) => Some((live.handle.clone(), live.slot.clone())),
            State::Live(_) | State::Stopped(ProviderEnd::Open) => None,
            // A provider that was never used is left to its own destructor.
            State::New | State::Starting | State::Stopped(ProviderEnd::Ended) | State::Disconnected => return,
        };
        if sandbox.is_some() || self.ownership == Ownership::Owned {
            cleanup::close_later(self.provider.clone(), sandbox, self.provider_after());
        }
    }
}

impl fmt::Debug for AsyncSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, handle) = match &*self.cell.lock() {
            State::New => ("new", None),
            State::Starting => ("starting", None),
            State::Live(live) => ("started", Some(live.handle.clone())),
            State::Abandoned(live) => ("abandoned", Some(live.handle.clone())),
            State::Stopped(_) => ("stopped", None),
            State::Disconnected => ("disconnected", None),
        };
        f.debug_struct("AsyncSandbox")
            .field("provider", &self.provider.name())
            .field("state", &state)
            .field("handle", &handle)
            .finish_non_exhaustive()
    }
}

/// The default shell of terminal sessions.
impl AsyncSandbox {
    /// The sandbox, if commands can run.
    pub(crate) fn live(&self) -> Result<Arc<Live>> {
        self.cell.live()
    }

    /// The default shell, if one lives.
    pub(crate) fn shell(&self) -> Option<SandboxPtySession> {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        if shell.as_ref().is_some_and(SandboxPtySession::is_over_now) {
            *shell = None;
        }
        shell.clone()
    }

    /// Makes a shell the default one, unless there is one that lives.
    pub(crate) fn keep_shell(&self, session: &SandboxPtySession) {
        if self.shell().is_none() {
            *self.shell.lock().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
        }
    }

    /// The shell is no longer the default one.
    pub(crate) fn forget_shell(&self, session: &SandboxPtySession) {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        if shell.as_ref().is_some_and(|shell| shell.session_id() == session.session_id()) {
            *shell = None;
        }
    }
}
