//! A supervisor that waits for a launch: forked ahead, or done with the one before.
//!
//! It takes one message of the host from the nursery's socket and notes that in the nursery's pipe before it does
//! anything, so that the nursery knows it by its id and forks the next one. When the launch's tree is gone by itself, it
//! notes that, too, and gets the host's socket anew: while it is busy it has none, as the host is to see when nobody is
//! left who could take a message. Runs after `fork`: no allocation, no lock, no panic.

use std::os::fd::RawFd;

use libc::pid_t;

use crate::raw::{self, Errno};

/// Own descriptors are above those that come.
const OWN_MIN: RawFd = 100;

/// Bytes of a note: a kind, a process and an id. Written in one piece, as everything of this size in a pipe.
pub(crate) const NOTE_BYTES: usize = 16;

/// What a spare tells the nursery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// This process has this launch, and is a spare no more.
    Taken { id: u64, pid: pid_t },
    /// Nothing is left of this launch: its supervisor would be a spare again.
    Done { id: u64 },
    /// The host wants this supervisor killed.
    Kill { id: u64 },
}

impl Note {
    pub(crate) fn encode(self) -> [u8; NOTE_BYTES] {
        let (kind, pid, id) = match self {
            Note::Taken { id, pid } => (1i32, pid, id),
            Note::Kill { id } => (2, 0, id),
            Note::Done { id } => (3, 0, id),
        };
        let mut bytes = [0; NOTE_BYTES];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&pid.to_ne_bytes());
        bytes[8..].copy_from_slice(&id.to_ne_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; NOTE_BYTES]) -> Note {
        let [k0, k1, k2, k3, p0, p1, p2, p3, id @ ..] = *bytes;
        let id = u64::from_ne_bytes(id);
        match i32::from_ne_bytes([k0, k1, k2, k3]) {
            1 => Note::Taken { id, pid: i32::from_ne_bytes([p0, p1, p2, p3]) },
            3 => Note::Done { id },
            _ => Note::Kill { id },
        }
    }
}

/// The spare's own descriptors.
pub(crate) struct Spare {
    /// -1 while it is busy.
    host: RawFd,
    notes: RawFd,
    /// Where the host's socket comes from.
    grant: RawFd,
    pub(crate) child_signals: RawFd,
    nursery: pid_t,
}

impl Spare {
    /// Makes the forked process a supervisor. None when that cannot be, or the nursery has died.
    pub(crate) fn prepare(host: RawFd, notes: RawFd, grant: RawFd, nursery: pid_t) -> Option<Spare> {
        let notes = raw::dup_above(notes, OWN_MIN).ok()?;
        let grant = raw::dup_above(grant, notes).ok()?;
        let host = raw::dup_above(host, grant).ok()?;
        raw::close_all_except(&[notes, grant, host]);
        raw::setsid();
        raw::set_name(c"sbx-supervisor");
        // A spare is nothing without its nursery. One that has a launch outlives it.
        raw::die_with_parent();
        if raw::parent() != nursery {
            return None;
        }
        Some(Spare { host, notes, grant, child_signals: become_supervisor()?, nursery })
    }

    /// Makes the forked process a supervisor that has no nursery: its first launch is its last.
    pub(crate) fn sole(host: RawFd) -> Option<Spare> {
        let above = raw::dup_above(host, OWN_MIN).ok()?;
        raw::close(host);
        Some(Spare { host: above, notes: -1, grant: -1, child_signals: become_supervisor()?, nursery: 0 })
    }

    /// Waits for a launch: its bytes in the message, and its descriptors. Ends this process when there will be none.
    pub(crate) fn wait(&mut self, message: &mut [u8], fds: &mut [RawFd]) -> (usize, usize) {
        loop {
            // Of several that wait, the kernel wakes one.
            let (length, count) = match raw::wait_with_fds(self.host, message, fds) {
                Err(Errno(libc::EAGAIN | libc::EINTR)) => continue,
                Ok((length @ 1.., count)) => (length, count),
                Ok(_) | Err(_) => raw::exit(0),
            };
            let word = |at: usize| {
                message.get(at..at.wrapping_add(8)).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes)
            };
            let note = match (word(0), word(8)) {
                (Some(id), Some(0)) => Note::Kill { id },
                (Some(id), Some(_)) if count > 0 => Note::Taken { id, pid: raw::getpid() },
                _ => continue,
            };
            self.note(note);
            if let Note::Taken { .. } = note {
                raw::live_without_parent();
                raw::close(self.host);
                self.host = -1;
                return (length, count);
            }
        }
    }

    /// Makes a supervisor whose launch has left nothing a spare again. Ends this process when nobody needs it.
    pub(crate) fn come_back(&mut self, id: u64) {
        raw::die_with_parent();
        if raw::parent() != self.nursery {
            raw::exit(0);
        }
        raw::drain(self.child_signals);
        self.note(Note::Done { id });
        let mut host = [-1];
        let (mut byte, count) = ([0u8; 1], 1);
        if raw::wait_with_fds(self.grant, &mut byte, &mut host) != Ok((1, count)) {
            raw::exit(0);
        }
        let [host] = host;
        // Clear of what comes, as at first.
        let Ok(above) = raw::dup_above(host, self.grant) else { raw::exit(0) };
        raw::close(host);
        self.host = above;
    }

    fn note(&self, note: Note) {
        if self.notes >= 0 && raw::write(self.notes, &note.encode()) != Ok(NOTE_BYTES) {
            raw::exit(0);
        }
    }
}

/// Where it hears of its children.
fn become_supervisor() -> Option<RawFd> {
    raw::become_subreaper().ok()?;
    let child_signals = raw::child_signal_fd().ok()?;
    // What the command gets has to be moved once only, if it does not come in where the standard streams go.
    for standard in 0..3 {
        if standard != child_signals {
            raw::dup_onto(child_signals, standard).ok()?;
        }
    }
    Some(child_signals)
}

#[cfg(test)]
mod tests {
    use libc::pid_t;

    use super::Note;

    #[test]
    fn every_note_survives_the_pipe() {
        let pid = pid_t::MAX;
        for note in [
            Note::Taken { id: u64::MAX, pid },
            Note::Taken { id: 1, pid: 1 },
            Note::Kill { id: 1 << 40 },
            Note::Done { id: u64::MAX - 1 },
        ] {
            assert_eq!(Note::decode(&note.encode()), note);
        }
    }
}
