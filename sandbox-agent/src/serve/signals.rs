//! The signals that come to this process, as something to read: who starts commands has no handler to take back then.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

use super::sys;

/// Signals that this process keeps for itself.
pub(super) struct Signals(AsyncFd<OwnedFd>);

impl Signals {
    /// From here on nothing else happens for these. Within a runtime, in a process with one thread.
    pub(super) fn take(signals: &[i32]) -> io::Result<Signals> {
        sys::watch(sys::signals(signals)?).map(Signals)
    }

    /// The next one. Several of a kind may be told as one.
    pub(super) async fn next(&self) -> io::Result<i32> {
        loop {
            let mut guard = self.0.readable().await?;
            match guard.try_io(|fd| sys::next_signal(fd.get_ref())) {
                Ok(signal) => return signal,
                Err(_would_block) => {}
            }
        }
    }
}
