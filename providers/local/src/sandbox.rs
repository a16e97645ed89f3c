//! One open sandbox.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    path::PathBuf,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use sandbox_core::{Env, Result, SandboxError, SandboxHandle};
use sandbox_process::ProcessSet;
use tokio::{
    sync::{OnceCell, watch},
    time::Instant,
};

use crate::{
    error::{NAME, not_open},
    fate::{Busy, Fate, Gate},
    isolated::Inside,
    paths::Paths,
    record::Record,
    records::Records,
    user::Identity,
    workspace::Root,
};

/// How many command ids a sandbox remembers. Callers that retry do so within seconds, not after so many commands.
const EXEC_IDS_KEPT: usize = 8192;

/// The generation in every handle: a local sandbox is never restarted or replaced.
pub(crate) const GENERATION: u64 = 1;

/// A sandbox, from `create` to `close`.
pub(crate) struct Sandbox {
    pub(crate) record: Mutex<Record>,
    pub(crate) id: String,
    pub(crate) incarnation: String,
    pub(crate) is_owned: bool,
    pub(crate) root: Root,
    pub(crate) records: Records,
    pub(crate) paths: Paths,
    pub(crate) user: Identity,
    pub(crate) env: Env,
    /// None when there is no shell.
    pub(crate) shell: Option<PathBuf>,
    pub(crate) processes: ProcessSet,
    /// Whether it outlives the program that made it.
    pub(crate) is_lasting: bool,
    /// Of an isolated sandbox: everything runs there.
    pub(crate) inside: Option<Arc<Inside>>,
    pub(crate) gate: Gate,
    /// When it ends by itself.
    pub(crate) expiry: watch::Sender<Option<Instant>>,
    pub(crate) is_gone: OnceCell<()>,
    exec_ids: Mutex<Recent>,
}

/// What a new sandbox is made of.
pub(crate) struct Parts {
    pub(crate) record: Record,
    pub(crate) root: Root,
    pub(crate) records: Records,
    pub(crate) paths: Paths,
    pub(crate) user: Identity,
    pub(crate) env: Env,
    pub(crate) shell: Option<PathBuf>,
    pub(crate) inside: Option<Inside>,
}

/// Every open sandbox of this process, whichever provider object made it: a sweep by one of them must end the commands
/// of another one's sandbox.
static OPEN: LazyLock<Mutex<HashMap<String, Weak<Sandbox>>>> = LazyLock::new(Mutex::default);

impl Sandbox {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts { record, root, records, paths, user, env, shell, inside } = parts;
        let sandbox = Arc::new(Self {
            id: record.id.clone(),
            incarnation: record.incarnation.clone(),
            is_owned: record.is_owned,
            is_lasting: record.lasting.is_some(),
            record: Mutex::new(record),
            root,
            records,
            paths,
            user,
            env,
            shell,
            processes: ProcessSet::new(),
            inside: inside.map(Arc::new),
            gate: Gate::new(),
            expiry: watch::Sender::new(None),
            is_gone: OnceCell::new(),
            exec_ids: Mutex::default(),
        });
        open_here().insert(sandbox.id.clone(), Arc::downgrade(&sandbox));
        sandbox
    }

    /// The open sandbox of this id in this process.
    pub(crate) fn find_here(id: &str) -> Option<Arc<Self>> {
        open_here().get(id)?.upgrade()
    }

    /// Whether the handle is of this very sandbox, not of another one with its id.
    pub(crate) fn is_meant_by(&self, handle: &SandboxHandle) -> bool {
        incarnation(handle) == Some(&self.incarnation)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.gate.fate() == Fate::Open && self.inside.as_ref().is_none_or(|inside| inside.is_alive())
    }

    /// An error of work that a close may have cut short.
    pub(crate) fn explain(&self, error: SandboxError) -> SandboxError {
        if self.gate.fate() == Fate::Open { error.with_provider(NAME) } else { self.not_open() }
    }

    /// Takes part in the work.
    pub(crate) fn enter(&self) -> Result<Busy> {
        self.gate.enter(&self.id)
    }

    pub(crate) fn not_open(&self) -> SandboxError {
        not_open(&self.id, self.gate.fate())
    }

    /// Remembers the id of a command, and refuses one that was seen before. Empty ids are nobody's.
    pub(crate) fn admit_exec(&self, exec_id: &str) -> Result<()> {
        let mut ids = self.exec_ids.lock().unwrap_or_else(PoisonError::into_inner);
        if exec_id.is_empty() || ids.insert(exec_id) {
            return Ok(());
        }
        Err(SandboxError::already_exists(format!("exec {exec_id} was started already and is not run twice"))
            .with_provider(NAME))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        open_here().remove(&self.id);
    }
}

fn open_here() -> std::sync::MutexGuard<'static, HashMap<String, Weak<Sandbox>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The incarnation that a handle was made for. A local sandbox has one generation only.
pub(crate) fn incarnation(handle: &SandboxHandle) -> Option<&str> {
    handle.state.get("incarnation").filter(|_| handle.generation == GENERATION)?.as_str()
}

/// The last texts, so many as a bound allows.
#[derive(Default)]
struct Recent {
    known: HashSet<Arc<str>>,
    order: VecDeque<Arc<str>>,
}

impl Recent {
    /// False for one that is known.
    fn insert(&mut self, text: &str) -> bool {
        let text: Arc<str> = text.into();
        if !self.known.insert(text.clone()) {
            return false;
        }
        self.order.push_back(text);
        if self.order.len() > EXEC_IDS_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{EXEC_IDS_KEPT, Recent};

    #[test]
    fn the_memory_for_ids_is_bounded_and_forgets_the_oldest() {
        let mut recent = Recent::default();
        for number in 0..EXEC_IDS_KEPT + 1 {
            assert!(recent.insert(&number.to_string()));
        }
        assert_eq!(recent.known.len(), EXEC_IDS_KEPT);
        assert!(!recent.insert(&EXEC_IDS_KEPT.to_string()));
        assert!(recent.insert("0"));
    }
}
