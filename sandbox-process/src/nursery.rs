//! The nursery: one small process per set, forked from the host once, that forks the supervisors.
//!
//! A fork copies the page tables of the whole host and makes it fault on every page it touches afterwards. So the
//! host pays that once per set; the nursery gives the memory back and forks cheaply from then on. It is also the
//! reaper behind the supervisors: if one is killed from outside, its orphans come here and are ended.
//!
//! A supervisor that waits is a *spare*: it takes the next message of the host by itself and notes here that it did. The
//! first is forked ahead, so that the first launch waits for no fork; one whose command has left nothing is a spare
//! again; and one more is forked when a message comes while all are busy. Where none can be forked, the nursery takes
//! messages itself.
//!
//! Runs after `fork` in a process that was multi-threaded: no allocation, no lock, no panic.

use std::ffi::CStr;
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
/// Supervisors that wait, at most: those beyond end when they are done.
const SPARES_MAX: usize = 4;
/// Supervisors that can be spares again, at most: each holds a descriptor here.
const GRANTS_MAX: usize = 64;
/// Pause between two rounds of hunting orphans.
const HUNT_PAUSE_MS: i32 = 5;

/// A supervisor. All-zero is a valid one.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Of its launch; 0 while it waits for one.
    id: u64,
    pid: pid_t,
    /// Where it gets the host's socket when it is done; -1 for one that ends then.
    grant: RawFd,
    /// It has had a launch.
    used: bool,
}

struct Nursery<'a> {
    host: RawFd,
    child_signals: RawFd,
    supervisors: &'static mut [Known],
    count: usize,
    /// How many of them wait.
    spares: usize,
    grants: usize,
    message: &'static mut [u8],
    /// A supervisor has died a violent death: what it guarded is ours until nothing of it is found.
    hunting: Option<Walker>,
    /// Why nothing may be started: a restriction could not be put in force.
    refusal: Option<Errno>,
    /// Both ends of the pipe in which spares note what they have taken; -1 without one.
    notes: (RawFd, RawFd),
    host_gone: bool,
    accepted: &'a Accepted,
}

/// Leaves what the forked process has of its host. Returns why nothing may be started, if a restriction could not be put
/// in force.
fn leave_host(host: RawFd, name: &CStr, restrictions: &Restrictions) -> Option<Errno> {
    raw::close_all_except(&[host]);
    raw::setsid();
    raw::set_name(name);
    raw::reset_signal_actions();
    restrictions.enforce().err()
}

/// Runs, in the forked process, a supervisor without a nursery: it takes one launch, and ends with that. For a host that
/// is small, whose memory it keeps. All signals are blocked on entry and stay blocked.
pub(crate) fn run_sole(host: RawFd, restrictions: &Restrictions, accepted: &Accepted) -> ! {
    let refusal = leave_host(host, c"sbx-supervisor", restrictions);
    raw::forbid_tracing();
    let (Some(mut spare), Some(message)) = (Spare::sole(host), map_message()) else { raw::exit(1) };
    let mut fds = [-1; MESSAGE_FDS_MAX];
    let (length, count) = spare.wait(message, &mut fds);
    let child_signals = spare.child_signals;
    // The part of one that a launch needs.
    let mut nursery = Nursery::new(-1, child_signals, message, refusal, accepted);
    let fds = fds.get(..count).unwrap_or(&[]);
    if let (Some(&control), Some(Errno(errno))) = (fds.first(), nursery.refusal) {
        supervisor::give_up(control, Stage::User, errno);
    }
    let block_bytes = nursery.word(8).unwrap_or(0);
    nursery.supervise(length, block_bytes as usize, fds, Some(child_signals));
    raw::exit(0)
}

/// Room for a message. Zeroed.
fn map_message() -> Option<&'static mut [u8]> {
    let bytes = MESSAGE_HEADER_BYTES + MESSAGE_INLINE_MAX;
    let address = raw::map_memory(bytes)?;
    // SAFETY: a fresh zeroed mapping of exactly this size, which stays.
    Some(unsafe { std::slice::from_raw_parts_mut(address, bytes) })
}

/// Runs the nursery in the forked process. All signals are blocked on entry and stay blocked.
pub(crate) fn run(host: RawFd, restrictions: &Restrictions, accepted: &Accepted) -> ! {
    // Before the memory that holds the restrictions is given back.
    let refusal = leave_host(host, c"sbx-nursery", restrictions);
    shed::shed_host_memory();
    raw::forbid_tracing();
    let (Ok(()), Ok(child_signals)) = (raw::become_subreaper(), raw::child_signal_fd()) else { raw::exit(1) };
    let (Some(table), Some(message)) = (raw::map_memory(SUPERVISORS_MAX * size_of::<Known>()), map_message()) else {
        raw::exit(1)
    };
    let mut nursery = Nursery::new(host, child_signals, message, refusal, accepted);
    // SAFETY: a fresh, page-aligned, zeroed mapping of exactly this size; all-zero is a valid entry.
    nursery.supervisors = unsafe { std::slice::from_raw_parts_mut(table.cast(), SUPERVISORS_MAX) };
    nursery.notes = raw::pipe().unwrap_or((-1, -1));
    // None of a supervisor's business, and a mapping less to copy for it.
    raw::do_not_fork(table, SUPERVISORS_MAX * size_of::<Known>());
    nursery.serve()
}

impl<'a> Nursery<'a> {
    /// One that has no room for supervisors, and takes no notes.
    fn new(
        host: RawFd,
        child_signals: RawFd,
        message: &'static mut [u8],
        refusal: Option<Errno>,
        accepted: &'a Accepted,
    ) -> Nursery<'a> {
        Nursery {
            host,
            child_signals,
            supervisors: &mut [],
            count: 0,
            spares: 0,
            grants: 0,
            message,
            hunting: None,
            refusal,
            notes: (-1, -1),
            host_gone: false,
            accepted,
        }
    }

    fn serve(&mut self) -> ! {
        loop {
            let alive = self.reap();
            if self.host_gone && !alive {
                raw::exit(0);
            }
            self.hunt();
            if self.count == 0 && !self.host_gone && self.may_spare() {
                if raw::has_ended(self.host) {
                    self.lose_host();
                    continue;
                }
                // Nobody is there yet: the first launch is to wait for no fork.
                self.fork_spare();
            }
            let pause = if self.hunting.is_some() { HUNT_PAUSE_MS } else { -1 };
            // Spares take the messages, and note which.
            let host = if self.spares == 0 && !self.host_gone { self.host } else { -1 };
            let [request, noted, child] = raw::poll([host, self.notes.0, self.child_signals], pause);
            if child {
                raw::drain(self.child_signals);
            }
            if noted {
                self.hear();
            }
            if request && self.spares == 0 {
                self.answer();
            }
        }
    }

    fn may_spare(&self) -> bool {
        self.notes.1 >= 0 && self.refusal.is_none() && self.count < self.supervisors.len()
    }

    /// There is a message and nobody to take it, or the host is gone.
    fn answer(&mut self) {
        if raw::has_ended(self.host) {
            self.lose_host();
        } else if !self.may_spare() || !self.fork_spare() {
            self.receive();
        }
    }

    /// Has a supervisor wait for the next launch. False when none could be had.
    fn fork_spare(&mut self) -> bool {
        let Ok((ours, theirs)) = raw::socket_pair() else { return false };
        let this = raw::getpid();
        match raw::fork() {
            Ok(0) => self.become_spare(theirs, this),
            Ok(pid) => {
                raw::close(theirs);
                self.grants += 1;
                self.spares += 1;
                self.remember(Known { id: 0, pid, grant: ours, used: false });
                if self.grants > GRANTS_MAX {
                    self.take_grant_back(pid);
                }
                true
            }
            Err(_) => {
                raw::close(ours);
                raw::close(theirs);
                false
            }
        }
    }

    /// Has a supervisor end when it is done.
    fn take_grant_back(&mut self, pid: pid_t) {
        let known = self.supervisors.iter_mut().take(self.count).find(|known| known.pid == pid);
        if let Some(known) = known
            && known.grant >= 0
        {
            raw::close(known.grant);
            known.grant = -1;
            self.grants = self.grants.saturating_sub(1);
        }
    }

    fn become_spare(&mut self, grant: RawFd, nursery: pid_t) -> ! {
        let Some(mut spare) = Spare::prepare(self.host, self.notes.1, grant, nursery) else { raw::exit(0) };
        loop {
            let mut fds = [-1; MESSAGE_FDS_MAX];
            let (length, count) = spare.wait(self.message, &mut fds);
            let fds = fds.get(..count).unwrap_or(&[]);
            let (id, block_bytes) = (self.word(0).unwrap_or(0), self.word(8).unwrap_or(0));
            self.supervise(length, block_bytes as usize, fds, Some(spare.child_signals));
            spare.come_back(id);
        }
    }

    /// Reads what spares have noted.
    fn hear(&mut self) {
        let mut bytes = [0u8; NOTE_BYTES];
        while let Ok(NOTE_BYTES) = raw::read(self.notes.0, &mut bytes) {
            match Note::decode(&bytes) {
                Note::Taken { id, pid } => {
                    let known = self.supervisors.iter_mut().take(self.count).find(|known| known.pid == pid);
                    if let Some(known) = known {
                        (known.id, known.used) = (id, true);
                        self.spares = self.spares.saturating_sub(1);
                    }
                }
                Note::Done { id } => self.take_back(id),
                Note::Kill { id } => self.kill(id),
            }
        }
    }

    /// Lets a supervisor that is done wait for the next launch, or end.
    fn take_back(&mut self, id: u64) {
        let (host, enough) = (self.host, self.spares >= SPARES_MAX || self.host_gone);
        let Some(known) = self.supervisors.iter_mut().take(self.count).find(|known| known.id == id) else { return };
        // Before it can have another one: a kill of this one is none of the next one's.
        known.id = 0;
        let pid = known.pid;
        if !enough && known.grant >= 0 && raw::send_fd(known.grant, host).is_ok() {
            self.spares += 1;
        } else {
            // It ends; until then it is no spare.
            known.id = u64::MAX;
            self.take_grant_back(pid);
        }
    }

    fn remember(&mut self, known: Known) {
        if let Some(slot) = self.supervisors.get_mut(self.count) {
            *slot = known;
            self.count += 1;
        }
    }

    /// Takes one message.
    fn receive(&mut self) {
        let mut fds = [-1; MESSAGE_FDS_MAX];
        let (length, count) = match raw::receive_with_fds(self.host, self.message, &mut fds) {
            Ok((length @ 1.., count)) => (length, count),
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
            Ok(_) | Err(_) => return self.lose_host(),
        };
        let Some(fds) = fds.get(..count) else { return };
        self.act(length, fds);
        for &fd in fds {
            raw::close(fd);
        }
    }

    /// The supervisors see their own sockets closed; this process stays to reap them.
    fn lose_host(&mut self) {
        self.host_gone = true;
        raw::close(self.host);
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
            Ok(0) => {
                self.supervise(length, block_bytes as usize, fds, None);
                raw::exit(0)
            }
            Ok(pid) => self.remember(Known { id, pid, grant: -1, used: true }),
            Err(Errno(errno)) => supervisor::tell(control, Report::Failed { stage: Stage::Fork, errno }),
        }
    }

    /// In the forked process, until nothing of the launch is left. `fds`: control socket, the block's file if it did not fit into the message, then
    /// pairs are made of the rest and the targets at the end of the block.
    /// `ready`: where a spare, which is a supervisor already, hears of its children.
    fn supervise(&mut self, length: usize, block_bytes: usize, fds: &[RawFd], ready: Option<RawFd>) {
        let Some((&control, mut sources)) = fds.split_first() else { raw::exit(1) };
        // From here on nobody else may begin this launch.
        self.accepted.note(self.word(0).unwrap_or(u64::MAX));
        let inline = length > MESSAGE_HEADER_BYTES;
        let mut mapped = None;
        let block: &mut [u8] = if inline {
            match self.message.get_mut(MESSAGE_HEADER_BYTES..length) {
                Some(block) => block,
                None => invalid(control),
            }
        } else {
            let Some((&file, rest)) = sources.split_first() else { invalid(control) };
            sources = rest;
            let address = raw::map_file(file, block_bytes);
            raw::close(file);
            match address {
                Ok(address) => {
                    mapped = Some(address as usize);
                    // SAFETY: a fresh private writable mapping of the file, which has this size, unmapped after its use.
                    unsafe { std::slice::from_raw_parts_mut(address, block_bytes) }
                }
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
        supervisor::run(&Plan { control, keep, launch }, ready);
        if let Some(start) = mapped {
            raw::unmap(start, start.wrapping_add(block_bytes));
        }
    }

    fn kill(&self, id: u64) {
        for known in self.supervisors.iter().take(self.count).filter(|known| known.id == id) {
            raw::kill(known.pid, libc::SIGKILL);
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
        // What it has taken or done it noted before it died.
        if self.notes.0 >= 0 {
            self.hear();
        }
        let index = self.supervisors.iter().take(self.count).position(|known| known.pid == pid);
        let Some(index) = index else { return };
        self.take_grant_back(pid);
        let gone = self.supervisors.get(index).copied().unwrap_or_default();
        self.count = self.count.saturating_sub(1);
        let last = self.supervisors.get(self.count).copied().unwrap_or_default();
        if let Some(slot) = self.supervisors.get_mut(index) {
            *slot = last;
        }
        if gone.id == 0 {
            self.spares = self.spares.saturating_sub(1);
            if !gone.used {
                // The host is gone, or none can live here: the next one would die, too.
                self.forgo_spares();
            }
        } else if status != 0 && self.hunting.is_none() {
            self.hunting = Walker::new();
        }
    }

    /// Takes messages here from now on, as soon as nobody else does.
    fn forgo_spares(&mut self) {
        self.notes.1 = -1;
    }

    /// One round of ending whatever is a child of this process and no supervisor.
    fn hunt(&mut self) {
        let Some(walker) = self.hunting.as_mut() else { return };
        let known = self.supervisors.get(..self.count).unwrap_or(&[]);
        let is_spared = |pid| known.iter().any(|known| known.pid == pid);
        if walker.kill_descendants(is_spared) == 0 {
            walker.unmap();
            self.hunting = None;
        }
    }
}

fn invalid(control: RawFd) -> ! {
    supervisor::give_up(control, Stage::Fork, libc::EBADMSG)
}
