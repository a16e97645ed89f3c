use std::{path::Path, sync::Arc, time::Duration};

use sandbox_core::{
    ByteString, DirEntry, ExecExit, ExecRequest, FileStat, JobInfo, JobOffsets, ProviderInfo, ReadRange, Result,
    SandboxEndpoint, SandboxExecResult, SandboxHandle, SandboxMetrics, SandboxProvider, SandboxSpec, SandboxStatus,
    Snapshot, WriteOptions, bytes::Bytes,
};
use serde_json::Value;

use super::{
    BlockingExecStream, BlockingPty, BlockingSidecar,
    runtime::{DEFAULT_OPERATION_TIMEOUT, refuse_in_async_code, wait},
};
use crate::{Admission, AsyncSandbox, ControlTimeouts, ExecOptions, Ownership, Supervised, timeouts::EXEC_END_GRACE};

/// [`AsyncSandbox`] for code without an async runtime: the same methods, each of which blocks.
///
/// * The rules are those of [`AsyncSandbox`], a failed [`stop`](Self::stop) that can be repeated among them.
/// * In async code every method fails with `InvalidState` and says so; in `spawn_blocking` they work.
/// * The work runs on two threads of the library's own, shared by all blocking sandboxes of the process.
/// * Each call takes [`DEFAULT_OPERATION_TIMEOUT`](crate::DEFAULT_OPERATION_TIMEOUT) at most, unless
///   [`with_operation_timeout`](Self::with_operation_timeout) says otherwise; then it fails with `TimedOut` and is
///   cancelled. A command whose own limit is longer is not cut by it.
/// * Dropping a started one queues its removal; see [`flush_cleanup_blocking`](crate::flush_cleanup_blocking).
#[derive(Debug)]
pub struct Sandbox {
    inner: AsyncSandbox,
    limit: Option<Duration>,
}

impl Sandbox {
    /// An object for one sandbox of this provider, which it owns. Nothing is created yet.
    ///
    /// # Errors
    /// `InvalidState` in async code.
    pub fn new(provider: Arc<dyn SandboxProvider>) -> Result<Self> {
        refuse_in_async_code("new")?;
        Ok(Self::of(AsyncSandbox::new(provider)))
    }

    /// See [`AsyncSandbox::from_config`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn from_config(config: &Value) -> Result<Self> {
        refuse_in_async_code("from_config")?;
        AsyncSandbox::from_config(config).map(Self::of)
    }

    /// See [`AsyncSandbox::connect`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn connect(provider: Arc<dyn SandboxProvider>, descriptor: Value) -> Result<Self> {
        wait("connect", Some(DEFAULT_OPERATION_TIMEOUT), AsyncSandbox::connect(provider, descriptor)).map(Self::of)
    }

    fn of(inner: AsyncSandbox) -> Self {
        Self { inner, limit: Some(DEFAULT_OPERATION_TIMEOUT) }
    }

    /// Sets how long each call may take; none: as long as it takes.
    #[must_use]
    pub fn with_operation_timeout(self, limit: Option<Duration>) -> Self {
        Self { limit, ..self }
    }

    /// Terminal sessions. See [`AsyncSandbox::pty`].
    pub fn pty(&self) -> BlockingPty<'_> {
        BlockingPty::new(self.inner.pty(), self.limit)
    }

    /// A declared sidecar. See [`AsyncSandbox::sidecar`].
    ///
    /// # Errors
    /// As there.
    pub fn sidecar(&self, name: &str) -> Result<BlockingSidecar<'_>> {
        Ok(BlockingSidecar::new(self.inner.sidecar(name)?, self.limit))
    }

    /// See [`AsyncSandbox::start_with_setup`]. The setup gets this object and may block.
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn start_with_setup<T>(&self, spec: Option<SandboxSpec>, setup: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.start(spec)?;
        let unless_finished = StopOnUnwind(Some(self));
        let result = setup(self);
        unless_finished.disarm();
        result.or_else(|error| Err(wait("stop", self.limit, async { Ok(self.inner.stop_after(error).await) })?))
    }

    /// Sets the spec for a `start` without one.
    #[must_use]
    pub fn with_spec(self, spec: SandboxSpec) -> Self {
        Self { inner: self.inner.with_spec(spec), ..self }
    }

    /// Says whether the object ends its provider when it ends itself.
    #[must_use]
    pub fn with_ownership(self, ownership: Ownership) -> Self {
        Self { inner: self.inner.with_ownership(ownership), ..self }
    }

    /// Sets how long control calls may take.
    #[must_use]
    pub fn with_timeouts(self, timeouts: ControlTimeouts) -> Self {
        Self { inner: self.inner.with_timeouts(timeouts), ..self }
    }

    /// Keeps the limits that all sandboxes of its provider share.
    #[must_use]
    pub fn with_admission(self, admission: &Admission) -> Self {
        Self { inner: self.inner.with_admission(admission), ..self }
    }

    /// Whether the object ends its provider when it ends itself.
    pub fn owns_provider(&self) -> Ownership {
        self.inner.owns_provider()
    }

    /// The provider.
    pub fn provider(&self) -> &Arc<dyn SandboxProvider> {
        self.inner.provider()
    }

    /// What the provider says of itself.
    pub fn info(&self) -> &ProviderInfo {
        self.inner.info()
    }

    /// What names the sandbox on its provider's side.
    ///
    /// # Errors
    /// `InvalidState` when it is not started.
    pub fn handle(&self) -> Result<SandboxHandle> {
        self.inner.handle()
    }

    /// See [`AsyncSandbox::set_default_user`].
    ///
    /// # Errors
    /// As there.
    pub fn set_default_user(&self, user: Option<&str>) -> Result<()> {
        self.inner.set_default_user(user)
    }

    /// See [`AsyncSandbox::set_default_workdir`].
    ///
    /// # Errors
    /// As there.
    pub fn set_default_workdir(&self, workdir: Option<&str>) -> Result<()> {
        self.inner.set_default_workdir(workdir)
    }

    /// See [`AsyncSandbox::exec_stream`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn exec_stream(&self, request: ExecRequest) -> Result<BlockingExecStream> {
        wait("exec_stream", self.limit, self.inner.exec_stream(request)).map(BlockingExecStream::new)
    }

    /// See [`AsyncSandbox::exec_stream_with`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn exec_stream_with(&self, request: ExecRequest, options: ExecOptions) -> Result<BlockingExecStream> {
        wait("exec_stream", self.limit, self.inner.exec_stream_with(request, options)).map(BlockingExecStream::new)
    }
}

/// Commands: the operation's limit does not cut one whose own is longer.
impl Sandbox {
    /// See [`AsyncSandbox::exec`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn exec(&self, request: ExecRequest) -> Result<SandboxExecResult> {
        self.exec_with(request, ExecOptions::new())
    }

    /// See [`AsyncSandbox::exec_with`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn exec_with(&self, request: ExecRequest, options: ExecOptions) -> Result<SandboxExecResult> {
        let own = request.timeout().map(|limit| limit + request.kill_grace() + EXEC_END_GRACE);
        let limit = self.limit.map(|limit| limit.max(own.unwrap_or_default()));
        wait("exec", limit, self.inner.exec_with(request, options))
    }

    /// See [`AsyncSandbox::attach_job`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn attach_job(&self, job_id: &str, since: JobOffsets) -> Result<BlockingExecStream> {
        wait("attach_job", self.limit, self.inner.attach_job(job_id, since)).map(BlockingExecStream::new)
    }

    /// See [`AsyncSandbox::wait_job`]. Without a limit the operation's own one counts.
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn wait_job(&self, job_id: &str, limit: Option<Duration>) -> Result<Option<ExecExit>> {
        let longest = self.limit.map(|own| own.max(limit.unwrap_or_default().saturating_add(EXEC_END_GRACE)));
        wait("wait_job", longest, self.inner.wait_job(job_id, limit))
    }

    /// See [`AsyncSandbox::supervise`].
    ///
    /// # Errors
    /// As there, and `InvalidState` in async code.
    pub fn supervise<A: Into<ByteString>>(
        &self,
        argv: impl IntoIterator<Item = A>,
        timeout: Duration,
        cleanup_timeout: Duration,
    ) -> Result<Supervised> {
        let argv: Vec<ByteString> = argv.into_iter().map(Into::into).collect();
        // It has limits of its own.
        wait("supervise", None, self.inner.supervise(argv, timeout, cleanup_timeout))
    }
}

/// Removes the sandbox in the background if the setup panics.
struct StopOnUnwind<'a>(Option<&'a Sandbox>);

impl StopOnUnwind<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnUnwind<'_> {
    fn drop(&mut self) {
        if let Some(sandbox) = self.0 {
            sandbox.inner.abandon();
        }
    }
}

macro_rules! mirrored {
    ($($verb:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        impl Sandbox {
            $(
                #[doc = concat!("See [`AsyncSandbox::", stringify!($verb), "`].")]
                ///
                /// # Errors
                /// As there, and `InvalidState` in async code.
                pub fn $verb(&self, $($argument: $kind),*) -> Result<$result> {
                    wait(stringify!($verb), self.limit, self.inner.$verb($($argument),*))
                }
            )*
        }
    };
}

mirrored! {
    start(spec: Option<SandboxSpec>) -> ();
    stop() -> ();
    status() -> SandboxStatus;
    run(script: impl Into<ByteString> + Send) -> SandboxExecResult;
    upload(local: impl AsRef<Path> + Send, remote: impl Into<ByteString> + Send) -> ();
    download(remote: impl Into<ByteString> + Send, local: impl AsRef<Path> + Send) -> ();
    read_file(path: impl Into<ByteString> + Send) -> Bytes;
    read_file_range(path: impl Into<ByteString> + Send, range: ReadRange) -> Bytes;
    write_file(path: impl Into<ByteString> + Send, contents: impl Into<Bytes> + Send) -> ();
    write_file_with(
        path: impl Into<ByteString> + Send, contents: impl Into<Bytes> + Send, options: WriteOptions
    ) -> ();
    upload_dir(local: impl AsRef<Path> + Send, remote: impl Into<ByteString> + Send) -> ();
    download_dir(remote: impl Into<ByteString> + Send, local: impl AsRef<Path> + Send) -> ();
    list(path: impl Into<ByteString> + Send) -> Vec<DirEntry>;
    stat(path: impl Into<ByteString> + Send) -> FileStat;
    remove(path: impl Into<ByteString> + Send) -> ();
    remove_all(path: impl Into<ByteString> + Send) -> ();
    make_dir(path: impl Into<ByteString> + Send) -> ();
    endpoint(port: u16) -> SandboxEndpoint;
    pause() -> ();
    resume() -> ();
    renew(ttl_s: f64) -> u64;
    create_snapshot(name: &str) -> Snapshot;
    start_job(request: ExecRequest) -> JobInfo;
    jobs() -> Vec<JobInfo>;
    signal_job(job_id: &str, signal: i32, tree: bool) -> ();
    metrics() -> SandboxMetrics;
    serialize(scope: Option<&str>) -> Value;
    disconnect() -> ();
    leave() -> ();
}
