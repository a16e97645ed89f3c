//! A supervisor that was forked ahead and waits for its launch.
//!
//! It takes one message of the host from the nursery's socket and notes that in the nursery's pipe before it does
//! anything, so that the nursery knows it by its id and forks the next one. Runs after `fork`: no allocation, no lock,
//! no panic.

use std::os::fd::RawFd;

use libc::pid_t;

use crate::raw::{self, Errno};

/// Own descriptors are above those that come.
const OWN_MIN: RawFd = 100;

/// Bytes of a note: a kind and an id. Written in one piece, as everything of this size in a pipe.
pub(crate) const NOTE_BYTES: usize = 16;

/// What a spare tells the nursery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// The spare has this launch, and is one no more.
    Taken { id: u64 },
    /// The host wants this supervisor killed.
    Kill { id: u64 },
}

impl Note {
    pub(crate) fn encode(self) -> [u8; NOTE_BYTES] {
        let (kind, id) = match self {
            Note::Taken { id } => (1u64, id),
            Note::Kill { id } => (2, id),
        };
        let mut bytes = [0; NOTE_BYTES];
        bytes[..8].copy_from_slice(&kind.to_ne_bytes());
        bytes[8..].copy_from_slice(&id.to_ne_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; NOTE_BYTES]) -> Note {
        let [kind, _, _, _, _, _, _, _, id @ ..] = *bytes;
        let id = u64::from_ne_bytes(id);
        if kind == 1u64.to_ne_bytes()[0] { Note::Taken { id } } else { Note::Kill { id } }
    }
}

/// The spare's own descriptors.
pub(crate) struct Spare {
    host: RawFd,
    notes: RawFd,
    pub(crate) child_signals: RawFd,
}

impl Spare {
    /// Makes the forked process a supervisor. None when that cannot be, or the nursery has died.
    pub(crate) fn prepare(host: RawFd, notes: RawFd, nursery: pid_t) -> Option<Spare> {
        let host = raw::dup_above(host, OWN_MIN).ok()?;
        let notes = raw::dup_above(notes, host).ok()?;
        raw::close_all_except(&[host, notes]);
        raw::setsid();
        raw::set_name(c"sbx-supervisor");
        // A spare is nothing without its nursery. One that has a launch outlives it.
        raw::die_with_parent();
        if raw::parent() != nursery {
            return None;
        }
        raw::become_subreaper().ok()?;
        let child_signals = raw::child_signal_fd().ok()?;
        // What the command gets has to be moved once only, if it does not come in where the standard streams go.
        for standard in 0..3 {
            if standard != child_signals {
                raw::dup_onto(child_signals, standard).ok()?;
            }
        }
        Some(Spare { host, notes, child_signals })
    }

    /// Waits for a launch: its bytes in the message, and its descriptors. Ends this process when there will be none.
    pub(crate) fn wait(&self, message: &mut [u8], fds: &mut [RawFd]) -> (usize, usize) {
        loop {
            raw::poll_two(self.host, -1, -1);
            let (length, count) = match raw::receive_with_fds(self.host, message, fds) {
                Err(Errno(libc::EAGAIN | libc::EINTR)) => continue,
                Ok((length @ 1.., count)) => (length, count),
                Ok(_) | Err(_) => raw::exit(0),
            };
            let word = |at: usize| {
                message.get(at..at.wrapping_add(8)).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes)
            };
            let note = match (word(0), word(8)) {
                (Some(id), Some(0)) => Note::Kill { id },
                (Some(id), Some(_)) if count > 0 => Note::Taken { id },
                _ => continue,
            };
            if raw::write(self.notes, &note.encode()) != Ok(NOTE_BYTES) {
                raw::exit(0);
            }
            if let Note::Taken { .. } = note {
                raw::live_without_parent();
                raw::close(self.host);
                raw::close(self.notes);
                return (length, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Note;

    #[test]
    fn every_note_survives_the_pipe() {
        for note in [Note::Taken { id: u64::MAX }, Note::Taken { id: 1 }, Note::Kill { id: 1 << 40 }] {
            assert_eq!(Note::decode(&note.encode()), note);
        }
    }
}
