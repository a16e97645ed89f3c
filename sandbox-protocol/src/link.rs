//! The sending half of one stream, and what received data counts for.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use sandbox_core::SandboxError;
use tokio::sync::Semaphore;

use crate::{limits::MAX_PENDING_CONTROLS, wire_error};

/// What every user of a stream shares.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: u32,
    /// Bytes that the peer lets us send; closed when the stream takes no more.
    pub(crate) credit: Semaphore,
    /// Places for control requests.
    pub(crate) controls: Arc<Semaphore>,
    pub(crate) is_input_closed: AtomicBool,
    next_control: AtomicU64,
    // As it came, because errors cannot be cloned.
    stopped: Mutex<Option<Vec<u8>>>,
}

impl Link {
    pub(crate) fn new(id: u32, credit: u32) -> Arc<Self> {
        Arc::new(Self {
            id,
            credit: Semaphore::new(credit as usize),
            controls: Arc::new(Semaphore::new(MAX_PENDING_CONTROLS)),
            is_input_closed: AtomicBool::new(false),
            next_control: AtomicU64::new(1),
            stopped: Mutex::new(None),
        })
    }

    pub(crate) fn next_control(&self) -> u64 {
        self.next_control.fetch_add(1, Ordering::Relaxed)
    }

    /// The peer takes no more input, for this reason.
    pub(crate) fn stop(&self, error: &[u8]) {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.to_vec());
        self.credit.close();
    }

    /// Why the peer takes no more input, if it said so.
    pub(crate) fn stopped(&self) -> Option<SandboxError> {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.as_deref().map(wire_error::decode)
    }

    pub(crate) fn close(&self) {
        self.credit.close();
        self.controls.close();
    }
}

/// Counts what a connection holds for readers that have not taken it.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl HeldBytes {
    pub(crate) fn hold(self: &Arc<Self>, bytes: u32) -> Held {
        let bytes = bytes as usize;
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
        Held { counter: self.clone(), bytes }
    }

    pub(crate) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }
}

/// Counts bytes for as long as it lives.
#[derive(Debug)]
pub(crate) struct Held {
    counter: Arc<HeldBytes>,
    bytes: usize,
}

impl Held {
    /// In credit: what the peer paid for the frame.
    pub(crate) fn cost(&self) -> u32 {
        self.bytes as u32
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counter.now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
