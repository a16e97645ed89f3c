use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use sandbox_core::{
    AttachOptions, Capability, ControlRequest, ErrorKind, ExecExit, PtyEvent, PtyStream, Result, SandboxError,
    SandboxHandle, SandboxProvider, SessionControl, bytes::Bytes,
};
use tokio::sync::watch;

use super::{
    signal,
    source::{PtyChunk, Source, closed},
};
use crate::{
    checks, cleanup,
    timeouts::{timed_out, within},
};

/// How long a session that is closed may take to end.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How a session is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtyMode {
    /// A terminal: one stream of output.
    Pty,
    /// Pipes: standard output and standard error apart.
    Pipe,
}

/// Where a session lives, and how long a call to there may take.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) provider: Arc<dyn SandboxProvider>,
    pub(super) handle: SandboxHandle,
    pub(super) limit: Duration,
}

/// An interactive session in a sandbox. A clone is the same session, so one task may read while another one writes.
///
/// * Whoever waits for something reads on for everybody: what others did not read yet is kept, up to
///   [`PTY_BUFFER_BYTES`](super::PTY_BUFFER_BYTES) of each stream. Read it while you wait for something else if nothing
///   may be missing; what is given up is told as a gap.
/// * [`close`](Self::close) is the way to end it. When the last clone of one that this client created is dropped, the
///   session is ended in the background; one that was attached is left running.
/// * Every future may be dropped at any time, and nothing of the output is lost by that.
#[derive(Clone)]
pub struct SandboxPtySession(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) place: Place,
    id: String,
    pub(super) is_own: bool,
    mode: OnceLock<PtyMode>,
    control: Mutex<Option<Arc<dyn SessionControl>>>,
    pub(super) source: tokio::sync::Mutex<Source>,
    closing: watch::Sender<bool>,
    // Looked at without waiting for whoever reads.
    is_over: Mutex<bool>,
}

impl SandboxPtySession {
    /// A session that was just opened: waits for its id.
    pub(super) async fn opened(place: Place, mut stream: PtyStream, how: Opened) -> Result<Self> {
        let id = first_event(&mut stream).await?;
        let (closing, is_closing) = watch::channel(false);
        let control = stream.control();
        let (is_own, offset, mode) = match how {
            Opened::Created(mode) => (true, Some(0), OnceLock::from(mode)),
            Opened::Attached { since } => (false, since, OnceLock::new()),
        };
        Ok(Self(Arc::new(Inner {
            place,
            id,
            is_own,
            mode,
            control: Mutex::new(Some(control)),
            source: tokio::sync::Mutex::new(Source::new(stream, is_own, offset, is_closing)),
            closing,
            is_over: Mutex::new(false),
        })))
    }

    /// Names the session for [`attach`](super::SandboxPty::attach), from any process.
    pub fn session_id(&self) -> &str {
        &self.0.id
    }

    /// How it is connected; none for an attached one, whose mode only its creator knows.
    pub fn mode(&self) -> Option<PtyMode> {
        self.0.mode.get().copied()
    }

    /// True when nothing more can be run in it: it was closed, broke, or its program's exit was read.
    pub fn closed(&self) -> bool {
        *lock(&self.0.is_over)
    }

    /// The same, after a look at what has come meanwhile.
    pub(crate) fn is_over_now(&self) -> bool {
        // Where somebody reads, that one notes the end.
        if let Ok(mut source) = self.0.source.try_lock() {
            source.look();
            self.0.note(&source);
        }
        self.closed()
    }

    /// The next piece of output (in pipe mode of standard output); none when the program has ended and everything was
    /// read, and so on later calls.
    ///
    /// # Errors
    /// `TimedOut`; `Pty` when the session broke for another reason than its program's end, such as another client that
    /// took it over; `InvalidState` when it is closed or detached.
    pub async fn read(&self, timeout: Option<Duration>) -> Result<Option<PtyChunk>> {
        self.wait_for("read", timeout, |source| match source.output.pop() {
            Some(chunk) => Some(Some(chunk)),
            None => source.exit.is_some().then_some(None),
        })
        .await
    }

    /// The same for standard error, which only pipe mode has.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_stderr(&self, timeout: Option<Duration>) -> Result<Option<PtyChunk>> {
        self.wait_for("read_stderr", timeout, |source| match source.stderr.pop() {
            Some(chunk) => Some(Some(chunk)),
            None => source.exit.is_some().then_some(None),
        })
        .await
    }

    /// How the program ended. Any number of tasks may wait, and one that gives up disturbs no other.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn wait_exit(&self, timeout: Option<Duration>) -> Result<ExecExit> {
        self.wait_for("wait_exit", timeout, |source| source.exit.clone()).await
    }

    async fn wait_for<T>(
        &self,
        operation: &str,
        timeout: Option<Duration>,
        mut found: impl FnMut(&mut Source) -> Option<T>,
    ) -> Result<T> {
        let work = async {
            loop {
                // Given back after each event, so that the others who wait get their turn.
                let mut source = self.0.source.lock().await;
                if let Some(found) = found(&mut source) {
                    return Ok(found);
                }
                let advanced = source.advance().await;
                self.0.note(&source);
                advanced?;
            }
        };
        match timeout {
            Some(limit) => tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(timed_out(operation, limit))),
            None => work.await,
        }
    }

    /// Types bytes. Returns when they are accepted, so a program that does not read slows the writer down.
    ///
    /// # Errors
    /// `InvalidState` after the end; those of the connection.
    pub async fn write(&self, data: impl Into<Bytes> + Send) -> Result<()> {
        let control = self.0.control()?;
        control.write(data.into()).await
    }

    /// Says that no more input will come: the end-of-file key of a terminal, a closed pipe in pipe mode.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn close_input(&self) -> Result<()> {
        self.ask("close_input", ControlRequest::CloseInput).await
    }

    /// Sets the size of the terminal, 1 to 9999 each; its program is told.
    ///
    /// # Errors
    /// `InvalidInput`; `Unsupported` in pipe mode; `InvalidState` after the end.
    pub async fn resize(&self, rows: u16, cols: u16) -> Result<()> {
        for (field, value) in [("rows", rows), ("cols", cols)] {
            if !(1..=9999).contains(&value) {
                return Err(SandboxError::invalid_input(field, format!("must be 1 to 9999, not {value}")));
            }
        }
        self.ask("resize", ControlRequest::Resize { rows, cols }).await
    }

    /// Sends a signal (`INT` or `SIGINT`) to the foreground program of a terminal, to the whole group in pipe mode.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is none; `InvalidState` after the end.
    pub async fn send_signal(&self, name: &str) -> Result<()> {
        self.ask("send_signal", ControlRequest::Signal(signal::number(name)?)).await
    }

    async fn ask(&self, operation: &str, request: ControlRequest) -> Result<()> {
        let control = self.0.control()?;
        within(operation, self.0.place.limit, control.control(request)).await.map(drop)
    }

    /// Leaves the session running and ends this connection to it. [`reattach`](Self::reattach) takes it up again, and
    /// [`attach`](super::SandboxPty::attach) does from anywhere else.
    ///
    /// # Errors
    /// `Unsupported` on a provider whose sessions do not outlive their client; those of the connection.
    pub async fn detach(&self) -> Result<()> {
        self.0.place.attach()?;
        self.0.detach(&mut *self.0.source.lock().await).await
    }

    /// Takes up a session that was detached or whose connection broke: its output goes on where it stopped here. What
    /// is no longer kept is told as a gap.
    ///
    /// # Errors
    /// `Unsupported`; `NotFound` when it ended long ago; `InvalidState` when it is closed; those of the connection.
    pub async fn reattach(&self) -> Result<()> {
        let mut source = self.0.source.lock().await;
        self.0.reattach(&mut source, None).await
    }

    /// Ends a session that this client created, with everything that runs in it; leaves any other one running.
    /// Idempotent.
    ///
    /// # Errors
    /// `TimedOut`, and those of the connection; the session is closed on this side all the same.
    pub async fn close(&self) -> Result<()> {
        let control = lock(&self.0.control).take();
        let was_open = !self.0.closing.send_replace(true);
        *lock(&self.0.is_over) = true;
        // Who reads sees that it is closing and gives it up.
        let mut source = self.0.source.lock().await;
        if !was_open || source.exit.is_some() {
            source.stream = None;
            return Ok(());
        }
        let end = async {
            let mut stream = match (source.stream.take(), self.0.is_own) {
                (Some(stream), _) => stream,
                (None, false) => return Ok(None),
                // It runs without us: it has to be held to be ended.
                (None, true) => self.0.place.take_over(&self.0.id, None).await?,
            };
            let control = control.unwrap_or_else(|| stream.control());
            if !self.0.is_own {
                let _ = control.control(ControlRequest::Detach).await;
                return Ok(None);
            }
            let killed = control.control(ControlRequest::Kill).await;
            loop {
                match stream.next().await {
                    Ok(Some(PtyEvent::Exit(exit))) => return Ok(Some(exit)),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return killed.map(|_| None),
                }
            }
        };
        match within("closing the session", CLOSE_LIMIT, end).await {
            Ok(exit) => {
                source.exit = exit;
                Ok(())
            }
            // Over already.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidState | ErrorKind::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Closes it in the background.
    pub(super) fn close_later(self) {
        cleanup::later(self.0.place.provider.clone(), self.0.place.handle.sandbox_id.clone(), async move {
            self.close().await
        });
    }
}

impl Place {
    /// The interface for sessions that outlive their client.
    pub(super) fn attach(&self) -> Result<&dyn sandbox_core::PtyAttach> {
        checks::require(self.provider.name(), self.provider.as_pty_attach(), Capability::PtyAttach)
    }

    /// Takes a session from whoever has it.
    pub(super) async fn take_over(&self, id: &str, since: Option<u64>) -> Result<PtyStream> {
        let options = AttachOptions { takeover: true, since };
        let attach = async {
            let mut stream = self.attach()?.attach_pty(&self.handle, id.to_owned(), options).await?;
            first_event(&mut stream).await?;
            Ok(stream)
        };
        within("attach", self.limit, attach).await.map_err(|error| error.with_provider(self.provider.name()))
    }
}

impl Inner {
    fn control(&self) -> Result<Arc<dyn SessionControl>> {
        lock(&self.control).clone().ok_or_else(|| match *self.closing.borrow() {
            true => closed(),
            false => SandboxError::invalid_state("the terminal session is detached or over"),
        })
    }

    /// Keeps what others may look at without waiting up to date.
    pub(super) fn note(&self, source: &Source) {
        if source.is_over() {
            *lock(&self.is_over) = true;
        }
    }

    pub(super) async fn detach(&self, source: &mut Source) -> Result<()> {
        // Whatever becomes of the request: the stream is dropped only when it was answered, since that may end it.
        let control = self.control()?;
        within("detach", self.place.limit, control.control(ControlRequest::Detach)).await?;
        source.stream = None;
        source.ends_on_drop = false;
        lock(&self.control).take();
        Ok(())
    }

    /// Attaches from where this side stopped; from `fallback` where that is not known.
    pub(super) async fn reattach(&self, source: &mut Source, fallback: Option<u64>) -> Result<()> {
        if *self.closing.borrow() {
            return Err(closed());
        }
        if source.stream.is_some() || source.exit.is_some() {
            return Ok(());
        }
        let since = source.offset.or(fallback);
        let stream = self.place.take_over(&self.id, since).await?;
        *lock(&self.control) = Some(stream.control());
        source.take_up(stream, since);
        *lock(&self.is_over) = false;
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let is_closed = *self.closing.borrow();
        let source = self.source.get_mut();
        // The provider ends the others of its own when their stream is dropped.
        if is_closed || !self.is_own || source.exit.is_some() || source.ends_on_drop {
            return;
        }
        let (place, id, stream) = (self.place.clone(), self.id.clone(), source.stream.take());
        let sandbox_id = place.handle.sandbox_id.clone();
        cleanup::later(place.provider.clone(), sandbox_id, async move {
            let stream = match stream {
                Some(stream) => stream,
                None => place.take_over(&id, None).await?,
            };
            match within("closing the session", CLOSE_LIMIT, stream.kill()).await {
                Err(error) if error.kind() == ErrorKind::InvalidState => Ok(()),
                ended => ended,
            }
        });
    }
}

impl fmt::Debug for SandboxPtySession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxPtySession")
            .field("session_id", &self.0.id)
            .field("mode", &self.mode())
            .field("closed", &self.closed())
            .finish_non_exhaustive()
    }
}

/// How a session came about.
pub(super) enum Opened {
    Created(PtyMode),
    Attached { since: Option<u64> },
}

async fn first_event(stream: &mut PtyStream) -> Result<String> {
    match stream.next().await? {
        Some(PtyEvent::Opened { session_id }) => Ok(session_id),
        Some(PtyEvent::Exit(exit)) => Err(SandboxError::pty(format!(
            "the session ended before it was open, with code {}",
            exit.outcome.return_code()
        ))),
        _ => Err(SandboxError::pty("the provider did not say that the session is open")),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
