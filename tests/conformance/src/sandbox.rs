//! A sandbox as the cases use it: requests are checked first, as a host does, and every wait has a limit.

use std::{sync::Arc, time::Duration};

use sandbox_core::{
    ByteString, CaptureLimits, ExecOutcome, ExecRequest, ExecStream, Result, SandboxExecResult, SandboxHandle,
    SandboxProvider,
};

use crate::{
    check::{Check, Stop, show},
    context::Context,
    host::{eventually, within},
};

/// How long an ordinary command may take before the case fails.
pub(crate) const RUN_WITHIN: Duration = Duration::from_secs(30);

/// A sandbox of a case.
#[derive(Clone)]
pub(crate) struct TestSandbox {
    context: Context,
    handle: SandboxHandle,
}

impl TestSandbox {
    pub(crate) fn new(context: Context, handle: SandboxHandle) -> Self {
        Self { context, handle }
    }

    pub(crate) fn handle(&self) -> &SandboxHandle {
        &self.handle
    }

    pub(crate) fn provider(&self) -> &Arc<dyn SandboxProvider> {
        self.context.provider()
    }

    /// Starts a command. Skips the case when a field is refused.
    pub(crate) async fn start(&self, request: ExecRequest) -> Check<ExecStream> {
        request.validate()?;
        self.context.info().check_exec(&request).map_err(|error| Stop::skipped(error.message()))?;
        Ok(within(RUN_WITHIN, "the start of a command", self.provider().exec(&self.handle, request)).await??)
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, request: ExecRequest) -> Check<SandboxExecResult> {
        self.run_within(RUN_WITHIN, request).await
    }

    /// Runs a command that must end within a time.
    pub(crate) async fn run_within(&self, limit: Duration, request: ExecRequest) -> Check<SandboxExecResult> {
        let all = async { Ok(self.start(request).await?.collect(CaptureLimits::default()).await?) };
        within(limit, "the command", all).await?
    }

    /// Runs a script to its end, whatever that is.
    pub(crate) async fn sh(&self, script: impl Into<ByteString>) -> Check<SandboxExecResult> {
        self.run(ExecRequest::shell(script)).await
    }

    /// Runs a script that must succeed and gives its output.
    pub(crate) async fn bytes(&self, script: impl Into<ByteString>) -> Check<Vec<u8>> {
        let result = self.sh(script).await?;
        ensure!(
            result.outcome().is_success(),
            "a script of the suite ended with {:?}, stderr {}",
            result.outcome(),
            show(&result.stderr)
        );
        Ok(result.stdout)
    }

    /// Runs a script that must succeed and gives its output as text without the last line end.
    pub(crate) async fn text(&self, script: impl Into<ByteString>) -> Check<String> {
        Ok(String::from_utf8_lossy(&self.bytes(script).await?).trim_end().to_owned())
    }

    /// Runs a command that must end with this code.
    pub(crate) async fn expect_exit(&self, request: ExecRequest, code: i32) -> Check<SandboxExecResult> {
        let result = self.run(request).await?;
        ensure_eq!(*result.outcome(), ExecOutcome::Exited(code), "outcome");
        Ok(result)
    }

    /// Skips the case when a program is not in the sandbox.
    pub(crate) async fn needs_program(&self, program: &str) -> Check {
        let found = self.sh(format!("command -v {program}")).await?;
        if found.outcome().is_success() { Ok(()) } else { Err(Stop::skipped(format!("the image has no {program}"))) }
    }

    /// The default working directory.
    pub(crate) async fn pwd(&self) -> Check<String> {
        self.text("pwd").await
    }

    /// The lines of a listing of the default working directory.
    pub(crate) async fn names(&self) -> Check<Vec<String>> {
        Ok(self.text("ls -A").await?.lines().map(str::to_owned).collect())
    }

    /// Asks a script again and again until it succeeds.
    pub(crate) async fn eventually(&self, limit: Duration, script: &str) -> Check<bool> {
        let is_true = async || self.sh(script).await.is_ok_and(|result| result.outcome().is_success());
        Ok(eventually(limit, is_true).await)
    }

    /// Fails unless a file is there for this long and does not grow. The wait is the measurement.
    pub(crate) async fn ensure_still(&self, file: &str, for_long: Duration) -> Check {
        let before = self.text(format!("wc -c < {file}")).await?;
        tokio::time::sleep(for_long).await;
        let after = self.text(format!("wc -c < {file}")).await?;
        ensure!(before == after, "a process went on writing: {before} bytes, then {after}");
        Ok(())
    }

    /// Uploads bytes as a file.
    pub(crate) async fn put(&self, remote: impl Into<ByteString>, bytes: &[u8]) -> Check {
        let local = self.context.local("put");
        std::fs::write(&local, bytes)?;
        let remote = remote.into();
        Ok(within(RUN_WITHIN, "upload", self.provider().upload_file(&self.handle, &local, &remote)).await??)
    }

    /// Uploads bytes as a file and gives the provider's answer.
    pub(crate) async fn try_put(&self, remote: impl Into<ByteString>, bytes: &[u8]) -> Check<Result<()>> {
        let local = self.context.local("try-put");
        std::fs::write(&local, bytes)?;
        let remote = remote.into();
        within(RUN_WITHIN, "upload", self.provider().upload_file(&self.handle, &local, &remote)).await
    }

    /// Downloads a file into the case's folder under this name and gives the provider's answer.
    pub(crate) async fn try_get(&self, remote: impl Into<ByteString>, name: &str) -> Check<Result<()>> {
        let (remote, local) = (remote.into(), self.context.local(name));
        within(RUN_WITHIN, "download", self.provider().download_file(&self.handle, &remote, &local)).await
    }

    /// Downloads a file and gives its bytes.
    pub(crate) async fn get(&self, remote: impl Into<ByteString>) -> Check<Vec<u8>> {
        let name = format!("get-{}", crate::bytes::token());
        self.try_get(remote, &name).await??;
        Ok(std::fs::read(self.context.local(&name))?)
    }

    /// Closes it now.
    pub(crate) async fn close(&self) -> Check {
        Ok(within(RUN_WITHIN, "close", self.provider().close(&self.handle)).await??)
    }
}
