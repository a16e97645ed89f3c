//! Which launches were begun: a word that the host shares with its nursery and the supervisors.
//!
//! A launch is sent as one message. If everyone who could have read it dies first (a killed nursery takes its spare with
//! it, but not at the same moment), the kernel takes it and the host sees its control socket closed. So that the host
//! can tell that from a supervisor that died at work, a supervisor notes a launch here before it does anything: what is
//! not noted was not begun, and may be sent to another nursery.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The highest id that was begun, in memory that forks share.
pub(crate) struct Accepted(NonNull<AtomicU64>);

// SAFETY: the pointer is to a mapping that only this value owns, and what is there is atomic.
unsafe impl Send for Accepted {}
// SAFETY: as above.
unsafe impl Sync for Accepted {}

impl Accepted {
    pub(crate) fn new() -> io::Result<Accepted> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let bytes = size_of::<AtomicU64>();
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses touches no existing memory.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast()).map(Accepted).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the mapping is page-aligned, zeroed, large enough and lives as long as this value.
        unsafe { self.0.as_ref() }
    }

    /// Notes that this launch begins. Ids are above zero.
    pub(crate) fn note(&self, id: u64) {
        self.word().fetch_max(id, Ordering::SeqCst);
    }

    /// False only if this launch was not begun. One that was not, below one that was, cannot be told from it.
    pub(crate) fn may_include(&self, id: u64) -> bool {
        self.word().load(Ordering::SeqCst) >= id
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, of the same size, to which nothing refers any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<AtomicU64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::Accepted;

    #[test]
    fn what_is_not_noted_was_not_begun() {
        let accepted = Accepted::new().expect("a page can be had");
        assert!(!accepted.may_include(1));
        accepted.note(2);
        accepted.note(1);
        assert!(accepted.may_include(1) && accepted.may_include(2) && !accepted.may_include(3));
    }
}
