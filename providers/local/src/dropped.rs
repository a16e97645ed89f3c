//! What happens to sandboxes when their provider is dropped without closing them.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use sandbox_core::{Result, tracing};

use crate::{fate::Fate, isolated::Inside, provider::LocalProvider, records::Records, workspace::Root};

/// How long dropping a provider waits for the folders of sandboxes that were not closed. What is left is swept.
const DROP_WITHIN: Duration = Duration::from_millis(500);

/// A folder may still be written to while its processes die, so removing it is tried more than once.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// What an abandoned sandbox leaves on the disk.
struct Remains {
    id: String,
    is_owned: bool,
    root: Root,
    records: Records,
    /// Of an isolated sandbox.
    inside: Option<Arc<Inside>>,
}

impl Remains {
    fn remove(&self) -> Result<()> {
        if let Some(inside) = &self.inside {
            inside.running.end()?;
        }
        if self.is_owned {
            self.root.remove_workspace(&self.id)?;
        }
        self.records.remove(&self.id)
    }

    fn remove_in_the_end(&self) {
        for _ in 1..TRIES {
            if self.remove().is_ok() {
                return;
            }
            thread::sleep(BETWEEN_TRIES);
        }
        if let Err(error) = self.remove() {
            tracing::warn!(sandbox_id = self.id, kind = %error.kind(), "an abandoned sandbox could not be removed");
        }
    }
}

impl Drop for LocalProvider {
    fn drop(&mut self) {
        self.shared.standby.end();
        let mut sandboxes: Vec<_> = std::mem::take(&mut *self.shared.sandboxes()).into_values().collect();
        // What outlives this process outlives this object.
        sandboxes.retain(|sandbox| !sandbox.is_gone.initialized() && !sandbox.is_lasting);
        if sandboxes.is_empty() {
            return;
        }
        let mut remains = Vec::new();
        for sandbox in sandboxes {
            sandbox.gate.end(Fate::Closed);
            remains.push(Remains {
                id: sandbox.id.clone(),
                is_owned: sandbox.is_owned,
                root: sandbox.root.clone(),
                records: sandbox.records.clone(),
                inside: sandbox.inside.clone(),
            });
            if let Some(inside) = &sandbox.inside {
                inside.running.kill();
            }
            // The last handle of its processes: they are killed here, without waiting.
            drop(sandbox);
        }
        // A thread, not a task: the runtime may be gone, and removing blocks.
        let (done, is_done) = mpsc::channel();
        let cleaner = thread::Builder::new().name("sandbox-local-drop".to_owned()).spawn(move || {
            remains.iter().for_each(Remains::remove_in_the_end);
            // Nobody may wait any more.
            let _ = done.send(());
        });
        if cleaner.is_ok() {
            let _ = is_done.recv_timeout(DROP_WITHIN);
        }
    }
}
