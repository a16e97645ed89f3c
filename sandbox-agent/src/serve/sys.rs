//! The system calls of the serving half for which there is no safe form.

use std::ffi::{CString, OsString};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use rustix::io::Errno;
use tokio::io::{Interest, unix::AsyncFd};

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Takes an inherited descriptor over: a close-on-exec copy above 2; the original is closed, or `/dev/null` if it is
/// one of the standard three.
pub(super) fn take_inherited(fd: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: F_DUPFD_CLOEXEC takes a number, no pointer.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(errno());
    }
    if fd > 2 {
        // SAFETY: the caller was told this number from outside, so nothing in this process owns it.
        unsafe { libc::close(fd) };
    }
    // SAFETY: the call above has just opened it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Lets a standard descriptor be `/dev/null`, so that nothing keeps what it was open.
pub(super) fn close_standard(fd: RawFd) {
    // SAFETY: the path is NUL-terminated; the flags need no mode.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if null < 0 {
        return;
    }
    // SAFETY: replaces a standard descriptor, which the library only uses by its number.
    unsafe { libc::dup2(null, fd) };
    if null != fd {
        // SAFETY: opened above, and nobody else knows it.
        unsafe { libc::close(null) };
    }
}

/// Marks every descriptor from 3 on as closed by exec.
pub(super) fn close_on_exec() {
    let (first, last, flags) = (3 as libc::c_uint, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: with this flag nothing is closed now. A kernel without it: commands close everything themselves too.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
}

/// Reads a variable and removes it, also from the block that `/proc` shows. Call it while there is one thread.
pub(super) fn take_variable(name: &str) -> Option<OsString> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is NUL-terminated, and no other thread changes the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv gave a NUL-terminated string that stays until the environment is changed.
    let bytes = unsafe { std::ffi::CStr::from_ptr(value) }.to_bytes().to_vec();
    // SAFETY: these bytes are the string's own, in the writable block of the environment.
    unsafe { std::ptr::write_bytes(value, b'-', bytes.len()) };
    // SAFETY: the name is NUL-terminated, and no other thread uses the environment.
    unsafe { libc::unsetenv(name.as_ptr()) };
    Some(OsString::from_vec(bytes))
}

/// Keeps the allocator at one arena, and gives large blocks back at once: what is idle is small then.
pub(super) fn save_memory() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 64 * 1024), (libc::M_TRIM_THRESHOLD, 128 * 1024)]
    {
        // SAFETY: mallopt takes plain numbers.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives back what an idle process does not need: free memory, and mapped code.
pub(super) fn release_memory() {
    release_unused();
    forget_code();
}

/// Gives back what nothing is in: free memory, and what of the main thread's stack was used before and is not now.
pub(crate) fn release_unused() {
    trim_memory();
    forget_stack();
}

/// Called on the main thread.
fn forget_stack() {
    /// Larger than what any call from here on, or a signal's handler, may take. Nothing else is mapped so close below a
    /// stack as the rest: the kernel keeps a mebibyte free.
    const IN_USE: usize = 8 * 1024;
    const PAGE: usize = 4096;
    let here = 0u8;
    let end = (&raw const here as usize - IN_USE) & !(PAGE - 1);
    let start = end - 256 * 1024;
    // SAFETY: below the stack pointer nothing is alive; what is dropped reads as zero when the stack gets there again.
    // Where the stack ends before, the call fails behind it and has done its work.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
}

/// Gives back memory that is free.
pub(super) fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a plain number.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Unmaps the pages of this program's file that were needed once: the kernel maps a file around each page that is
/// touched, and they come back from its cache when they are used.
fn forget_code() {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    for (start, end) in forgettable(&smaps, forget_code as fn() as usize) {
        // SAFETY: a whole private file mapping without changed pages that is never writable; what is dropped is read
        // again when it is touched.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

/// The mappings of the file that `here` is mapped from that nobody writes to, and in which nothing was changed: what
/// was relocated at the start is read-only, too, but not what the file has.
fn forgettable(smaps: &str, here: usize) -> Vec<(usize, usize)> {
    let (mut found, mut of_here, mut last) = (Vec::new(), None, None);
    for line in smaps.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        match fields[..] {
            [range, mode, _, device, inode, ..] if !range.ends_with(':') => {
                let bounds = range.split_once('-').and_then(|(start, end)| {
                    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
                });
                last = bounds.filter(|_| inode != "0").map(|(start, end)| ((start, end), mode, (device, inode)));
                if let Some(((start, end), _, file)) = last
                    && (start..end).contains(&here)
                {
                    of_here = Some(file);
                }
            }
            ["Anonymous:", "0", "kB"] => found.extend(last.filter(|(_, mode, _)| ["r-xp", "r--p"].contains(mode))),
            _ => {}
        }
    }
    found.into_iter().filter(|(_, _, file)| Some(*file) == of_here).map(|(bounds, _, _)| bounds).collect()
}

/// Reaps every child that has ended and that nobody else waits for. The processes of [`sandbox_process`] have no exit
/// signal, so a plain wait does not see them.
pub(super) fn reap_orphans() {
    loop {
        // SAFETY: no status is asked for.
        let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        if pid <= 0 && !(pid < 0 && errno() == Errno::INTR) {
            return;
        }
    }
}

/// Blocks these signals for this thread, and what it starts, and returns where they are read.
pub(super) fn signals(signals: &[i32]) -> std::io::Result<OwnedFd> {
    // SAFETY: all-zero is a valid signal set, and means none.
    let mut set = unsafe { std::mem::zeroed::<libc::sigset_t>() };
    for signal in signals {
        // SAFETY: the pointer is to a live signal set; a number that is none is refused.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    // SAFETY: the pointer is to a live signal set, and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    // SAFETY: the set is live; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the call above has just opened it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Tells the runtime of a descriptor to read from.
pub(super) fn watch(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open and the same until its owner, the AsyncFd, is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// The next signal of [`signals`].
///
/// # Errors
/// `WouldBlock` when there is none.
pub(super) fn next_signal(fd: &OwnedFd) -> std::io::Result<i32> {
    let mut told = [0; size_of::<libc::signalfd_siginfo>()];
    let count = rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut told))?;
    // Its first field is the number.
    let number = told[..count].first_chunk().map(|number| u32::from_ne_bytes(*number));
    number.and_then(|number| i32::try_from(number).ok()).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::{forgettable, next_signal, signals};

    #[test]
    fn signals_that_are_taken_are_told_and_do_nothing_else() {
        let fd = signals(&[libc::SIGTERM, libc::SIGUSR1]).unwrap();
        for number in [libc::SIGUSR1, libc::SIGTERM, libc::SIGUSR1] {
            // SAFETY: it takes a plain number, and is for this thread: the others of the test have their signals still.
            assert_eq!(unsafe { libc::raise(number) }, 0);
            assert_eq!(next_signal(&fd).unwrap(), number);
            assert_eq!(next_signal(&fd).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn only_unchanged_parts_of_the_own_file_that_nobody_writes_to_are_forgotten() {
        let mapping = |range: &str, mode: &str, inode: u32, changed: u32| {
            format!("{range} {mode} 00000000 08:01 {inode}   /a\nSize: 4 kB\nAnonymous: {changed} kB\nVmFlags: rd\n")
        };
        let smaps = [
            mapping("1000-2000", "r--p", 7, 0),
            mapping("2000-3000", "r-xp", 7, 0),
            mapping("3000-4000", "r--p", 7, 4),
            mapping("4000-5000", "rw-p", 7, 0),
            mapping("5000-6000", "r--p", 8, 0),
            mapping("6000-7000", "r--p", 0, 0),
        ]
        .concat();
        assert_eq!(forgettable(&smaps, 0x2345), [(0x1000, 0x2000), (0x2000, 0x3000)]);
        assert_eq!(forgettable(&smaps, 0x9999), []);
        assert_eq!(forgettable("", 0x2345), []);
    }
}
