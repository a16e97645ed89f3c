//! The nursery: one small process per set, forked from the host once, that forks the supervisors.
//!
//! A fork copies the page tables of the whole host and makes it fault on every page it touches afterwards. So the
//! host pays that once per set; the nursery gives the memory back and forks cheaply from then on. It is also the
//! reaper behind the supervisors: if one is killed from outside, its orphans come here and are ended.
//!
//! One supervisor is always forked ahead, so that a launch waits for no fork: the *spare* takes the next message of the
//! host by itself and notes here that it did. Without one (none could be forked) the nursery takes messages itself.
//!
//! Runs after `fork` in a process that was multi-threaded: no allocation, no lock, no panic.

use std::os::fd::RawFd;

use libc::pid_t;

use crate::accepted::Accepted;
use crate::blob;
use crate::fork::{MESSAGE_FDS_MAX, MESSAGE_HEADER_BYTES, MESSAGE_INLINE_MAX};
use crate::launch::DESCRIPTORS_MAX;
use crate::raw::{self, Errno};
use crate::restrictions::Restrictions;
use crate::shed;
use crate::spare::{NOTE_BYTES, Note, Spare};
use crate::supervisor::{self, Plan};
use crate::tree::Walker;
use crate::wire::{Report, Stage};

/// Supervisors of one nursery at once.
const SUPERVISORS_MAX: usize = 1 << 15;
/// Pause between two rounds of hunting orphans.
const HUNT_PAUSE_MS: i32 = 5;

struct Nursery<'a> {
    host: RawFd,
    child_signals: RawFd,
    supervisors: &'static mut [(u64, pid_t)],
    count: usize,
    message: &'static mut [u8],
    /// A supervisor has died a violent death: what it guarded is ours until nothing of it is found.
    hunting: Option<Walker>,
    /// Why nothing may be started: a restriction could not be put in force.
    refusal: Option<Errno>,
    /// Both ends of the pipe in which spares note what they have taken; -1 without one.
    notes: (RawFd, RawFd),
    /// The supervisor that waits for a launch.
    spare: Option<pid_t>,
    host_gone: bool,
    accepted: &'a Accepted,
}

/// What came from the host.
#[derive(PartialEq)]
enum Received {
    Message,
    Nothing,
    /// The host is gone.
    End,
}

/// Runs the nursery in the forked process. All signals are blocked on entry and stay blocked.
pub(crate) fn run(host: RawFd, restrictions: &Restrictions, accepted: &Accepted) -> ! {
    raw::close_all_except(&[host]);
    raw::setsid();
    raw::set_name(c"sbx-nursery");
    raw::reset_signal_actions();
    // Before the memory that holds them is given back.
    let refusal = restrictions.enforce().err();
    shed::shed_host_memory();
    raw::forbid_tracing();
    let (Ok(()), Ok(child_signals)) = (raw::become_subreaper(), raw::child_signal_fd()) else { raw::exit(1) };
    let (Some(table), Some(message)) = (
        raw::map_memory(SUPERVISORS_MAX * size_of::<(u64, pid_t)>()),
        raw::map_memory(MESSAGE_HEADER_BYTES + MESSAGE_INLINE_MAX),
    ) else {
        raw::exit(1)
    };
    let mut nursery = Nursery {
        host,
        child_signals,
        // SAFETY: a fresh, page-aligned, zeroed mapping of exactly this size; all-zero is a valid pair of integers.
        supervisors: unsafe { std::slice::from_raw_parts_mut(table.cast(), SUPERVISORS_MAX) },
        count: 0,
        // SAFETY: a fresh zeroed mapping of exactly this size.
        message: unsafe { std::slice::from_raw_parts_mut(message, MESSAGE_HEADER_BYTES + MESSAGE_INLINE_MAX) },
        hunting: None,
        refusal,
        notes: raw::pipe().unwrap_or((-1, -1)),
        spare: None,
        host_gone: false,
        accepted,
    };
    // None of a supervisor's business, and a mapping less to copy for it.
    raw::do_not_fork(table, SUPERVISORS_MAX * size_of::<(u64, pid_t)>());
    nursery.serve()
}

impl Nursery<'_> {
    fn serve(&mut self) -> ! {
        loop {
            let alive = self.reap();
            if self.host_gone && !alive {
                raw::exit(0);
            }
            self.hunt();
            if self.keep_spare() == Received::End {
                continue;
            }
            let pause = if self.hunting.is_some() { HUNT_PAUSE_MS } else { -1 };
            let source = match self.spare {
                Some(_) => self.notes.0,
                None if self.host_gone => -1,
                None => self.host,
            };
            let (request, child) = raw::poll_two(source, self.child_signals, pause);
            if child {
                raw::drain(self.child_signals);
            }
            if request {
                match self.spare {
                    Some(_) => self.hear(),
                    None => drop(self.receive()),
                }
            }
        }
    }

    /// Has a supervisor wait for the next launch, after everything that waits already. `End` when the host is gone now.
    fn keep_spare(&mut self) -> Received {
        let may = self.notes.0 >= 0 && self.refusal.is_none() && self.count < self.supervisors.len();
        if self.spare.is_some() || self.host_gone || !may {
            return Received::Nothing;
        }
        while self.receive() == Received::Message {}
        if self.host_gone {
            return Received::End;
        }
        let this = raw::getpid();
        match raw::fork() {
            Ok(0) => self.become_spare(this),
            Ok(pid) => self.spare = Some(pid),
            // Messages are taken here until one can be had.
            Err(_) => {}
        }
        Received::Nothing
    }

    fn become_spare(&mut self, nursery: pid_t) -> ! {
        let Some(spare) = Spare::prepare(self.host, self.notes.1, nursery) else { raw::exit(0) };
        let mut fds = [-1; MESSAGE_FDS_MAX];
        let (length, count) = spare.wait(self.message, &mut fds);
        let fds = fds.get(..count).unwrap_or(&[]);
        let block_bytes = self.word(8).unwrap_or(0);
        self.become_supervisor(length, block_bytes as usize, fds, Some(spare.child_signals))
    }

    /// Reads what a spare has noted.
    fn hear(&mut self) {
        let mut bytes = [0u8; NOTE_BYTES];
        while let Ok(NOTE_BYTES) = raw::read(self.notes.0, &mut bytes) {
            match Note::decode(&bytes) {
                Note::Taken { id } => {
                    if let Some(pid) = self.spare.take() {
                        self.remember(id, pid);
                    }
                }
                Note::Kill { id } => self.kill(id),
            }
        }
    }

    fn remember(&mut self, id: u64, pid: pid_t) {
        if let Some(slot) = self.supervisors.get_mut(self.count) {
            *slot = (id, pid);
            self.count += 1;
        }
    }

    /// Takes one message.
    fn receive(&mut self) -> Received {
        let mut fds = [-1; MESSAGE_FDS_MAX];
        let (length, count) = match raw::receive_with_fds(self.host, self.message, &mut fds) {
            Ok((length @ 1.., count)) => (length, count),
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return Received::Nothing,
            Ok(_) | Err(_) => {
                // The supervisors see their own sockets closed; this process stays to reap them.
                self.host_gone = true;
                raw::close(self.host);
                return Received::End;
            }
        };
        let Some(fds) = fds.get(..count) else { return Received::Message };
        self.act(length, fds);
        for &fd in fds {
            raw::close(fd);
        }
        Received::Message
    }

    /// A word of the message.
    fn word(&self, at: usize) -> Option<u64> {
        self.message.get(at..at.wrapping_add(8)).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes)
    }

    fn act(&mut self, length: usize, fds: &[RawFd]) {
        let (Some(id), Some(block_bytes)) = (self.word(0), self.word(8)) else { return };
        if block_bytes == 0 {
            return self.kill(id);
        }
        let Some(&control) = fds.first() else { return };
        if let Some(Errno(errno)) = self.refusal {
            return supervisor::tell(control, Report::Failed { stage: Stage::User, errno });
        }
        if self.count >= self.supervisors.len() {
            return supervisor::tell(control, Report::Failed { stage: Stage::Fork, errno: libc::EAGAIN });
        }
        match raw::fork() {
            Ok(0) => self.become_supervisor(length, block_bytes as usize, fds, None),
            Ok(pid) => self.remember(id, pid),
            Err(Errno(errno)) => supervisor::tell(control, Report::Failed { stage: Stage::Fork, errno }),
        }
    }

    /// In the forked process. `fds`: control socket, the block's file if it did not fit into the message, then
    /// pairs are made of the rest and the targets at the end of the block.
    /// `ready`: where a spare, which is a supervisor already, hears of its children.
    fn become_supervisor(&mut self, length: usize, block_bytes: usize, fds: &[RawFd], ready: Option<RawFd>) -> ! {
        let Some((&control, mut sources)) = fds.split_first() else { raw::exit(1) };
        // From here on nobody else may begin this launch.
        self.accepted.note(self.word(0).unwrap_or(u64::MAX));
        let inline = length > MESSAGE_HEADER_BYTES;
        let block: &mut [u8] = if inline {
            match self.message.get_mut(MESSAGE_HEADER_BYTES..length) {
                Some(block) => block,
                None => invalid(control),
            }
        } else {
            let Some((&file, rest)) = sources.split_first() else { invalid(control) };
            sources = rest;
            match raw::map_file(file, block_bytes) {
                // SAFETY: a fresh private writable mapping of the file, which has this size, never unmapped.
                Ok(address) => unsafe { std::slice::from_raw_parts_mut(address, block_bytes) },
                Err(Errno(errno)) => supervisor::give_up(control, Stage::Fork, errno),
            }
        };
        let Some((block, target_bytes)) = block.split_at_mut_checked(block_bytes.saturating_sub(4 * sources.len()))
        else {
            invalid(control)
        };
        let mut pairs = [(-1, -1); DESCRIPTORS_MAX];
        let mut targets = [-1; DESCRIPTORS_MAX];
        let mut keep = [-1; MESSAGE_FDS_MAX];
        for (index, (&source, target)) in sources.iter().zip(target_bytes.chunks_exact(4)).enumerate() {
            let target = target.try_into().map_or(-1, i32::from_ne_bytes);
            let (Some(pair), Some(slot)) = (pairs.get_mut(index), targets.get_mut(index)) else { invalid(control) };
            *pair = (source, target);
            *slot = target;
        }
        for (slot, &fd) in keep.iter_mut().zip(sources.iter().chain([&control])) {
            *slot = fd;
        }
        let (Some(pairs), Some(targets), Some(keep)) =
            (pairs.get(..sources.len()), targets.get(..sources.len()), keep.get_mut(..sources.len() + 1))
        else {
            invalid(control)
        };
        keep.sort_unstable();
        let Some(mut launch) = blob::relocate(block) else { invalid(control) };
        launch.descriptors = pairs;
        launch.targets = targets;
        supervisor::run(&Plan { control, keep, launch }, ready)
    }

    fn kill(&self, id: u64) {
        for &(known, pid) in self.supervisors.iter().take(self.count) {
            if known == id {
                raw::kill(pid, libc::SIGKILL);
            }
        }
    }

    /// True while there are children.
    fn reap(&mut self) -> bool {
        loop {
            match raw::reap_one() {
                Ok(Some(child)) => self.forget(child.pid, child.status),
                Ok(None) => return true,
                Err(Errno(libc::EINTR)) => {}
                Err(_) => return false,
            }
        }
    }

    fn forget(&mut self, pid: pid_t, status: i32) {
        if self.spare == Some(pid) {
            // What it has taken it noted before it died.
            self.hear();
        }
        if self.spare == Some(pid) {
            self.spare = None;
            // The host is gone, or none can live here: the next one would die, too.
            self.notes.0 = -1;
            return;
        }
        let known = self.supervisors.iter().take(self.count).position(|&(_, known)| known == pid);
        let Some(index) = known else { return };
        self.count = self.count.saturating_sub(1);
        let last = self.supervisors.get(self.count).copied().unwrap_or_default();
        if let Some(slot) = self.supervisors.get_mut(index) {
            *slot = last;
        }
        if status != 0 && self.hunting.is_none() {
            self.hunting = Walker::new();
        }
    }

    /// One round of ending whatever is a child of this process and no supervisor.
    fn hunt(&mut self) {
        let Some(walker) = self.hunting.as_mut() else { return };
        let (known, spare) = (self.supervisors.get(..self.count).unwrap_or(&[]), self.spare);
        let is_spared = |pid| spare == Some(pid) || known.iter().any(|&(_, supervisor)| supervisor == pid);
        if walker.kill_descendants(is_spared) == 0 {
            walker.unmap();
            self.hunting = None;
        }
    }
}

fn invalid(control: RawFd) -> ! {
    supervisor::give_up(control, Stage::Fork, libc::EBADMSG)
}
