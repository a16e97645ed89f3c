use std::{path::Path, time::Duration};

use sandbox_core::{ByteString, ExecRequest, Result, SandboxExecResult};

use super::{BlockingExecStream, runtime::wait};
use crate::SandboxSidecar;

/// [`SandboxSidecar`] for code that blocks. Had from [`Sandbox::sidecar`](crate::Sandbox::sidecar).
#[derive(Debug)]
pub struct BlockingSidecar<'a> {
    inner: SandboxSidecar<'a>,
    limit: Option<Duration>,
}

impl<'a> BlockingSidecar<'a> {
    pub(super) fn new(inner: SandboxSidecar<'a>, limit: Option<Duration>) -> Self {
        Self { inner, limit }
    }

    /// See [`SandboxSidecar::exec`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn exec(&self, request: ExecRequest) -> Result<SandboxExecResult> {
        wait("exec", self.limit, self.inner.exec(request))
    }

    /// See [`SandboxSidecar::exec_with_output`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn exec_with_output(
        &self,
        request: ExecRequest,
        on_stdout: impl FnMut(&str) + Send,
    ) -> Result<SandboxExecResult> {
        wait("exec", self.limit, self.inner.exec_with_output(request, on_stdout))
    }

    /// See [`SandboxSidecar::exec_stream`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn exec_stream(&self, request: ExecRequest) -> Result<BlockingExecStream> {
        wait("exec_stream", self.limit, self.inner.exec_stream(request)).map(BlockingExecStream::new)
    }

    /// See [`SandboxSidecar::download`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn download(&self, remote: impl Into<ByteString> + Send, local: impl AsRef<Path> + Send) -> Result<()> {
        wait("download", self.limit, self.inner.download(remote, local))
    }
}
