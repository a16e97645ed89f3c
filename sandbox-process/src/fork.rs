//! The host's side of the nursery: makes it, sends launches, reaps it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::Interest;

use crate::accepted::Accepted;
use crate::launch::DESCRIPTORS_MAX;
use crate::nursery;
use crate::raw::{self, Errno};
use crate::restrictions::Restrictions;
use crate::sys::{self, Reaped};

/// Two words in front of every message: an id, and the bytes of the launch (0: kill that supervisor).
pub(crate) const MESSAGE_HEADER_BYTES: usize = 16;
/// A launch up to this size travels in the message, a larger one in a memory file.
pub(crate) const MESSAGE_INLINE_MAX: usize = 32 * 1024;
/// The control socket, the memory file and the command's descriptors.
pub(crate) const MESSAGE_FDS_MAX: usize = DESCRIPTORS_MAX + 2;
/// Pause before a launch is sent again to a nursery whose queue is full.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(1);

/// Nurseries that were still ending when nobody could wait for them any more (the runtime was shut down).
static LEFT: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// A launch, ready to be sent.
pub(crate) struct Order<'a> {
    /// The encoded launch, followed by the target of each descriptor (4 bytes each).
    pub(crate) block: Vec<u8>,
    pub(crate) control: BorrowedFd<'a>,
    /// Ascending by target.
    pub(crate) descriptors: Vec<RawFd>,
}

/// A running nursery, or the one supervisor that takes its place. Dropping it lets the process end when its last
/// supervisor has ended.
pub(crate) struct Nursery {
    pid: i32,
    socket: OwnedFd,
    next: AtomicU64,
    accepted: Accepted,
    /// Of the supervisor of one launch.
    sole: Option<OwnedFd>,
}

impl Nursery {
    /// Forks a nursery and leaves a task that reaps it.
    pub(crate) fn start(restrictions: &Restrictions) -> io::Result<Nursery> {
        let (nursery, process) = Nursery::fork(nursery::run, restrictions)?;
        tokio::spawn(process.reap());
        Ok(nursery)
    }

    /// Forks a process that is to take one launch: a nursery that many can have is more to make and to end. For a host
    /// that is small, and to whom orphans come: when it has died at its work, `lost` is called.
    pub(crate) fn sole(restrictions: &Restrictions, lost: impl FnOnce() + Send + 'static) -> io::Result<Nursery> {
        let (mut nursery, process) = Nursery::fork(nursery::run_sole, restrictions)?;
        nursery.sole = process.pidfd.as_ref().map(OwnedFd::try_clone).transpose()?;
        tokio::spawn(async move {
            if process.reap().await != Some(Reaped::Exited) {
                lost();
            }
        });
        Ok(nursery)
    }

    fn fork(run: Run, restrictions: &Restrictions) -> io::Result<(Nursery, NurseryProcess)> {
        let (socket, theirs) = sys::socket_pair()?;
        let accepted = Accepted::new()?;
        let (pid, process) = fork(run, theirs.as_raw_fd(), restrictions, &accepted)?;
        Ok((Nursery { pid, socket, next: AtomicU64::new(1), accepted, sole: None }, process))
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it takes one launch only.
    pub(crate) fn is_sole(&self) -> bool {
        self.sole.is_some()
    }

    /// Whether the launch with this id, whose control socket was closed without a word, may have started something.
    pub(crate) fn may_have_started(&self, id: u64) -> bool {
        self.accepted.may_include(id)
    }

    /// Sends a launch and returns its id. Everything else is said on its control socket.
    ///
    /// # Errors
    /// EPIPE when the nursery is gone; nothing was started then. One that dies now may still take the message and do
    /// nothing about it: [`Nursery::may_have_started`].
    pub(crate) async fn send(&self, order: &Order<'_>) -> io::Result<u64> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut message = [id.to_ne_bytes(), (order.block.len() as u64).to_ne_bytes()].concat();
        let mut fds = vec![order.control.as_raw_fd()];
        let file = if order.block.len() <= MESSAGE_INLINE_MAX {
            message.extend_from_slice(&order.block);
            None
        } else {
            let file = sys::memory_file(c"launch", &order.block)?;
            fds.push(file.as_raw_fd());
            Some(file)
        };
        fds.extend_from_slice(&order.descriptors);
        loop {
            match sys::send_with_fds(self.socket.as_fd(), &message, &fds) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(QUEUE_FULL_PAUSE).await,
                Err(error) => return Err(error),
            }
        }
        drop(file);
        Ok(id)
    }

    /// Kills a supervisor that cannot listen. Its orphans are ended by the nursery, or by the host.
    pub(crate) fn kill(&self, id: u64) {
        if let Some(pidfd) = &self.sole {
            return sys::kill(pidfd.as_fd());
        }
        let message = [id.to_ne_bytes(), 0u64.to_ne_bytes()].concat();
        if let Err(Errno(errno)) = raw::send(self.socket.as_raw_fd(), &message) {
            tracing::debug!(errno, "nursery not reached");
        }
    }
}

/// What runs in the forked process.
type Run = fn(RawFd, &Restrictions, &Accepted) -> !;

/// The nursery's process. Reaped on drop if it has ended, else by a later [`fork`].
struct NurseryProcess {
    pidfd: Option<OwnedFd>,
}

impl NurseryProcess {
    /// Waits for its end. None when that cannot be told.
    async fn reap(mut self) -> Option<Reaped> {
        let pidfd = self.pidfd.as_ref()?.try_clone().ok()?;
        if let Ok(pidfd) = sys::watch(pidfd, Interest::READABLE) {
            // An error means that the runtime is shutting down; the drop decides then.
            let _ = pidfd.readable().await.map(|mut ready| ready.retain_ready());
        }
        self.try_reap()
    }

    fn try_reap(&mut self) -> Option<Reaped> {
        let reaped = sys::try_reap(self.pidfd.as_ref()?.as_fd());
        if reaped.is_some() {
            self.pidfd = None;
        }
        reaped
    }
}

impl Drop for NurseryProcess {
    fn drop(&mut self) {
        if self.try_reap().is_none()
            && let Some(pidfd) = self.pidfd.take()
        {
            LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(pidfd);
        }
    }
}

/// Forks a nursery.
///
/// `clone` instead of `fork`: no handlers run and no lock of the C library is taken, the pidfd cannot name another
/// process, and with no exit signal the host's own SIGCHLD handling (a loop that reaps everything, or "ignore")
/// neither sees nor steals the process.
fn fork(run: Run, host: RawFd, restrictions: &Restrictions, accepted: &Accepted) -> io::Result<(i32, NurseryProcess)> {
    if let Ok(mut left) = LEFT.try_lock() {
        left.retain(|pidfd| sys::try_reap(pidfd.as_fd()).is_none());
    }
    let mut pidfd: libc::c_int = -1;
    let flags = libc::CLONE_PIDFD as libc::c_ulong;
    let no_stack = std::ptr::null_mut::<libc::c_void>();
    let nothing = std::ptr::null_mut::<libc::c_void>();
    let mask = raw::block_signals();
    // SAFETY: without CLONE_VM this is a fork: the child gets a copy of the memory and of this thread alone. It
    // only runs a function of `nursery`, which neither allocates, locks, unwinds nor returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, no_stack, &raw mut pidfd, nothing, nothing) };
    if pid == 0 {
        run(host, restrictions, accepted);
    }
    let error = io::Error::last_os_error();
    raw::set_signal_mask(&mask);
    if pid < 0 {
        return Err(error);
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok((pid as i32, NurseryProcess { pidfd: Some(unsafe { OwnedFd::from_raw_fd(pidfd) }) }))
}
