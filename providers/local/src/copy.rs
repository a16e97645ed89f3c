//! Copying the contents of one file.

use std::{
    fs::File,
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use sandbox_core::{Result, SandboxError};
use tokio::sync::watch;

use crate::{error::not_open, fate::Fate};

/// How much is copied between two looks at whether anybody still wants it.
const STEP_BYTES: u64 = 8 * 1024 * 1024;

/// Tells work on another thread that it is not wanted any more.
#[derive(Clone, Debug)]
pub(crate) struct Cancel {
    pub(crate) id: String,
    pub(crate) fate: watch::Receiver<Fate>,
    pub(crate) is_dropped: Arc<AtomicBool>,
}

impl Cancel {
    pub(crate) fn check(&self) -> Result<()> {
        match *self.fate.borrow() {
            Fate::Open if self.is_dropped.load(Ordering::Relaxed) => Err(SandboxError::invalid_state("cancelled")),
            Fate::Open => Ok(()),
            fate => Err(not_open(&self.id, fate)),
        }
    }
}

/// Copies to the end of the source, by the kernel alone where it can. Both are named in errors.
pub(crate) fn copy(from: (&File, &str), to: (&File, &str), cancel: &Cancel) -> Result<u64> {
    let mut total = 0;
    loop {
        cancel.check()?;
        let mut to_file = to.0;
        let copied = io::copy(&mut from.0.take(STEP_BYTES), &mut to_file)
            .map_err(|error| SandboxError::io(format!("copying {} to {}", from.1, to.1), error))?;
        total += copied;
        // Only the end of the source gives less than was asked for.
        if copied < STEP_BYTES {
            return Ok(total);
        }
    }
}
