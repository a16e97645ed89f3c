//! Commands that run without a connection being held.

use std::time::Duration;

use sandbox_core::{
    ByteString, CaptureLimits, ErrorKind, ExecCollector, ExecExit, ExecOutcome, Result, SandboxExecResult,
};

use super::{
    SandboxPtySession,
    marker::{Marker, Stderr},
    run::Reading,
    source::Source,
};

/// When nothing came for this long, everything that is there was read.
const CAUGHT_UP: Duration = Duration::from_millis(200);

impl SandboxPtySession {
    /// Runs a command in the session's shell and holds a connection only to look at it, every `poll_interval`.
    ///
    /// * Both streams come as one, in standard output. Nothing is written to the sandbox's disk.
    /// * The end is seen one interval late at most.
    /// * There is no limit but the caller's: dropping the future leaves the command running in the session, which may
    ///   then be detached.
    ///
    /// # Errors
    /// `Unsupported` on a provider whose sessions do not outlive their client; `Pty` when the shell ended, and when
    /// output was written faster than it is kept between two looks; as [`read`](Self::read).
    pub async fn run_detached(
        &self,
        command: impl Into<ByteString> + Send,
        poll_interval: Duration,
    ) -> Result<SandboxExecResult> {
        let mut collector = ExecCollector::new(CaptureLimits::default());
        let command = command.into();
        let exit = self.run_detached_into(command.as_bytes(), poll_interval, &mut collector).await?;
        Ok(collector.finish(exit))
    }

    pub(super) async fn run_detached_into(
        &self,
        command: &[u8],
        poll_interval: Duration,
        collector: &mut ExecCollector,
    ) -> Result<ExecExit> {
        self.0.place.attach()?;
        let marker = Marker::new()?;
        let lines = marker.typed(command, Stderr::Merged)?;
        let mut source = self.0.source.lock().await;
        self.check_usable(&source)?;
        if source.offset.is_none() && source.stream.is_some() {
            // From the first byte that is kept on: then the place where each look begins is known.
            self.0.detach(&mut source).await?;
        }
        self.0.reattach(&mut source, Some(0)).await?;
        source.discard();
        let mut reading = Reading::new(&marker, Stderr::Merged, collector);
        let result = async {
            self.type_while_reading(lines, &mut source, &mut reading).await?;
            catch_up(&mut source, &mut reading).await?;
            self.poll(&mut source, &mut reading, poll_interval).await
        }
        .await;
        self.0.note(&source);
        result?;
        Ok(ExecExit::new(ExecOutcome::Exited(reading.status().unwrap_or_default())))
    }

    async fn poll(&self, source: &mut Source, reading: &mut Reading<'_>, interval: Duration) -> Result<()> {
        while reading.status().is_none() {
            if source.stream.is_some() {
                self.0.detach(source).await?;
            }
            tokio::time::sleep(interval).await;
            match self.0.reattach(source, None).await {
                Ok(()) => catch_up(source, reading).await?,
                // It runs on; the next look may find it.
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut) => {
                    tracing::debug!(kind = %error.kind(), "a detached command could not be looked at");
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Err(error.with_kind(ErrorKind::Pty).context("the session of a detached command is gone"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Reads what is there, or up to the end of the command.
async fn catch_up(source: &mut Source, reading: &mut Reading<'_>) -> Result<()> {
    while reading.status().is_none() {
        match tokio::time::timeout(CAUGHT_UP, source.happening()).await {
            Ok(happening) => reading.take(happening?)?,
            Err(_) => break,
        }
    }
    Ok(())
}
