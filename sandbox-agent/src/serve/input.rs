//! The input of a job: taken once, in order, whichever clients bring it.
//!
//! What is taken is the job's: it is written by a task of the job's own, so that a client that is lost in the middle of
//! a write leaves no half of it, and the count of what was taken tells the next one where to go on.

use std::{borrow::Cow, collections::VecDeque, sync::Arc};

use bytes::Bytes;
use sandbox_core::{ErrorKind, Result, SandboxError};

use super::{
    attachment::control,
    job::{Job, JobKind},
};

/// Input that was taken and is not written yet, before the next one has to wait.
const WAITING_MAX: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Input {
    waiting: VecDeque<Item>,
    waiting_bytes: usize,
    /// Bytes that were ever taken.
    pub(super) taken: u64,
    pub(super) is_closed: bool,
    /// A task writes.
    is_fed: bool,
    /// Why nothing is taken any more.
    broken: Option<(ErrorKind, Cow<'static, str>)>,
}

#[derive(Debug)]
enum Item {
    Bytes(Bytes),
    /// The end; for a terminal only the sign for it.
    Close,
}

impl Input {
    /// Takes nothing from now on.
    pub(super) fn refuse(&mut self, why: &'static str) {
        self.broken = Some((ErrorKind::InvalidState, why.into()));
    }

    fn check(&self) -> Result<()> {
        match &self.broken {
            Some((kind, message)) => Err(SandboxError::new(*kind, message.to_string())),
            None if self.is_closed => Err(SandboxError::invalid_state("the input is closed")),
            None => Ok(()),
        }
    }
}

/// Takes input from the client of this number, when there is room for it. A dropped call has taken nothing or all.
///
/// # Errors
/// `InvalidState` when the client was replaced, the input is closed, or the command takes none or is over.
pub(super) async fn write(job: &Arc<Job>, client: u64, bytes: Bytes) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    loop {
        let mut room = std::pin::pin!(job.input_room.notified());
        room.as_mut().enable();
        {
            let mut state = job.state();
            super::attachment::check_client(&state, client)?;
            state.input.check()?;
            if state.end.is_some() {
                return Err(super::attachment::ended());
            }
            let input = &mut state.input;
            if input.waiting_bytes == 0 || input.waiting_bytes + bytes.len() <= WAITING_MAX {
                input.waiting_bytes += bytes.len();
                input.taken += bytes.len() as u64;
                input.waiting.push_back(Item::Bytes(bytes));
                feed(job, input);
                return Ok(());
            }
        }
        room.await;
    }
}

/// Closes the input behind what was taken. Closing twice is fine.
pub(super) fn close(job: &Arc<Job>, client: u64) -> Result<()> {
    let mut state = job.state();
    super::attachment::check_client(&state, client)?;
    if state.end.is_some() || state.input.is_closed || state.input.broken.is_some() {
        return Ok(());
    }
    // A terminal has no end: more may follow.
    state.input.is_closed = job.kind != JobKind::Terminal;
    state.input.waiting.push_back(Item::Close);
    feed(job, &mut state.input);
    Ok(())
}

fn feed(job: &Arc<Job>, input: &mut Input) {
    if !std::mem::replace(&mut input.is_fed, true) {
        let job = job.clone();
        tokio::spawn(async move {
            if let Err(error) = write_all(&job).await {
                let mut state = job.state();
                state.input.broken = Some((error.kind(), error.message().to_owned().into()));
                state.input.waiting.clear();
                state.input.waiting_bytes = 0;
                state.input.is_fed = false;
            }
            job.input_room.notify_waiters();
        });
    }
}

/// Writes until nothing waits.
async fn write_all(job: &Job) -> Result<()> {
    let controller = job.started().await.ok_or_else(super::attachment::ended)?;
    loop {
        let item = {
            let mut state = job.state();
            let item = state.input.waiting.pop_front();
            state.input.is_fed = item.is_some();
            item
        };
        match item {
            None => return Ok(()),
            Some(Item::Close) => controller.close_stdin().await,
            Some(Item::Bytes(bytes)) => {
                controller.write_stdin(&bytes).await.map_err(control)?;
                job.state().input.waiting_bytes -= bytes.len();
                job.input_room.notify_waiters();
            }
        }
    }
}
