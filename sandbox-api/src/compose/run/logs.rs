//! What a service writes: kept within a bound, and streamed.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sandbox_core::bytes::Bytes;
use tokio::{sync::watch, time::timeout};

/// How much of the output of one sandbox is kept.
const KEPT_BYTES: usize = 1 << 20;

/// A piece of output.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogChunk {
    /// True for standard error.
    pub is_stderr: bool,
    /// The bytes.
    pub bytes: Bytes,
}

impl std::fmt::Debug for LogChunk {
    // Output is shown nowhere.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogChunk").field("is_stderr", &self.is_stderr).field("bytes", &self.bytes.len()).finish()
    }
}

#[derive(Default)]
struct Kept {
    chunks: VecDeque<LogChunk>,
    bytes: usize,
    /// How much there has been, kept or not.
    total: u64,
    /// The number of the first chunk that is kept.
    first: u64,
}

struct Shared {
    kept: Mutex<Kept>,
    /// How many chunks there have been, and whether more may come.
    state: watch::Sender<(u64, bool)>,
}

/// The output of one sandbox of a stack.
#[derive(Clone)]
pub struct ServiceLogs(Arc<Shared>);

impl ServiceLogs {
    pub(super) fn new() -> Self {
        Self(Arc::new(Shared { kept: Mutex::default(), state: watch::Sender::new((0, true)) }))
    }

    pub(super) fn push(&self, is_stderr: bool, bytes: Bytes) {
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += bytes.len();
        kept.total += bytes.len() as u64;
        kept.chunks.push_back(LogChunk { is_stderr, bytes });
        while kept.bytes > KEPT_BYTES && kept.chunks.len() > 1 {
            if let Some(old) = kept.chunks.pop_front() {
                kept.bytes -= old.bytes.len();
                kept.first += 1;
            }
        }
        drop(kept);
        self.0.state.send_modify(|(count, _)| *count += 1);
    }

    pub(super) fn end(&self) {
        self.0.state.send_modify(|(_, is_open)| *is_open = false);
    }

    /// Waits until so much has come, or nothing does for `quiet`.
    pub(super) async fn reach(&self, bytes: u64, quiet: Duration) {
        let mut state = self.0.state.subscribe();
        loop {
            let is_open = state.borrow_and_update().1;
            let total = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner).total;
            if total >= bytes || !is_open || !matches!(timeout(quiet, state.changed()).await, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// What is kept: the last MiB or so.
    pub fn snapshot(&self) -> Vec<LogChunk> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner).chunks.iter().cloned().collect()
    }

    /// The last bytes as text, without blanks around them.
    pub fn tail(&self, most: usize) -> String {
        let all: Vec<u8> = self.snapshot().iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
        String::from_utf8_lossy(&all[all.len().saturating_sub(most)..]).trim().to_owned()
    }

    /// What is kept, and then what comes, until the sandbox has ended. A reader that is slower than the service by
    /// more than what is kept misses what is dropped.
    pub fn follow(&self) -> LogFollower {
        LogFollower { logs: self.clone(), next: 0, state: self.0.state.subscribe() }
    }
}

impl std::fmt::Debug for ServiceLogs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceLogs").field("chunks", &self.0.state.borrow().0).finish_non_exhaustive()
    }
}

/// Reads the output of a service as it comes.
#[derive(Debug)]
pub struct LogFollower {
    logs: ServiceLogs,
    next: u64,
    state: watch::Receiver<(u64, bool)>,
}

impl LogFollower {
    /// The next piece; none when the service has ended and everything was read. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<LogChunk> {
        loop {
            let (count, is_open) = *self.state.borrow_and_update();
            if self.next < count {
                let kept = self.logs.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
                self.next = self.next.max(kept.first);
                let chunk = kept.chunks.get((self.next - kept.first) as usize).cloned();
                if let Some(chunk) = chunk {
                    self.next += 1;
                    return Some(chunk);
                }
            }
            if !is_open || self.state.changed().await.is_err() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::bytes::Bytes;

    use super::{KEPT_BYTES, ServiceLogs};

    #[tokio::test]
    async fn what_is_kept_is_bounded_and_a_follower_reads_to_the_end() {
        let logs = ServiceLogs::new();
        let mut follower = logs.follow();
        logs.push(false, Bytes::from_static(b"one"));
        assert_eq!(follower.next().await.unwrap().bytes, "one");
        for _ in 0..40 {
            logs.push(true, Bytes::from(vec![b'x'; KEPT_BYTES / 16]));
        }
        logs.push(false, Bytes::from_static(b"last"));
        logs.end();
        let kept: usize = logs.snapshot().iter().map(|chunk| chunk.bytes.len()).sum();
        assert!(kept <= KEPT_BYTES, "{kept}");
        let mut last = None;
        while let Some(chunk) = follower.next().await {
            last = Some(chunk);
        }
        assert_eq!(last.unwrap().bytes, "last");
        assert_eq!(logs.tail(4), "last");
    }
}
