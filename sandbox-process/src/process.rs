//! The caller's handles of one process.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::control::Shared;
use crate::error::ControlError;
use crate::event::{Ending, Event, Exit};
use crate::terminal::TerminalSize;

/// A running command and the stream of its events.
///
/// Dropping it before [`Event::Exit`] was received ends the whole tree at once and never blocks. After that event
/// the handle owns nothing: children in the background live on until the [`ProcessSet`](crate::ProcessSet) ends
/// them or [`Controller::kill_tree`] is called.
#[derive(Debug)]
pub struct Process {
    controller: Controller,
    events: mpsc::Receiver<Event>,
    started: Instant,
    exit_seen: bool,
}

impl Process {
    pub(crate) fn new(shared: Arc<Shared>, events: mpsc::Receiver<Event>, started: Instant) -> Process {
        Process { controller: Controller { shared }, events, started, exit_seen: false }
    }

    /// The process number of the command, which is also its group's and session's, as the host sees it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.controller.pid()
    }

    /// The next event; [`Event::Exit`] exactly once and last, then `None`. Cancel-safe: nothing is lost.
    ///
    /// A caller that does not take events stalls the command when its pipes are full, and nobody else.
    pub async fn next_event(&mut self) -> Option<Event> {
        if self.exit_seen {
            return None;
        }
        let event = self.events.recv().await.unwrap_or_else(|| {
            Event::Exit(Exit {
                ending: Ending::Lost,
                cpu_time: Duration::ZERO,
                peak_memory_bytes: 0,
                wall_time: self.started.elapsed(),
                output_open: false,
            })
        });
        self.exit_seen = matches!(event, Event::Exit(_));
        Some(event)
    }

    /// A handle to write to, signal and end the command while another task takes its events.
    #[must_use]
    pub fn controller(&self) -> Controller {
        self.controller.clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.exit_seen {
            self.controller.shared.request_kill_now();
        }
    }
}

/// Reaches a running command. Clones reach the same one; none of them keeps it alive.
#[derive(Clone)]
pub struct Controller {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller").field("pid", &self.pid()).finish_non_exhaustive()
    }
}

impl Controller {
    /// The process number of the command, as the host sees it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.shared.pid()
    }

    /// Sends a signal (1 to 64) to the command's process group. Children that left the group do not get it.
    ///
    /// # Errors
    /// [`Ended`](crate::ControlErrorKind::Ended), [`InvalidSignal`](crate::ControlErrorKind::InvalidSignal).
    pub fn signal(&self, signal: i32) -> Result<(), ControlError> {
        self.shared.signal(signal)
    }

    /// Sets the size of the command's terminal; the foreground group is told with SIGWINCH.
    ///
    /// # Errors
    /// [`NoTerminal`](crate::ControlErrorKind::NoTerminal), [`Ended`](crate::ControlErrorKind::Ended).
    pub fn resize(&self, size: TerminalSize) -> Result<(), ControlError> {
        self.shared.resize(size)
    }

    /// Ends the whole tree at once, without grace.
    pub fn kill_tree_now(&self) {
        self.shared.request_kill_now();
    }

    /// Ends the whole tree, with [`Limits::kill_grace`](crate::Limits::kill_grace) while the command runs. Also
    /// ends what a command that has exited left in the background. Returns at once; the [`Event::Exit`] tells.
    pub fn kill_tree(&self) {
        self.shared.request_kill();
    }

    /// Waits until nothing of the tree is left, background children included. Ends nothing itself. Cancel-safe.
    pub async fn tree_gone(&self) {
        self.shared.gone().await;
    }

    /// Writes all of `bytes` to the command's standard input, waiting while its pipe is full. Dropped halfway, a
    /// first part may have been written.
    ///
    /// # Errors
    /// [`BrokenPipe`](crate::ControlErrorKind::BrokenPipe) when the command does not read any more,
    /// [`StdinClosed`](crate::ControlErrorKind::StdinClosed) when there is no open input,
    /// [`Ended`](crate::ControlErrorKind::Ended). None of them fails the command.
    pub async fn write_stdin(&self, bytes: &[u8]) -> Result<(), ControlError> {
        self.shared.write_stdin(bytes).await
    }

    /// Closes the command's standard input after the writes that are under way. Closing twice is fine.
    pub async fn close_stdin(&self) {
        self.shared.close_stdin().await;
    }
}
