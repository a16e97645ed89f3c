//! The commands that are known: every one that runs, and those that ended within a day.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use sandbox_core::ExecExit;

use super::{log::Log, outcome::Told};
use crate::execd::lock;

/// Commands that are over and still known.
const FINISHED_MAX: usize = 1024;
const FINISHED_AGE: Duration = Duration::from_secs(24 * 3600);
/// Those of them whose output is in a file: each holds a descriptor.
const FILES_MAX: usize = 128;

/// One command of this API, running or over.
pub(crate) struct Command {
    pub(super) id: String,
    pub(super) content: String,
    pub(super) is_background: bool,
    pub(super) started_ms: u64,
    pub(super) log: Log,
    end: Mutex<Option<End>>,
}

/// How a command ended.
#[derive(Clone)]
pub(super) struct End {
    pub(super) told: Told,
    /// None: that is not known.
    pub(super) exit: Option<ExecExit>,
    pub(super) finished_ms: u64,
}

impl Command {
    pub(super) fn new(id: &str, content: &str, is_background: bool, started_ms: u64) -> Arc<Self> {
        Arc::new(Self {
            id: id.to_owned(),
            content: content.to_owned(),
            is_background,
            started_ms,
            log: Log::default(),
            end: Mutex::default(),
        })
    }

    pub(super) fn end(&self) -> Option<End> {
        lock(&self.end).clone()
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Commands(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_id: HashMap<String, Arc<Command>>,
    /// The oldest first.
    finished: VecDeque<(Instant, Arc<Command>)>,
}

impl Commands {
    pub(super) fn add(&self, command: &Arc<Command>) {
        lock(&self.0).by_id.insert(command.id.clone(), command.clone());
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Command>> {
        lock(&self.0).by_id.get(id).cloned()
    }

    /// Says how one ended.
    pub(super) fn finish(&self, command: &Arc<Command>, end: End) {
        *lock(&command.end) = Some(end);
        let mut known = lock(&self.0);
        known.finished.push_back((Instant::now(), command.clone()));
        while known.finished.len() > FINISHED_MAX
            || known.finished.front().is_some_and(|(at, _)| at.elapsed() > FINISHED_AGE)
        {
            let Some((_, old)) = known.finished.pop_front() else { break };
            known.by_id.remove(&old.id);
        }
        let files: Vec<_> = known.finished.iter().filter(|(_, command)| command.log.has_file()).collect();
        for (_, old) in files.iter().take(files.len().saturating_sub(FILES_MAX)) {
            old.log.forget();
        }
    }
}
