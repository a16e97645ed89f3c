//! All processes of one sandbox.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use crate::command::Command;
use crate::control::Shared;
use crate::error::StartError;
use crate::fork::Nursery;
use crate::limits::Limits;
use crate::process::Process;
use crate::restrictions::Restrictions;
use crate::spawn::{self, Channels};
use crate::tree::Walker;

/// The process trees of one sandbox: what runs, and what commands left in the background.
///
/// Dropping the set ends every tree at once and never blocks; [`ProcessSet::kill_all`] also waits until nothing is
/// left. If the host dies in any way, the supervisors end their trees themselves.
///
/// The first command forks a small process of the set's own, which makes the supervisors and ends with the set.
#[derive(Debug, Default)]
pub struct ProcessSet {
    registry: Arc<Registry>,
}

impl ProcessSet {
    /// An empty set.
    #[must_use]
    pub fn new() -> ProcessSet {
        ProcessSet::default()
    }

    /// An empty set whose commands are all deprived of this.
    #[must_use]
    pub fn restricted(restrictions: Restrictions) -> ProcessSet {
        ProcessSet { registry: Arc::new(Registry { restrictions, ..Registry::default() }) }
    }

    /// Starts a command and returns when it executes. Dropping the future ends what was started.
    ///
    /// # Errors
    /// [`StartErrorKind`](crate::StartErrorKind) says exactly why; nothing of the command is left then.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn spawn(&self, command: Command, limits: Limits) -> Result<Process, StartError> {
        spawn::spawn(&self.registry, command, limits).await
    }

    /// Makes the process that starts commands, so that the first one does not wait for it. Without this the first command
    /// makes it. From then on, what a command needs is made ahead of it, for as long as the runtime is the same.
    ///
    /// # Errors
    /// [`Resource`](crate::StartErrorKind::Resource) mostly; the first command tries again.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn prepare(&self) -> Result<(), StartError> {
        self.registry.prepare().map_err(|error| spawn::refused(&error))?;
        self.registry.begin_ahead();
        Ok(())
    }

    /// As [`prepare`](Self::prepare), for a host that is PID 1, small, and likely to get one command only: what starts that
    /// one is made, and what starts others when that one has run for a moment. The host may deprive itself of something
    /// after this: the first is deprived of this instead of what the set says, and what will take its place is forked from
    /// the host as it is then.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn prepare_one(&self, restrictions: &Restrictions) -> Result<(), StartError> {
        let registry = Arc::downgrade(&self.registry);
        let lost = move || {
            if let Some(registry) = registry.upgrade() {
                // A runtime that ends takes no more work, and the whole sandbox ends with it.
                drop(tokio::task::spawn_blocking(move || registry.hunt()));
            }
        };
        let nursery = Nursery::sole(restrictions, lost).map_err(|error| spawn::refused(&error))?;
        self.registry.nurseries().put(nursery);
        self.registry.begin_ahead();
        Ok(())
    }

    /// Lets the process that starts commands end, if none is there: for a host that is idle. The next command makes it
    /// again.
    pub fn rest(&self) {
        let mut nurseries = self.registry.nurseries();
        if self.is_empty() {
            // A command that is being started keeps it until it runs.
            nurseries.current = None;
            drop(self.registry.ahead());
        }
    }

    /// Trees that are not confirmed empty.
    #[must_use]
    pub fn len(&self) -> usize {
        *self.registry.count.borrow()
    }

    /// True when nothing of any command is left, background children included.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends every tree, without grace, and waits until all are confirmed empty, at most this long. Also ends what
    /// is started meanwhile. Returns how many trees are not confirmed empty (they are still being ended).
    pub async fn kill_all(&self, deadline: Duration) -> usize {
        let mut count = self.registry.count.subscribe();
        let all_gone = async {
            loop {
                self.registry.kill_all();
                if *count.borrow_and_update() == 0 || count.changed().await.is_err() {
                    return;
                }
            }
        };
        // The result is the count itself, whether or not the time was enough.
        let _ = tokio::time::timeout(deadline, all_gone).await;
        self.len()
    }
}

impl Drop for ProcessSet {
    fn drop(&mut self) {
        self.registry.kill_all();
        self.registry.nurseries().current = None;
    }
}

/// What starts others is made so long after the first command began: many a sandbox has no other, and is gone by then.
const OTHERS_AFTER: Duration = Duration::from_millis(100);
/// Pause between two rounds of hunting orphans.
const HUNT_PAUSE: Duration = Duration::from_millis(5);

/// Who belongs to a set.
#[derive(Default)]
pub(crate) struct Registry {
    entries: Mutex<Entries>,
    count: watch::Sender<usize>,
    nurseries: Mutex<Nurseries>,
    restrictions: Restrictions,
    ahead: Mutex<Ahead>,
}

#[derive(Default)]
struct Nurseries {
    current: Option<Arc<Nursery>>,
    /// Who may still have a tree.
    made: Vec<Weak<Nursery>>,
}

impl Nurseries {
    fn put(&mut self, nursery: Nursery) -> Arc<Nursery> {
        let nursery = Arc::new(nursery);
        self.made.retain(|made| made.strong_count() > 0);
        self.made.push(Arc::downgrade(&nursery));
        self.current = Some(nursery.clone());
        nursery
    }
}

/// Of the next command.
#[derive(Default)]
struct Ahead {
    /// Where it was asked for. Nothing else tells that two calls are of one runtime, as what is made has to be.
    is_wanted: bool,
    made: Option<Channels>,
}

#[derive(Default)]
struct Entries {
    next: u64,
    processes: HashMap<u64, Arc<Shared>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("count", &*self.count.borrow()).finish_non_exhaustive()
    }
}

impl Registry {
    pub(crate) fn add(self: &Arc<Registry>, shared: Arc<Shared>) -> Registration {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let key = entries.next;
        entries.next += 1;
        entries.processes.insert(key, shared.clone());
        self.count.send_replace(entries.processes.len());
        Registration { registry: self.clone(), key, shared }
    }

    /// The nursery of this set, started at the first use. `gone`: one that was found dead.
    pub(crate) fn nursery(&self, gone: Option<&Arc<Nursery>>) -> io::Result<Arc<Nursery>> {
        let mut nurseries = self.nurseries();
        if let Some(nursery) = nurseries.current.clone()
            && gone.is_none_or(|gone| !Arc::ptr_eq(gone, &nursery))
        {
            if nursery.is_sole() {
                nurseries.current = None;
            }
            return Ok(nursery);
        }
        Ok(nurseries.put(Nursery::start(&self.restrictions)?))
    }

    /// Makes a nursery unless there is one.
    fn prepare(&self) -> io::Result<()> {
        let mut nurseries = self.nurseries();
        if nurseries.current.is_none() {
            nurseries.put(Nursery::start(&self.restrictions)?);
        }
        Ok(())
    }

    fn nurseries(&self) -> MutexGuard<'_, Nurseries> {
        self.nurseries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes in a moment what the second command needs.
    pub(crate) fn prepare_soon(self: &Arc<Registry>) {
        let registry = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(OTHERS_AFTER).await;
            if let Some(registry) = registry.upgrade() {
                // What fails is tried again, and told, by the command.
                let _ = registry.prepare();
                registry.make_ahead();
            }
        });
    }

    /// Ends whatever is a child of this process and no nursery: of a supervisor that has died. Blocks.
    fn hunt(&self) {
        let Some(mut walker) = Walker::new() else { return };
        loop {
            // Held: nobody is forked meanwhile.
            let nurseries = self.nurseries();
            let spared: Vec<i32> = nurseries.made.iter().filter_map(Weak::upgrade).map(|made| made.pid()).collect();
            let found = walker.kill_descendants(|pid| spared.contains(&pid));
            drop(nurseries);
            if found == 0 {
                return walker.unmap();
            }
            std::thread::sleep(HUNT_PAUSE);
        }
    }

    fn begin_ahead(&self) {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner).is_wanted = true;
        self.make_ahead();
    }

    /// Makes what the next command needs, where that is wanted.
    pub(crate) fn make_ahead(&self) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead.is_wanted && ahead.made.is_none() {
            // What fails is tried again, and told, by the command.
            ahead.made = Channels::ahead().ok();
        }
    }

    /// What was made ahead of this command.
    pub(crate) fn ahead(&self) -> Option<Channels> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner).made.take()
    }

    fn kill_all(&self) {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for shared in entries.processes.values() {
            shared.request_kill_now();
        }
    }
}

/// A process's place in its set. Dropped when its tree is gone, or with the runtime: then the tree is ended.
pub(crate) struct Registration {
    registry: Arc<Registry>,
    key: u64,
    shared: Arc<Shared>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.kill_now();
        self.shared.set_gone();
        let mut entries = self.registry.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.processes.remove(&self.key);
        self.registry.count.send_replace(entries.processes.len());
    }
}
