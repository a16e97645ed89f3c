//! Finds every descendant of this process. Runs in the supervisor: no allocation, no lock, no panic.
//!
//! The walk is top down and stops each process before it reads that process's children, so that nobody forks,
//! reaps or reacts to a sibling's death while the list is made. The kernel's `children` file is used where it
//! exists; otherwise all of `/proc` is scanned for parents.

use libc::{c_int, pid_t};

use crate::procfs::{self, ProcPath};
use crate::raw;

/// Most processes found in one round. More are found in the next round, when these are gone.
const ROUND_PIDS: usize = 1 << 16;
/// Bytes of one directory or file read.
const READ_BYTES: usize = 1 << 14;

/// Fixed memory for the walks, mapped once when a tree is to be ended.
pub(crate) struct Walker {
    found: &'static mut [pid_t],
    seen: &'static mut [(pid_t, pid_t)],
    buffer: &'static mut [u8],
    inner: &'static mut [u8],
}

impl Walker {
    pub(crate) fn new() -> Option<Walker> {
        let found = raw::map_memory(ROUND_PIDS * size_of::<pid_t>())?.cast::<pid_t>();
        let seen = raw::map_memory(ROUND_PIDS * size_of::<(pid_t, pid_t)>())?.cast::<(pid_t, pid_t)>();
        let buffer = raw::map_memory(READ_BYTES)?;
        let inner = raw::map_memory(READ_BYTES)?;
        Some(Walker {
            // SAFETY: a fresh, page-aligned, zeroed mapping of exactly this size that is never unmapped or shared.
            found: unsafe { std::slice::from_raw_parts_mut(found, ROUND_PIDS) },
            // SAFETY: as above; all-zero is a valid pair of integers.
            seen: unsafe { std::slice::from_raw_parts_mut(seen, ROUND_PIDS) },
            // SAFETY: as above, for bytes.
            buffer: unsafe { std::slice::from_raw_parts_mut(buffer, READ_BYTES) },
            // SAFETY: as above, for bytes.
            inner: unsafe { std::slice::from_raw_parts_mut(inner, READ_BYTES) },
        })
    }

    /// Stops every descendant, then sends SIGKILL to each. Returns how many were found. Children of this process
    /// that are `spared` are left alone, with everything below them.
    pub(crate) fn kill_descendants(&mut self, spared: impl Fn(pid_t) -> bool) -> usize {
        let root = raw::getpid();
        let count = match self.walk_children_files(root, &spared) {
            Some(count) => count,
            None => self.walk_all_processes(root, &spared),
        };
        for &pid in self.found.iter().take(count) {
            raw::kill(pid, libc::SIGKILL);
        }
        count
    }

    /// Gives the memory back.
    pub(crate) fn unmap(&mut self) {
        let this = std::mem::replace(self, Walker { found: &mut [], seen: &mut [], buffer: &mut [], inner: &mut [] });
        let range = |start: usize, bytes: usize| raw::unmap(start, start.wrapping_add(bytes));
        range(this.found.as_ptr() as usize, size_of_val(this.found));
        range(this.seen.as_ptr() as usize, size_of_val(this.seen));
        range(this.buffer.as_ptr() as usize, size_of_val(this.buffer));
        range(this.inner.as_ptr() as usize, size_of_val(this.inner));
    }

    fn walk_children_files(&mut self, root: pid_t, spared: &impl Fn(pid_t) -> bool) -> Option<usize> {
        let listed = self.append_children_of_thread(root, root, 0)?;
        let mut count = 0;
        for index in 0..listed {
            let pid = self.found.get(index).copied().unwrap_or(0);
            if !spared(pid)
                && let Some(slot) = self.found.get_mut(count)
            {
                *slot = pid;
                count += 1;
            }
        }
        let mut next = 0;
        while next < count {
            let Some(&pid) = self.found.get(next) else { break };
            next += 1;
            raw::kill(pid, libc::SIGSTOP);
            count = self.append_children(pid, count);
        }
        Some(count)
    }

    /// Children hang on the thread that made them, so every thread of `pid` is asked.
    fn append_children(&mut self, pid: pid_t, mut count: usize) -> usize {
        let path = ProcPath::new().number(pid).text(b"/task");
        let Ok(directory) = raw::open(path.as_c_str()) else { return count };
        while let Ok(length @ 1..) = raw::directory_entries(directory, self.buffer) {
            let mut at = 0;
            while let Some((thread, next)) = procfs::next_numeric_entry(self.buffer, at, length) {
                at = next;
                if let Some(thread) = thread {
                    count = self.append_children_of_thread(pid, thread, count).unwrap_or(count);
                }
            }
        }
        raw::close(directory);
        count
    }

    fn append_children_of_thread(&mut self, pid: pid_t, thread: pid_t, mut count: usize) -> Option<usize> {
        let path = ProcPath::new().number(pid).text(b"/task").number(thread).text(b"/children");
        let file = raw::open(path.as_c_str()).ok()?;
        let mut partial: pid_t = 0;
        while let Ok(length @ 1..) = raw::read(file, self.inner) {
            for &byte in self.inner.iter().take(length) {
                if byte.is_ascii_digit() {
                    partial = partial.wrapping_mul(10).wrapping_add(c_int::from(byte - b'0'));
                } else if partial > 0 {
                    if let Some(slot) = self.found.get_mut(count) {
                        *slot = partial;
                        count += 1;
                    }
                    partial = 0;
                }
            }
        }
        raw::close(file);
        Some(count)
    }

    fn walk_all_processes(&mut self, root: pid_t, spared: &impl Fn(pid_t) -> bool) -> usize {
        let total = self.list_all_processes();
        let mut count = 0;
        let mut next = 0;
        let mut parent = root;
        loop {
            for &(pid, of) in self.seen.iter().take(total) {
                if of == parent
                    && pid != root
                    && !(parent == root && spared(pid))
                    && let Some(slot) = self.found.get_mut(count)
                {
                    *slot = pid;
                    count += 1;
                }
            }
            if next >= count {
                return count;
            }
            let Some(&pid) = self.found.get(next) else { return count };
            next += 1;
            parent = pid;
            raw::kill(pid, libc::SIGSTOP);
        }
    }

    fn list_all_processes(&mut self) -> usize {
        let Ok(directory) = raw::open(ProcPath::new().as_c_str()) else { return 0 };
        let mut total = 0;
        while let Ok(length @ 1..) = raw::directory_entries(directory, self.buffer) {
            let mut at = 0;
            while let Some((pid, next)) = procfs::next_numeric_entry(self.buffer, at, length) {
                at = next;
                let Some(pid) = pid else { continue };
                let Some(parent) = procfs::parent_of(pid, self.inner) else { continue };
                if let Some(slot) = self.seen.get_mut(total) {
                    *slot = (pid, parent);
                    total += 1;
                }
            }
        }
        raw::close(directory);
        total
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::Walker;
    use crate::raw;

    /// The only test of this binary that has children, because both walks see all of them.
    #[test]
    fn both_walks_find_the_same_descendants_and_spare_who_is_spared() {
        let script = "sleep 300 & (sleep 300 & sleep 300) & echo $$; sleep 300";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("starts");
        let mut spared = Command::new("sleep").arg("300").spawn().expect("starts");
        let spared_pid = spared.id() as i32;
        let mut line = [0u8; 1];
        shell.stdout.take().expect("piped").read_exact(&mut line).expect("it is up");
        let root = raw::getpid();
        let mut walker = Walker::new().expect("memory");
        // The test runs in a thread, so the children hang on it and not on the main one.
        let thread = std::fs::read_link("/proc/thread-self").expect("/proc is there");
        let thread: i32 =
            thread.file_name().and_then(|name| name.to_str()).and_then(|t| t.parse().ok()).expect("a number");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        loop {
            let count = walker.walk_all_processes(root, &|pid| pid == spared_pid);
            let mut scanned = walker.found[..count].to_vec();
            scanned.sort_unstable();
            let direct = walker.append_children_of_thread(root, thread, 0).expect("the kernel has the file");
            let shell_pid = shell.id() as i32;
            let mut listed: Vec<i32> = walker.found[..direct].to_vec();
            assert!(listed.contains(&spared_pid) && listed.contains(&shell_pid));
            walker.found[0] = shell_pid;
            let (mut next, mut count) = (0, 1);
            while next < count {
                count = walker.append_children(walker.found[next], count);
                next += 1;
            }
            listed = walker.found[..count].to_vec();
            listed.sort_unstable();
            assert!(!scanned.contains(&spared_pid));
            if scanned.len() == 5 && listed == scanned {
                scanned.iter().for_each(|&pid| raw::kill(pid, libc::SIGKILL));
                break;
            }
            // Stopped too early to have all its children.
            scanned.iter().for_each(|&pid| raw::kill(pid, libc::SIGCONT));
            assert!(std::time::Instant::now() < deadline, "scanned {scanned:?}, listed {listed:?}");
            std::thread::yield_now();
        }
        shell.wait().expect("reaped");
        spared.kill().expect("it lives: nobody stopped or killed it");
        spared.wait().expect("reaped");
        walker.unmap();
    }
}
