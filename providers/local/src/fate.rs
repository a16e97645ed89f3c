//! Whether a sandbox is open, and who still works on it.

use sandbox_core::Result;
use tokio::sync::watch;

use crate::error::not_open;

/// What has become of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Open,
    /// Closed by a caller, or being closed.
    Closed,
    /// Its time to live has passed.
    Expired,
}

/// The fate of one sandbox and the work under way in it.
#[derive(Debug)]
pub(crate) struct Gate {
    fate: watch::Sender<Fate>,
    /// Starts and file operations that must be over before the folder may go.
    busy: watch::Sender<usize>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { fate: watch::Sender::new(Fate::Open), busy: watch::Sender::new(0) }
    }

    pub(crate) fn fate(&self) -> Fate {
        *self.fate.borrow()
    }

    /// Ends it. The first reason stays.
    pub(crate) fn end(&self, fate: Fate) {
        self.fate.send_if_modified(|now| {
            let is_open = *now == Fate::Open;
            if is_open {
                *now = fate;
            }
            is_open
        });
    }

    /// For those who want to know when it ends.
    pub(crate) fn watch(&self) -> watch::Receiver<Fate> {
        self.fate.subscribe()
    }

    pub(crate) fn watch_busy(&self) -> watch::Receiver<usize> {
        self.busy.subscribe()
    }

    /// Takes part in the work, unless the sandbox has ended. Counted first and checked then, so that whoever ends the
    /// sandbox either is seen here or sees this.
    pub(crate) fn enter(&self, id: &str) -> Result<Busy> {
        self.busy.send_modify(|count| *count += 1);
        let busy = Busy(self.busy.clone());
        match self.fate() {
            Fate::Open => Ok(busy),
            fate => Err(not_open(id, fate)),
        }
    }
}

/// Work under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Busy(watch::Sender<usize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::{Fate, Gate};

    #[test]
    fn nobody_enters_after_the_end_and_the_first_reason_stays() {
        let gate = Gate::new();
        let busy = gate.enter("x").unwrap();
        gate.end(Fate::Expired);
        gate.end(Fate::Closed);
        assert_eq!(gate.fate(), Fate::Expired);
        assert!(gate.enter("x").unwrap_err().to_string().contains("expired"));
        assert_eq!(*gate.watch_busy().borrow(), 1);
        drop(busy);
        assert_eq!(*gate.watch_busy().borrow(), 0);
    }
}
