//! A command in the shell of a session that is there.

use std::time::Duration;

use sandbox_core::{ExecCollector, ExecEvent, ExecExit, ExecOutcome, Result, SandboxError, bytes::Bytes};

use super::{
    SandboxPtySession,
    marker::{Marker, Scanner, Stderr},
    session::PtyMode,
    source::{Happening, Source},
};

/// How long standard error must be silent to count as read where nothing marks its end.
const STDERR_QUIET: Duration = Duration::from_millis(50);

/// The output of one command on its way.
pub(super) struct Reading<'a> {
    scanner: Scanner,
    stderr: Option<Scanner>,
    collector: &'a mut ExecCollector,
    status: Option<i32>,
    stderr_done: bool,
}

impl<'a> Reading<'a> {
    pub(super) fn new(marker: &Marker, stderr: Stderr, collector: &'a mut ExecCollector) -> Self {
        let stderr = (stderr == Stderr::Marked).then(|| marker.marked_stderr_scanner());
        Self { scanner: marker.scanner(), stderr_done: stderr.is_none(), stderr, collector, status: None }
    }

    pub(super) fn status(&self) -> Option<i32> {
        self.status
    }

    /// Whether both streams are read to the command's end.
    fn is_complete(&self) -> bool {
        self.status.is_some() && self.stderr_done
    }

    pub(super) fn take(&mut self, happening: Happening) -> Result<()> {
        let collector = &mut self.collector;
        match happening {
            Happening::Output(bytes) if self.status.is_none() => {
                let mut keep = |bytes: &[u8]| drop(collector.push(ExecEvent::Stdout(Bytes::copy_from_slice(bytes))));
                self.status = self.scanner.push(&bytes, &mut keep)?;
            }
            // The prompt behind the end.
            Happening::Output(_) => {}
            Happening::Stderr(bytes) => {
                let mut keep = |bytes: &[u8]| drop(collector.push(ExecEvent::Stderr(Bytes::copy_from_slice(bytes))));
                match &mut self.stderr {
                    Some(scanner) if !self.stderr_done => self.stderr_done = scanner.push(&bytes, &mut keep)?.is_some(),
                    _ if self.scanner.has_begun() => keep(&bytes),
                    _ => {}
                }
            }
            // What came before the command is nobody's loss.
            Happening::Gap(bytes) if self.scanner.has_begun() && self.status.is_none() => {
                return Err(SandboxError::pty(format!("{bytes} bytes of the command's output are no longer kept"))
                    .with_help("look at it more often, or let it write to a file"));
            }
            Happening::Gap(_) => {}
            Happening::Exit if self.status.is_none() => {
                return Err(SandboxError::pty("the shell of the session ended before the command was over")
                    .with_help("open another session with pty().create()"));
            }
            Happening::Exit => self.stderr_done = true,
        }
        Ok(())
    }
}

impl SandboxPtySession {
    /// Types a command into the shell and reads its output. Only one runs at a time.
    pub(super) async fn run(&self, command: &[u8], collector: &mut ExecCollector) -> Result<ExecExit> {
        let stderr = match self.mode() {
            Some(PtyMode::Pipe) => Stderr::Marked,
            _ => Stderr::Inherited,
        };
        let marker = Marker::new()?;
        let lines = marker.typed(command, stderr)?;
        let mut source = self.0.source.lock().await;
        self.check_usable(&source)?;
        source.discard();
        let mut reading = Reading::new(&marker, stderr, collector);
        let result = self.type_and_read(lines, &mut source, &mut reading).await;
        self.0.note(&source);
        result?;
        Ok(ExecExit::new(ExecOutcome::Exited(reading.status().unwrap_or_default())))
    }

    async fn type_and_read(&self, lines: Vec<Bytes>, source: &mut Source, reading: &mut Reading<'_>) -> Result<()> {
        self.type_while_reading(lines, source, reading).await?;
        while reading.status().is_none() {
            reading.take(source.happening().await?)?;
        }
        while !reading.is_complete() {
            match tokio::time::timeout(STDERR_QUIET, source.happening()).await {
                Ok(happening) => reading.take(happening?)?,
                // The command sent standard error elsewhere.
                Err(_) => break,
            }
        }
        // Whether an attached session has pipes is not known, so nothing marks the end there.
        while self.mode().is_none() && source.exit.is_none() {
            match tokio::time::timeout(STDERR_QUIET, source.happening()).await {
                Ok(happening) => reading.take(happening?)?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Types lines and reads meanwhile: the echo of a long command has to be read for the rest of it to be taken.
    pub(super) async fn type_while_reading(
        &self,
        lines: Vec<Bytes>,
        source: &mut Source,
        reading: &mut Reading<'_>,
    ) -> Result<()> {
        let mut typing = std::pin::pin!(self.type_lines(lines));
        loop {
            tokio::select! {
                () = &mut typing => return Ok(()),
                happening = source.happening() => reading.take(happening?)?,
            }
            if reading.status().is_some() {
                return Ok(());
            }
        }
    }

    /// What keeps lines from being taken is the session's end, which reading tells.
    async fn type_lines(&self, lines: Vec<Bytes>) {
        for line in lines {
            if let Err(error) = self.write(line).await {
                tracing::debug!(kind = %error.kind(), "a session takes no more input");
                return;
            }
        }
    }

    pub(super) fn check_usable(&self, source: &Source) -> Result<()> {
        if source.exit.is_some() {
            return Err(SandboxError::pty("the shell of the session has ended")
                .with_help("open another session with pty().create()"));
        }
        if self.closed() {
            return Err(super::source::closed());
        }
        Ok(())
    }
}
