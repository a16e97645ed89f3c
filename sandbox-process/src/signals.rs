//! Signal masks and actions, as system calls that are allowed between `fork` and `exec` (see [`raw`](crate::raw)).

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::raw::{Errno, check};

fn signal_set(fill: bool, only: Option<c_int>) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    if fill {
        // SAFETY: the pointer is valid for one signal set.
        unsafe { libc::sigfillset(set.as_mut_ptr()) };
    } else {
        // SAFETY: the pointer is valid for one signal set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    }
    if let Some(signal) = only {
        // SAFETY: the pointer is valid for one signal set.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: all-zero is a valid signal set, and it was initialised above.
    unsafe { set.assume_init() }
}

/// Replaces this thread's signal mask by "all" and returns the former one.
pub(crate) fn block_signals() -> libc::sigset_t {
    let all = signal_set(true, None);
    let mut old = signal_set(false, None);
    // SAFETY: both pointers are valid signal sets.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old) };
    old
}

/// Sets this thread's signal mask.
pub(crate) fn set_signal_mask(mask: &libc::sigset_t) {
    // SAFETY: the pointer is a valid signal set and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// Lets every signal through.
pub(crate) fn unblock_signals() {
    set_signal_mask(&signal_set(false, None));
}

/// A descriptor that becomes readable when a child changes state. SIGCHLD must be blocked.
pub(crate) fn child_signal_fd() -> Result<RawFd, Errno> {
    let set = signal_set(false, Some(libc::SIGCHLD));
    // SAFETY: the set is valid; -1 asks for a new descriptor.
    check(unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })
}

/// Signals whose action may be another one than the default, bit n - 1 for signal n.
static UNSETTLED: AtomicU64 = AtomicU64::new(u64::MAX);

/// For a program that changes the actions of no signals but `own` from here on: gives all others their default action now.
/// What starts commands, in this process and those that it forks, resets only these then, not all 64.
pub fn settle_signals(own: &[i32]) {
    let own = own.iter().filter(|signal| (1..=64).contains(*signal)).fold(0, |set, signal| set | 1u64 << (signal - 1));
    reset(!own);
    UNSETTLED.store(own, Ordering::Relaxed);
}

/// Gives every signal its default action, also the two that the C library keeps for itself: a host may have
/// inherited them as ignored.
pub(crate) fn reset_signal_actions() {
    reset(UNSETTLED.load(Ordering::Relaxed));
}

fn reset(set: u64) {
    // All-zero is the default action in every architecture's layout of the kernel's structure.
    let action = [0u64; 8];
    let mut signal: c_int = 1;
    while signal <= 64 {
        if set & 1 << (signal - 1) != 0 {
            // SAFETY: the kernel reads its structure (at most 64 bytes) and an 8-byte mask size, and refuses the
            // signals that cannot be changed.
            unsafe {
                libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), std::ptr::null_mut::<u64>(), 8usize)
            };
        }
        signal += 1;
    }
}
