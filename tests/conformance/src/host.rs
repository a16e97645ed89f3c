//! The suite's own side: waiting, its identity as the maker of sandboxes, programs of this host.

use std::{
    future::Future,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sandbox_core::{Owner, SandboxIdentity};

use crate::check::{Check, Stop};

/// Asks again and again until the answer is yes or the time is over.
pub(crate) async fn eventually<F>(limit: Duration, mut is_true: impl FnMut() -> F) -> bool
where
    F: Future<Output = bool>,
{
    const BETWEEN: Duration = Duration::from_millis(20);
    let end = Instant::now() + limit;
    loop {
        if is_true().await {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        tokio::time::sleep(BETWEEN).await;
    }
}

/// Puts a deadline on a future.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> Check<T> {
    tokio::time::timeout(limit, future)
        .await
        .map_err(|_| Stop::failed(format!("{what} did not end within {:.1} s", limit.as_secs_f64())))
}

/// What a host writes into the spec of each sandbox that it makes.
pub(crate) fn identity(run_id: &str, owner: Owner) -> SandboxIdentity {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    SandboxIdentity {
        run_id: run_id.to_owned(),
        owner,
        created_at_ms: now.as_millis() as u64,
        expires_at_ms: None,
        attribution: Default::default(),
    }
}

/// This process as an owner.
pub(crate) fn this_process() -> Owner {
    owner_of(std::process::id())
}

/// A process of this host as an owner.
pub(crate) fn owner_of(pid: u32) -> Owner {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    Owner::Process { host, pid, start_time: start_time(pid).unwrap_or_default() }
}

/// Field 22 of `/proc/<pid>/stat`.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; after it the third field follows.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// An owner that is certainly gone: a child of ours that has ended and was waited for.
pub(crate) fn dead_owner() -> Check<Owner> {
    let mut child = std::process::Command::new("sleep").arg("5").spawn()?;
    let owner = owner_of(child.id());
    child.kill()?;
    child.wait()?;
    Ok(owner)
}

/// Names of the variables of this process.
pub(crate) fn own_variables() -> Vec<String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
}
