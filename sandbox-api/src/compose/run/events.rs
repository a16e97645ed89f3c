//! What happens to a stack, for whoever listens.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::broadcast;

use super::state::ComposeEvent;

/// How many events a slow listener may be behind before it misses some.
const KEPT_EVENTS: usize = 256;

#[derive(Clone)]
pub(super) struct Events(broadcast::Sender<ComposeEvent>);

impl Events {
    pub(super) fn new() -> Self {
        Self(broadcast::Sender::new(KEPT_EVENTS))
    }

    pub(super) fn listen(&self) -> broadcast::Receiver<ComposeEvent> {
        self.0.subscribe()
    }

    pub(super) fn tell(&self, member: Option<(&str, u32)>, what: &'static str, exit_code: Option<i32>) {
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let (service, replica) = member.map_or((None, 0), |(service, replica)| (Some(service.to_owned()), replica));
        tracing::debug!(service, replica, what, exit_code, "compose");
        // Nobody listening is fine.
        let _ = self.0.send(ComposeEvent { at_ms, service, replica, what, exit_code });
    }
}
