use std::time::Duration;

use sandbox_core::{AttachOptions, ByteString, ExecExit, Result, SandboxExecResult, SandboxPtySpec, bytes::Bytes};

use super::runtime::wait;
use crate::{PtyChunk, PtyExec, PtyMode, SandboxPty, SandboxPtySession};

/// [`SandboxPty`] for code that blocks. Had from [`Sandbox::pty`](crate::Sandbox::pty).
#[derive(Debug)]
pub struct BlockingPty<'a> {
    inner: SandboxPty<'a>,
    limit: Option<Duration>,
}

impl<'a> BlockingPty<'a> {
    pub(super) fn new(inner: SandboxPty<'a>, limit: Option<Duration>) -> Self {
        Self { inner, limit }
    }

    /// See [`SandboxPty::create`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn create(&self, spec: SandboxPtySpec) -> Result<BlockingPtySession> {
        let inner = wait("create", self.limit, self.inner.create(spec))?;
        Ok(BlockingPtySession { inner, limit: self.limit })
    }

    /// See [`SandboxPty::attach`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn attach(&self, session_id: &str, options: AttachOptions) -> Result<BlockingPtySession> {
        let inner = wait("attach", self.limit, self.inner.attach(session_id, options))?;
        Ok(BlockingPtySession { inner, limit: self.limit })
    }

    /// See [`SandboxPty::exec`]. Its own limit is the one that counts.
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn exec(&self, command: PtyExec) -> Result<SandboxExecResult> {
        wait("exec", None, self.inner.exec(command))
    }
}

/// [`SandboxPtySession`] for code that blocks. A clone is the same session: one thread may read while another writes.
///
/// As an iterator it gives the output up to its end.
#[derive(Clone, Debug)]
pub struct BlockingPtySession {
    inner: SandboxPtySession,
    limit: Option<Duration>,
}

impl BlockingPtySession {
    /// What a [`PtyExec`] takes.
    pub fn session(&self) -> &SandboxPtySession {
        &self.inner
    }

    /// See [`SandboxPtySession::session_id`].
    pub fn session_id(&self) -> &str {
        self.inner.session_id()
    }

    /// See [`SandboxPtySession::mode`].
    pub fn mode(&self) -> Option<PtyMode> {
        self.inner.mode()
    }

    /// See [`SandboxPtySession::closed`].
    pub fn closed(&self) -> bool {
        self.inner.closed()
    }

    /// See [`SandboxPtySession::run_detached`]. Waits as long as it takes.
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn run_detached(
        &self,
        command: impl Into<ByteString> + Send,
        poll_interval: Duration,
    ) -> Result<SandboxExecResult> {
        wait("run_detached", None, self.inner.run_detached(command, poll_interval))
    }
}

macro_rules! mirrored {
    ($($verb:ident($($argument:ident: $kind:ty),*) -> $result:ty, $limit:expr;)*) => {
        impl BlockingPtySession {
            $(
                #[doc = concat!("See [`SandboxPtySession::", stringify!($verb), "`].")]
                ///
                /// # Errors
                /// As there, and `InvalidState` in async code.
                pub fn $verb(&self, $($argument: $kind),*) -> Result<$result> {
                    let limit: fn(&Self) -> Option<Duration> = $limit;
                    wait(stringify!($verb), limit(self), self.inner.$verb($($argument),*))
                }
            )*
        }
    };
}

mirrored! {
    // These wait for a program, and have a limit of their own.
    read(timeout: Option<Duration>) -> Option<PtyChunk>, |_| None;
    read_stderr(timeout: Option<Duration>) -> Option<PtyChunk>, |_| None;
    wait_exit(timeout: Option<Duration>) -> ExecExit, |_| None;
    write(data: impl Into<Bytes> + Send) -> (), |session| session.limit;
    close_input() -> (), |session| session.limit;
    resize(rows: u16, cols: u16) -> (), |session| session.limit;
    send_signal(name: &str) -> (), |session| session.limit;
    detach() -> (), |session| session.limit;
    reattach() -> (), |session| session.limit;
    close() -> (), |session| session.limit;
}

impl Iterator for BlockingPtySession {
    type Item = Result<PtyChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read(None).transpose()
    }
}
