//! Waiting for something that happens elsewhere: under a deadline, and no longer than it takes.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// Long enough for the slowest machine; reached only by a failure.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Looks until it holds. False when it does not within the limit.
pub async fn eventually(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    true
}

/// How often a word stands in a journal that a fixture writes.
pub fn count(journal: &Path, word: &str) -> usize {
    fs::read_to_string(journal).unwrap_or_default().lines().filter(|line| *line == word).count()
}
