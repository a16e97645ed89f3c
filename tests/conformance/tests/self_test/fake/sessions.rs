//! Terminal sessions that outlive their client: what they wrote is kept, and one client at a time follows it.

use std::sync::Arc;

use sandbox_core::{
    AttachOptions, ExecExit, PtyAttach, PtyEvent, PtyStream, Result, SandboxError, SandboxHandle, SessionSink,
    bytes::Bytes,
};
use tokio::sync::watch;

use super::{provider::Fake, terminal::Control, world::World};
use crate::fault::Fault;

/// How much output is kept for a client that is away.
const KEPT_BYTES: usize = 1024 * 1024;

/// A session with a terminal.
pub(super) struct Session {
    pub(super) id: String,
    pub(super) terminal: std::fs::File,
    pub(super) state: watch::Sender<State>,
}

#[derive(Default)]
pub(super) struct State {
    kept: Vec<u8>,
    /// The offset of the first byte that is kept.
    start: u64,
    /// The client that follows, by number, and how far it has come.
    holder: Option<u64>,
    position: u64,
    clients: u64,
    pub(super) exit: Option<ExecExit>,
    /// Its client dropped it: it is to end.
    pub(super) is_dropped: bool,
}

impl State {
    fn end(&self) -> u64 {
        self.start + self.kept.len() as u64
    }

    /// Makes a new client the holder.
    fn take(&mut self, position: u64) -> u64 {
        self.clients += 1;
        (self.holder, self.position) = (Some(self.clients), position);
        self.clients
    }
}

enum Step {
    Evicted,
    Left,
    Gap(u64),
    Output(Bytes),
    Exit(ExecExit),
}

impl Session {
    /// Keeps output. Waits for a client that is there; one that is away finds what still fits.
    pub(super) async fn keep(&self, bytes: &[u8]) {
        let has_room = |state: &State| state.holder.is_none() || state.end() < state.position + KEPT_BYTES as u64 / 2;
        let _ = self.state.subscribe().wait_for(has_room).await;
        self.state.send_modify(|state| {
            state.kept.extend_from_slice(bytes);
            let surplus = state.kept.len().saturating_sub(KEPT_BYTES);
            state.kept.drain(..surplus);
            state.start += surplus as u64;
        });
    }

    /// The holder lets go.
    pub(super) fn leave(&self, client: u64) {
        self.state.send_modify(|state| state.holder = state.holder.filter(|holder| *holder != client));
    }

    /// A stream for a new client.
    pub(super) fn follow(self: &Arc<Self>, world: &Arc<World>, since: Option<u64>, is_owned: bool) -> PtyStream {
        let mut client = 0;
        self.state.send_modify(|state| {
            let from = since.unwrap_or(state.end()).min(state.end());
            let holder = state.holder;
            client = state.take(from);
            if holder.is_some() && world.has(Fault::PtyTakeoverLeavesHolder) {
                state.holder = holder;
            }
        });
        let (sink, stream) = PtyStream::channel(Control::of(world, self, client));
        tokio::spawn(follow(world.clone(), self.clone(), client, is_owned, sink));
        stream
    }
}

async fn follow(world: Arc<World>, session: Arc<Session>, client: u64, is_owned: bool, sink: SessionSink<PtyEvent>) {
    sink.send(PtyEvent::Opened { session_id: session.id.clone() }).await;
    let mut state = session.state.subscribe();
    let mut position = state.borrow().position;
    let forgives = world.has(Fault::PtyTakeoverLeavesHolder);
    loop {
        let is_news = |state: &State| {
            (state.holder != Some(client) && !forgives) || state.end() > position || state.exit.is_some()
        };
        let step = tokio::select! {
            found = state.wait_for(is_news) => match found {
                Err(_) => return,
                Ok(state) if state.holder.is_none() && state.exit.is_none() => Step::Left,
                Ok(state) if state.holder.is_some_and(|holder| holder != client) && !forgives => Step::Evicted,
                Ok(state) if state.start > position => Step::Gap(state.start - position),
                Ok(state) if state.end() > position => {
                    Step::Output(Bytes::copy_from_slice(&state.kept[(position - state.start) as usize..]))
                }
                Ok(state) => state.exit.clone().map_or(Step::Left, Step::Exit),
            },
            () = sink.closed(), if !world.has(Fault::PtyOutlivesDrop) => {
                // Dropped: the end of what its maker held; for another one only the end of its turn.
                let is_holder = session.state.borrow().holder == Some(client);
                session.leave(client);
                if is_holder && is_owned {
                    session.state.send_modify(|state| state.is_dropped = true);
                }
                return;
            }
        };
        match step {
            Step::Evicted => return sink.fail(SandboxError::pty("replaced by another client")).await,
            Step::Left => return,
            Step::Gap(bytes) => {
                position += bytes;
                if !world.has(Fault::PtyGapNotTold) {
                    sink.send(PtyEvent::Gap(bytes)).await;
                }
            }
            Step::Output(bytes) => {
                position += bytes.len() as u64;
                sink.send(PtyEvent::Output(bytes)).await;
            }
            Step::Exit(exit) => {
                sink.send(PtyEvent::Exit(exit)).await;
                return;
            }
        }
        session.state.send_if_modified(|state| {
            let is_holder = state.holder == Some(client);
            state.position = if is_holder { position } else { state.position };
            is_holder
        });
    }
}

#[sandbox_core::async_trait]
impl PtyAttach for Fake {
    async fn attach_pty(&self, handle: &SandboxHandle, id: String, options: AttachOptions) -> Result<PtyStream> {
        let sandbox = self.world.find(handle)?;
        let found = sandbox.sessions.lock().unwrap().iter().find(|session| session.id == id).cloned();
        let session = found.ok_or_else(|| SandboxError::not_found("there is no such session"))?;
        let is_held = session.state.borrow().holder.is_some() && session.state.borrow().exit.is_none();
        if is_held && !options.takeover && !self.has(Fault::PtyHeldIsShared) {
            return Err(SandboxError::invalid_state("another client holds the session"));
        }
        let since = if self.has(Fault::PtyOffsetIgnored) { options.since.map(|_| 0) } else { options.since };
        Ok(session.follow(&self.world, since, false))
    }
}
