use sandbox_core::{CaptureLimits, ExecEvent, ExecStream, Result, SandboxExecResult, bytes::Bytes};

use super::runtime::{DEFAULT_OPERATION_TIMEOUT, wait};

/// A running command. Dropping it before the end kills the command's whole process tree.
///
/// Every method blocks, and fails with `InvalidState` in async code.
///
/// Reading has no limit of its own: the command's own limit ends it.
#[derive(Debug)]
pub struct BlockingExecStream(ExecStream);

impl BlockingExecStream {
    pub(super) fn new(stream: ExecStream) -> Self {
        Self(stream)
    }

    /// Waits for the next event; none after the last.
    ///
    /// # Errors
    /// `Lost` when the stream breaks off before its end.
    pub fn next_event(&mut self) -> Result<Option<ExecEvent>> {
        wait("next_event", None, self.0.next())
    }

    /// Writes input.
    ///
    /// # Errors
    /// `InvalidState` when the input is closed or was never open.
    pub fn write(&self, data: impl Into<Bytes>) -> Result<()> {
        wait("write", Some(DEFAULT_OPERATION_TIMEOUT), self.0.write(data))
    }

    /// Says that no more input will come.
    ///
    /// # Errors
    /// `InvalidState` after the end.
    pub fn close_input(&self) -> Result<()> {
        wait("close_input", Some(DEFAULT_OPERATION_TIMEOUT), self.0.close_input())
    }

    /// Sends a signal to the process group.
    ///
    /// # Errors
    /// `InvalidState` after the end; `Unsupported`.
    pub fn signal(&self, signal: i32) -> Result<()> {
        wait("signal", Some(DEFAULT_OPERATION_TIMEOUT), self.0.signal(signal))
    }

    /// Kills the whole process tree. The last event still comes.
    ///
    /// # Errors
    /// `InvalidState` after the end.
    pub fn kill(&self) -> Result<()> {
        wait("kill", Some(DEFAULT_OPERATION_TIMEOUT), self.0.kill())
    }

    /// Reads to the end and keeps the output within the limits.
    ///
    /// # Errors
    /// `Lost` when the stream breaks off before its end.
    pub fn collect(self, limits: CaptureLimits) -> Result<SandboxExecResult> {
        wait("collect", None, self.0.collect(limits))
    }
}

impl Iterator for BlockingExecStream {
    type Item = Result<ExecEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_event().transpose()
    }
}
