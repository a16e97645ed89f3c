use std::path::Path;

use sandbox_core::{
    ByteString, Capability, CaptureLimits, ExecCollector, ExecCommand, ExecEvent, ExecRequest, ExecStream, Result,
    SandboxError, SandboxExecResult, SandboxProvider, Sidecars, TextDecoder,
};

use super::AsyncSandbox;
use crate::{
    checks,
    timeouts::{DEFAULT_EXEC_TIMEOUT_S, EXEC_END_GRACE},
};

/// A container beside the main one. Had from [`AsyncSandbox::sidecar`].
#[derive(Debug)]
pub struct SandboxSidecar<'a> {
    sandbox: &'a AsyncSandbox,
    name: String,
}

impl AsyncSandbox {
    /// A declared sidecar of the running sandbox.
    ///
    /// # Errors
    /// `Unsupported`, then `InvalidState` when it is not started, then `InvalidInput` for a name that was not declared,
    /// with those that were.
    pub fn sidecar(&self, name: &str) -> Result<SandboxSidecar<'_>> {
        require(&*self.provider)?;
        let live = self.cell.live()?;
        if !live.spec.sidecars.iter().any(|sidecar| sidecar.name == name) {
            let declared: Vec<&str> = live.spec.sidecars.iter().map(|sidecar| sidecar.name.as_str()).collect();
            return Err(SandboxError::invalid_input(
                "sidecar",
                format!("{name:?} is not a declared sidecar of this sandbox; declared: {declared:?}"),
            ));
        }
        Ok(SandboxSidecar { sandbox: self, name: name.to_owned() })
    }
}

impl SandboxSidecar<'_> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a program without any shell, since the image may have none, and waits for its end. Without a limit in the
    /// request it has 180 s.
    ///
    /// # Errors
    /// `InvalidInput` for a script; those of [`AsyncSandbox::exec`].
    pub async fn exec(&self, request: ExecRequest) -> Result<SandboxExecResult> {
        self.exec_with_output(request, |_| {}).await
    }

    /// [`exec`](Self::exec) that hands standard output over as text while it comes. What is not UTF-8 shows as a
    /// replacement character; no character is cut.
    ///
    /// # Errors
    /// As [`exec`](Self::exec).
    pub async fn exec_with_output(
        &self,
        mut request: ExecRequest,
        mut on_stdout: impl FnMut(&str) + Send,
    ) -> Result<SandboxExecResult> {
        request.timeout_s.get_or_insert(DEFAULT_EXEC_TIMEOUT_S);
        let limit = request.timeout().map(|limit| limit + request.kill_grace() + EXEC_END_GRACE);
        let run = async {
            let mut stream = self.exec_stream(request).await?;
            let (mut decoder, mut collector) = (TextDecoder::default(), ExecCollector::new(CaptureLimits::default()));
            while let Some(event) = stream.next().await? {
                if let ExecEvent::Stdout(bytes) = &event {
                    let text = decoder.push(bytes);
                    if !text.is_empty() {
                        on_stdout(&text);
                    }
                }
                if let Some(result) = collector.push(event) {
                    let rest = decoder.finish();
                    if !rest.is_empty() {
                        on_stdout(&rest);
                    }
                    return Ok(result);
                }
            }
            Err(SandboxError::lost("the exec broke off without an end", sandbox_core::Admitted::Yes))
        };
        self.sandbox.until_ended(limit, run).await
    }

    /// Starts a program and returns its output as it comes, for following a service. Without a limit in the request it
    /// has none. Dropping the stream kills the program.
    ///
    /// # Errors
    /// As [`exec`](Self::exec).
    pub async fn exec_stream(&self, request: ExecRequest) -> Result<ExecStream> {
        if !matches!(request.command, ExecCommand::Argv(_)) {
            return Err(SandboxError::invalid_input(
                "command",
                "a sidecar takes a program and its arguments, no script",
            ));
        }
        request.validate()?;
        let provider = &*self.sandbox.provider;
        checks::check_exec(self.sandbox.info(), &request)?;
        let live = self.sandbox.cell.live()?;
        let exec = require(provider)?.sidecar_exec(&live.handle, self.name.clone(), request);
        exec.await.map_err(|error| error.with_provider(provider.name()))
    }

    /// Copies a regular file of the sidecar's own file system to this host.
    ///
    /// # Errors
    /// Those of [`AsyncSandbox::download`].
    pub async fn download(&self, remote: impl Into<ByteString> + Send, local: impl AsRef<Path> + Send) -> Result<()> {
        let live = self.sandbox.cell.live()?;
        let remote = remote.into();
        let download = require(&*self.sandbox.provider)?;
        let download = download.download_sidecar_file(&live.handle, &self.name, &remote, local.as_ref());
        self.sandbox.call("download", self.sandbox.timeouts.transfer, download).await
    }
}

fn require(provider: &dyn SandboxProvider) -> Result<&dyn Sidecars> {
    checks::require(provider.name(), provider.as_sidecars(), Capability::Sidecars)
}
