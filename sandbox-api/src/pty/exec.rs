use std::{future::Future, time::Duration};

use sandbox_core::{
    ByteString, ErrorKind, ExecCollector, ExecEvent, ExecExit, ExecOutcome, Result, SandboxError, SandboxExecResult,
    bytes::Bytes,
};

use super::{PtyExec, SandboxPty, SandboxPtySession, source::Happening};
use crate::checks;

impl SandboxPty<'_> {
    /// Runs a command in a session.
    ///
    /// | how | when | the session |
    /// |---|---|---|
    /// | in the default shell | nothing shapes it, and a shell lives | stays, with what the command changed |
    /// | in a given one | [`with_session`](PtyExec::with_session) | stays |
    /// | in one of its own | else | closed |
    /// | detached | [`detached`](PtyExec::detached) | as above; a shell of its own, or the given one |
    ///
    /// * In a session one command runs at a time; waiting for it counts towards the limit. The text goes to the shell
    ///   as data, and its input is at end-of-file.
    /// * Standard output is exactly what the command wrote; a terminal writes line ends as `\r\n` and has no standard
    ///   error of its own.
    /// * The limit ends in a result with `error_type` `timeout` and what was written so far. The default shell is then
    ///   closed and forgotten; discard a given session, since its command may still run.
    /// * Dropping the future closes a session of its own and the default shell; a given one is left as it is.
    ///
    /// # Errors
    /// `Unsupported`, then `InvalidState` when the sandbox is not started; `InvalidInput` for a wrong value and for
    /// surroundings given together with a session; `Pty` when the session's shell ends before the command does, or
    /// when output of a detached one was lost.
    pub async fn exec(&self, command: PtyExec) -> Result<SandboxExecResult> {
        let provider = &self.sandbox.provider;
        checks::require(provider.name(), provider.as_pty(), sandbox_core::Capability::Pty)
            .map_err(|error| error.with_help("run the command with exec()"))?;
        if command.detach {
            let interface = provider.as_pty_attach();
            checks::require(provider.name(), interface, sandbox_core::Capability::PtyAttach)?;
        }
        self.sandbox.live()?;
        command.validate()?;
        let mut collector = ExecCollector::new(command.capture);
        let limit = command.limit();
        let exit = match &command.session {
            Some(session) => self.in_given(session, &command, &mut collector).await?,
            None => match self.sandbox.shell().filter(|_| !command.detach && command.shaped_by().is_none()) {
                Some(shell) => self.in_default(shell, &command, &mut collector).await?,
                None if command.detach => {
                    let run = self.in_shell_of_its_own(&command, &mut collector);
                    until(limit, run).await?
                }
                None => until(limit, self.in_session_of_its_own(&command, &mut collector)).await?,
            },
        };
        let timed_out = matches!(exit.outcome, ExecOutcome::TimedOut { .. });
        if timed_out {
            let seconds = limit.unwrap_or_default().as_secs_f64();
            let advice =
                if command.session.is_some() { "; discard the session, the command may still run in it" } else { "" };
            let note = format!("the command did not end within {seconds} s{advice}\n");
            drop(collector.push(ExecEvent::Stderr(Bytes::from(note))));
        }
        Ok(collector.finish(exit))
    }

    async fn in_given(
        &self,
        session: &SandboxPtySession,
        command: &PtyExec,
        collector: &mut ExecCollector,
    ) -> Result<ExecExit> {
        let text = command.command.as_bytes();
        if !command.detach {
            return until(command.limit(), session.run(text, collector)).await;
        }
        let run = session.run_detached_into(text, command.poll_interval, collector);
        let result = until(command.limit(), run).await;
        // At its best: what it was detached for is told by the result.
        if !session.closed() {
            let _ = session.reattach().await;
        }
        result
    }

    async fn in_default(
        &self,
        shell: SandboxPtySession,
        command: &PtyExec,
        collector: &mut ExecCollector,
    ) -> Result<ExecExit> {
        // Until it has ended in an orderly way: nobody knows what still runs in it.
        let retire = Retire { pty: self, shell: Some(shell.clone()) };
        let exit = until(command.limit(), shell.run(command.command.as_bytes(), collector)).await;
        match &exit {
            Ok(exit) if matches!(exit.outcome, ExecOutcome::TimedOut { .. }) => {
                self.sandbox.forget_shell(&shell);
                if let Err(error) = shell.close().await {
                    tracing::debug!(kind = %error.kind(), "the default shell could not be closed");
                }
            }
            Ok(_) => {}
            Err(_) if shell.closed() => self.sandbox.forget_shell(&shell),
            Err(_) => {}
        }
        retire.disarm();
        exit
    }

    async fn in_shell_of_its_own(&self, command: &PtyExec, collector: &mut ExecCollector) -> Result<ExecExit> {
        let session = self.open(command.spec(None)).await?;
        let exit = session.run_detached_into(command.command.as_bytes(), command.poll_interval, collector).await;
        closed(&session, exit).await
    }

    async fn in_session_of_its_own(&self, command: &PtyExec, collector: &mut ExecCollector) -> Result<ExecExit> {
        let text: ByteString = command.command.clone();
        let session = self.open(command.spec(Some(text))).await?;
        let exit = session.read_to_exit(collector).await;
        closed(&session, exit).await
    }
}

async fn closed(session: &SandboxPtySession, exit: Result<ExecExit>) -> Result<ExecExit> {
    if let Err(error) = session.close().await {
        tracing::debug!(kind = %error.kind(), "a session could not be closed");
    }
    exit
}

/// Runs something up to a limit, and makes the limit an exit.
async fn until(limit: Option<Duration>, run: impl Future<Output = Result<ExecExit>> + Send) -> Result<ExecExit> {
    match limit {
        Some(limit) => tokio::time::timeout(limit, run)
            .await
            .unwrap_or_else(|_| Ok(ExecExit::new(ExecOutcome::TimedOut { idle: false }))),
        None => run.await,
    }
}

/// Ends the default shell if a command in it was given up.
struct Retire<'a> {
    pty: &'a SandboxPty<'a>,
    shell: Option<SandboxPtySession>,
}

impl Retire<'_> {
    fn disarm(mut self) {
        self.shell = None;
    }
}

impl Drop for Retire<'_> {
    fn drop(&mut self) {
        if let Some(shell) = self.shell.take() {
            self.pty.sandbox.forget_shell(&shell);
            shell.close_later();
        }
    }
}

impl SandboxPtySession {
    /// Reads everything up to the exit of the session's own program.
    async fn read_to_exit(&self, collector: &mut ExecCollector) -> Result<ExecExit> {
        let mut source = self.0.source.lock().await;
        loop {
            let happening = source.happening().await;
            self.0.note(&source);
            let event = match happening? {
                Happening::Output(bytes) => ExecEvent::Stdout(bytes),
                Happening::Stderr(bytes) => ExecEvent::Stderr(bytes),
                Happening::Gap(bytes) => {
                    let message = format!("{bytes} bytes of the command's output are no longer kept");
                    return Err(SandboxError::new(ErrorKind::Pty, message));
                }
                Happening::Exit => {
                    return source.exit.clone().ok_or_else(|| SandboxError::pty("the session ended without an exit"));
                }
            };
            drop(collector.push(event));
        }
    }
}
