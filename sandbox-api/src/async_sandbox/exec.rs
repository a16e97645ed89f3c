use std::{future::Future, sync::Arc, time::Duration};

use sandbox_core::{Admitted, ByteString, ExecRequest, ExecStream, Field, Result, SandboxError, SandboxExecResult};
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    AsyncSandbox, ExecOptions,
    options::{BackgroundChildren, DefaultTimeout},
    state::Live,
};
use crate::{
    admission::Permit,
    checks, telemetry,
    timeouts::{DEFAULT_EXEC_TIMEOUT_S, EXEC_END_GRACE},
};

impl AsyncSandbox {
    /// Runs a command to its end.
    ///
    /// * A command that fails, is killed, runs into its limit or cannot be started is a result, not an error.
    /// * Without a limit in the request it has 180 s, or what the sandbox still has to live if that is less.
    ///   [`exec_with`](Self::exec_with) can ask for none.
    /// * A limit in the request that is longer than the sandbox still has to live is refused.
    /// * At most 16 MiB of each output stream are kept, head and tail.
    /// * A user or directory that the request does not name is the default one: that of
    ///   [`set_default_user`](Self::set_default_user), [`set_default_workdir`](Self::set_default_workdir), else the
    ///   spec's.
    /// * Dropping the future kills the command's whole process tree.
    ///
    /// # Errors
    /// `InvalidState` when the sandbox is not started or its life is over; `InvalidInput` for a wrong value; `Unsupported`
    /// for what the provider does not honour; `Lost` when contact broke off or the provider did not end the command at
    /// its limit; those of [`exec`](sandbox_core::SandboxProvider::exec).
    pub async fn exec(&self, request: ExecRequest) -> Result<SandboxExecResult> {
        self.exec_with(request, ExecOptions::new()).await
    }

    /// Runs a script with the sandbox's shell: [`exec`](Self::exec) of [`ExecRequest::shell`].
    ///
    /// # Errors
    /// As [`exec`](Self::exec).
    pub async fn run(&self, script: impl Into<ByteString> + Send) -> Result<SandboxExecResult> {
        self.exec(ExecRequest::shell(script)).await
    }

    /// [`exec`](Self::exec) with other defaults.
    ///
    /// # Errors
    /// As [`exec`](Self::exec).
    pub async fn exec_with(&self, request: ExecRequest, options: ExecOptions) -> Result<SandboxExecResult> {
        let command = self.prepare(request, options)?;
        let span = tracing::debug_span!(
            "sandbox.exec",
            provider = self.provider.name(),
            sandbox_id = %command.live.handle.sandbox_id,
            return_code = tracing::field::Empty,
            error_type = tracing::field::Empty,
            error_kind = tracing::field::Empty,
            duration_ms = tracing::field::Empty,
        );
        let limit = command.longest_wait();
        let work = async {
            // Its own limit begins when it has its turn.
            let _permit = match &self.admission {
                Some(admission) => admission.exec().await?,
                None => Permit::default(),
            };
            let began = Instant::now();
            let run = async { self.open(command).await?.collect(options.capture).await };
            let result = self.until_ended(limit, run).await?;
            let took = began.elapsed();
            telemetry::exec(self.provider.name(), took);
            let span = tracing::Span::current();
            span.record("return_code", result.return_code());
            span.record("error_type", result.error_type());
            span.record("duration_ms", took.as_secs_f64() * 1e3);
            tracing::debug!(return_code = result.return_code(), error_type = result.error_type(), "command over");
            Ok(result)
        };
        let result = work.instrument(span.clone()).await;
        result.inspect_err(|error| telemetry::failed(&span, error))
    }

    /// Starts a command and returns its output as it comes. Dropping the stream kills the command.
    ///
    /// The limits are those of [`exec`](Self::exec); nothing is kept, so output may be of any size.
    ///
    /// # Errors
    /// As [`exec`](Self::exec).
    pub async fn exec_stream(&self, request: ExecRequest) -> Result<ExecStream> {
        self.exec_stream_with(request, ExecOptions::new()).await
    }

    /// [`exec_stream`](Self::exec_stream) with other defaults. Capture limits mean nothing here.
    ///
    /// # Errors
    /// As [`exec`](Self::exec).
    pub async fn exec_stream_with(&self, request: ExecRequest, options: ExecOptions) -> Result<ExecStream> {
        let command = self.prepare(request, options)?;
        let limit = command.longest_wait();
        let permit = match &self.admission {
            Some(admission) => admission.stream().await?,
            None => Permit::default(),
        };
        Ok(self.until_ended(limit, self.open(command)).await?.with_guard(permit))
    }

    /// Checks a command and fills its defaults in.
    fn prepare(&self, mut request: ExecRequest, options: ExecOptions) -> Result<Command> {
        let live = self.cell.live()?;
        request.validate()?;
        checks::check_exec(self.info(), &request)?;
        self.limit_to_lifetime(&mut request, options.default_timeout, &live)?;
        if checks::takes_default(self.info(), Field::ExecCwd) {
            request.cwd = match request.cwd.take() {
                Some(cwd) => Some(live.resolve(cwd)),
                None => live.default_workdir.as_ref().or(live.spec.workdir.as_ref()).map(ByteString::from),
            };
        }
        if request.user.is_none() {
            request.user.clone_from(&live.default_user);
        }
        Ok(Command { live, request, background: options.background })
    }

    /// A command as its provider is to see it.
    pub(super) fn prepare_job(&self, request: ExecRequest, options: ExecOptions) -> Result<(Arc<Live>, ExecRequest)> {
        let Command { live, request, .. } = self.prepare(request, options)?;
        Ok((live, request))
    }

    fn limit_to_lifetime(&self, request: &mut ExecRequest, default: DefaultTimeout, live: &Live) -> Result<()> {
        let remaining_s = live.remaining().map(|remaining| remaining.as_secs_f64());
        match (request.timeout_s, remaining_s, default) {
            (Some(timeout_s), Some(remaining_s), _) if timeout_s > remaining_s => Err(SandboxError::invalid_input(
                "timeout_s",
                format!("{timeout_s} s is longer than the {remaining_s:.1} s that the sandbox has left to live"),
            )
            .with_help("ask for a shorter limit, or give the sandbox more time with renew() or a longer ttl_s")),
            (Some(_), ..) | (None, _, DefaultTimeout::None) => Ok(()),
            (None, Some(0.0), DefaultTimeout::Standard) => {
                Err(SandboxError::invalid_state("the life of the sandbox is over: its ttl_s has passed"))
            }
            (None, remaining_s, DefaultTimeout::Standard) => {
                if checks::takes_default(self.info(), Field::ExecTimeoutS) {
                    request.timeout_s = Some(DEFAULT_EXEC_TIMEOUT_S.min(remaining_s.unwrap_or(f64::INFINITY)));
                }
                Ok(())
            }
        }
    }

    async fn open(&self, command: Command) -> Result<ExecStream> {
        let Command { live, request, background } = command;
        match (background, self.provider.as_background_services()) {
            (BackgroundChildren::Preserve, Some(provider)) => {
                provider.exec_with_background_services(&live.handle, request).await
            }
            _ => self.provider.exec(&live.handle, request).await,
        }
    }

    /// Waits for a command that the provider should end at its own limit, and a little longer.
    pub(super) async fn until_ended<T>(
        &self,
        limit: Option<Duration>,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let result = match limit {
            Some(limit) => tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
                let message = format!(
                    "the provider did not end the command at its limit; given up after {} s",
                    limit.as_secs_f64()
                );
                Err(SandboxError::lost(message, Admitted::Unknown))
            }),
            None => work.await,
        };
        result.map_err(|error| error.with_provider(self.provider.name()))
    }
}

/// A command that has been checked.
struct Command {
    live: Arc<Live>,
    request: ExecRequest,
    background: BackgroundChildren,
}

impl Command {
    fn longest_wait(&self) -> Option<Duration> {
        self.request.timeout().map(|limit| limit + self.request.kill_grace() + EXEC_END_GRACE)
    }
}

impl Live {
    /// A path as the provider is to see it: relative ones are below the directory that was set on the live sandbox.
    /// Where none was set the provider resolves them against the workdir itself.
    pub(crate) fn resolve(&self, path: ByteString) -> ByteString {
        match &self.default_workdir {
            Some(workdir) if !path.as_bytes().starts_with(b"/") => {
                let mut joined = workdir.trim_end_matches('/').as_bytes().to_vec();
                joined.push(b'/');
                joined.extend_from_slice(path.as_bytes());
                ByteString::new(joined)
            }
            _ => path,
        }
    }
}
