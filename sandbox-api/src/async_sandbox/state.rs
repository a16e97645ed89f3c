//! What a sandbox object is at the moment. The lock is held for the moment of a look or a change, never across an await.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use sandbox_core::{Result, SandboxError, SandboxHandle, SandboxProvider, SandboxSpec};
use tokio::time::Instant;

use crate::{
    admission::Permit,
    cleanup::{self, ProviderAfter},
    telemetry::Active,
};

/// How an object came by its sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It made it.
    Created,
    /// It was made elsewhere, and lives on when this object goes away.
    Connected,
}

/// A sandbox that is there.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) handle: SandboxHandle,
    /// Without the contents of start-up files.
    pub(crate) spec: Arc<SandboxSpec>,
    pub(super) origin: Origin,
    pub(crate) default_user: Option<String>,
    pub(crate) default_workdir: Option<String>,
    pub(super) expires_at: Option<Instant>,
    /// Its place among the sandboxes; none for one that was made elsewhere.
    pub(super) slot: Option<Arc<Slot>>,
}

/// The place of one sandbox among those that this process made, until it is removed.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    active: OnceLock<Active>,
    _permit: Permit,
}

impl Slot {
    pub(super) fn new(permit: Permit) -> Self {
        Self { active: OnceLock::new(), _permit: permit }
    }

    /// The sandbox is there.
    pub(super) fn activate(&self, provider: &str) {
        self.active.get_or_init(|| Active::new(provider));
    }
}

impl Live {
    /// How long it may still live.
    pub(super) fn remaining(&self) -> Option<Duration> {
        self.expires_at.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// Whether an owned provider was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProviderEnd {
    Open,
    Ended,
}

pub(super) enum State {
    New,
    Starting,
    Live(Arc<Live>),
    /// Its start failed or was cancelled after the sandbox was made: nothing but `stop` works.
    Abandoned(Arc<Live>),
    Stopped(ProviderEnd),
    Disconnected,
}

pub(super) struct Cell(Mutex<State>);

impl Cell {
    pub(super) fn new(state: State) -> Self {
        Self(Mutex::new(state))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox, if commands can run.
    pub(super) fn live(&self) -> Result<Arc<Live>> {
        let why = match &*self.lock() {
            State::Live(live) => return Ok(live.clone()),
            State::New => "the sandbox has not been started",
            State::Starting => "the sandbox is still starting",
            State::Abandoned(_) => "the sandbox has not been started: its start failed and it waits for stop()",
            State::Stopped(_) => "the sandbox has not been started: it has been stopped",
            State::Disconnected => "the sandbox has not been started: this object has been disconnected",
        };
        Err(SandboxError::invalid_state(why))
    }

    /// Changes the sandbox if it is still there.
    pub(super) fn update(&self, change: impl FnOnce(&mut Live)) {
        if let State::Live(live) = &mut *self.lock() {
            change(Arc::make_mut(live));
        }
    }

    /// Reserves the object for one start.
    pub(super) fn begin_start(&self) -> Result<Starting<'_>> {
        let mut state = self.lock();
        let why = match &*state {
            State::New => {
                *state = State::Starting;
                return Ok(Starting { cell: self });
            }
            State::Starting => "the sandbox is already starting",
            State::Live(_) => "the sandbox is already started",
            State::Abandoned(_) => "the start of this sandbox failed; call stop() and use a new object",
            State::Stopped(_) => "the sandbox has been stopped; use a new object",
            State::Disconnected => "this object has been stopped by disconnect(); use a new one",
        };
        Err(SandboxError::invalid_state(why))
    }
}

/// A start under way, before there is a sandbox. Dropped, it makes the object new again: a start may be repeated.
pub(super) struct Starting<'a> {
    cell: &'a Cell,
}

impl<'a> Starting<'a> {
    /// There is a sandbox now.
    pub(super) fn created(self, provider: &'a Arc<dyn SandboxProvider>, live: Live) -> Created<'a> {
        let cell = self.cell;
        std::mem::forget(self);
        Created { cell, provider, live: Arc::new(live), is_settled: false }
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        *self.cell.lock() = State::New;
    }
}

/// A start under way, after the sandbox was made. Dropped, it queues the removal.
pub(super) struct Created<'a> {
    cell: &'a Cell,
    provider: &'a Arc<dyn SandboxProvider>,
    live: Arc<Live>,
    is_settled: bool,
}

impl Created<'_> {
    pub(super) fn live(&self) -> &Live {
        &self.live
    }

    /// The sandbox works.
    pub(super) fn finish(self) {
        let live = self.live.clone();
        self.settle(State::Live(live));
    }

    /// It does not; `stop` takes over.
    pub(super) fn abandon(self) {
        let live = self.live.clone();
        self.settle(State::Abandoned(live));
    }

    fn settle(mut self, state: State) {
        self.is_settled = true;
        *self.cell.lock() = state;
    }
}

impl Drop for Created<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            *self.cell.lock() = State::Abandoned(self.live.clone());
            cleanup::close_later(
                self.provider.clone(),
                Some((self.live.handle.clone(), self.live.slot.clone())),
                ProviderAfter::Stays,
            );
        }
    }
}
