//! A conversation with something that runs: events come in order and end, control goes the other way.

use std::{any::Any, collections::VecDeque, fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{Admitted, Capability, Result, SandboxError};

/// How many events wait for a slow reader before the producer has to wait: with chunks of 64 KiB about 1 MiB.
pub const SESSION_QUEUE_EVENTS: usize = 16;

/// An event of a [`Session`], as it travels over the ABI: a channel number and bytes.
pub trait SessionEvent: Send + Sized + 'static {
    /// What the session is, for errors: `exec`, `terminal session`.
    const WHAT: &'static str;

    /// True for the event that ends the session.
    fn is_last(&self) -> bool;

    /// Takes the event apart.
    fn into_frame(self) -> (u32, Bytes);

    /// Puts an event together. None for a channel that this version does not know; it is skipped.
    ///
    /// # Errors
    /// `Lost` when the bytes are not such an event.
    fn from_frame(channel: u32, data: Bytes) -> Result<Option<Self>>;
}

/// Something that the holder of a session asks for. Requests that a side does not know are refused as unsupported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ControlRequest {
    /// No more input will come.
    CloseInput,
    /// Send this signal number to the process group.
    Signal(i32),
    /// Kill the whole process tree.
    Kill,
    /// Set the size of the terminal.
    Resize {
        /// Rows of characters.
        rows: u16,
        /// Columns of characters.
        cols: u16,
    },
    /// Leave the session running and end this connection to it.
    Detach,
}

/// The answer to a [`ControlRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ControlReply {}

/// The provider's half of control. Every method may be called while another one is under way.
#[crate::async_trait]
pub trait SessionControl: Send + Sync + 'static {
    /// Takes input bytes. Returns when they are accepted, so that a slow reader inside slows the writer down.
    ///
    /// # Errors
    /// `InvalidState` when the input is closed or was never open.
    async fn write(&self, data: Bytes) -> Result<()>;

    /// Does what is asked.
    ///
    /// # Errors
    /// `Unsupported` for requests that this session does not know; `InvalidState` after the end.
    async fn control(&self, request: ControlRequest) -> Result<ControlReply>;
}

/// Where the events of a session come from.
#[crate::async_trait]
pub(crate) trait SessionSource<E>: Send {
    /// The next events, at least one; none when the source is exhausted. Dropping the future loses nothing.
    async fn next_batch(&mut self) -> Result<Vec<E>>;
}

/// The queue between a provider and the holder of its session.
struct Queue<E> {
    receiver: mpsc::Receiver<Result<E>>,
    // An error that came behind events is told after them.
    error: Option<SandboxError>,
}

#[crate::async_trait]
impl<E: SessionEvent> SessionSource<E> for Queue<E> {
    async fn next_batch(&mut self) -> Result<Vec<E>> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let Some(first) = self.receiver.recv().await else { return Ok(Vec::new()) };
        let mut events = vec![first?];
        while !events.last().is_some_and(E::is_last) {
            match self.receiver.try_recv() {
                Ok(Ok(event)) => events.push(event),
                Ok(Err(error)) => {
                    self.error = Some(error);
                    break;
                }
                Err(_) => break,
            }
        }
        Ok(events)
    }
}

struct Exhausted;

#[crate::async_trait]
impl<E: SessionEvent> SessionSource<E> for Exhausted {
    async fn next_batch(&mut self) -> Result<Vec<E>> {
        Ok(Vec::new())
    }
}

type Explanation = Pin<Box<dyn Future<Output = SandboxError> + Send>>;

/// What looks into the error of a session.
enum Explain {
    Waiting(Box<dyn FnOnce(SandboxError) -> Explanation + Send>),
    UnderWay(Explanation),
}

/// The caller's side of something that runs: an exec, a terminal, a forwarded connection.
///
/// Dropping it before the end cancels the work.
pub struct Session<E> {
    source: Box<dyn SessionSource<E>>,
    ready: VecDeque<E>,
    control: Arc<dyn SessionControl>,
    ended: bool,
    explain: Option<Explain>,
    // Dropped with the session: a provider hangs its own clean-up here.
    guards: Vec<Box<dyn Any + Send>>,
}

impl<E: SessionEvent> Session<E> {
    /// A session and the sink that feeds it. `control` receives what the holder asks for.
    ///
    /// When the session is dropped, [`SessionSink::closed`] resolves: end the work then.
    pub fn channel(control: impl SessionControl) -> (SessionSink<E>, Self) {
        let (sender, receiver) = mpsc::channel(SESSION_QUEUE_EVENTS);
        (SessionSink { sender }, Self::from_source(Box::new(Queue { receiver, error: None }), Arc::new(control)))
    }

    /// A session fed by a task of the current tokio runtime. The task is aborted when the session is dropped.
    pub fn spawn<F, W>(control: impl SessionControl, work: W) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
        W: FnOnce(SessionSink<E>) -> F,
    {
        let (sink, session) = Self::channel(control);
        let reporter = sink.clone();
        let work = tokio::spawn(work(sink));
        let guard = AbortOnDrop(work.abort_handle());
        // A second task, so that a panic of the first one is told, not only seen as a session that broke off.
        tokio::spawn(async move {
            match work.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => reporter.fail(error).await,
                Err(error) if error.is_panic() => reporter.fail(SandboxError::panicked(error.into_panic())).await,
                Err(_) => {}
            }
        });
        session.with_guard(guard)
    }

    /// A session that has these events and nothing to control.
    pub fn from_events(events: Vec<E>) -> Self {
        let mut session = Self::from_source(Box::new(Exhausted), Arc::new(NoControl));
        session.ready = events.into();
        session
    }

    pub(crate) fn from_source(source: Box<dyn SessionSource<E>>, control: Arc<dyn SessionControl>) -> Self {
        Self { source, ready: VecDeque::new(), control, ended: false, explain: None, guards: Vec::new() }
    }

    /// Keeps a value alive as long as the session.
    #[must_use]
    pub fn with_guard(mut self, guard: impl Send + 'static) -> Self {
        self.guards.push(Box::new(guard));
        self
    }

    /// Lets the error with which the session breaks off be looked into, before its holder is told: a provider knows
    /// more than the connection that broke. Only the first error is. The future is polled by whoever reads the session,
    /// who may have no runtime: what needs one is spawned.
    #[must_use]
    pub fn with_explanation<F, W>(mut self, explain: W) -> Self
    where
        F: Future<Output = SandboxError> + Send + 'static,
        W: FnOnce(SandboxError) -> F + Send + 'static,
    {
        self.explain = Some(Explain::Waiting(Box::new(move |error| Box::pin(explain(error)))));
        self
    }

    /// The next event; none after the last one. Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Lost` when the session breaks off before its last event.
    pub async fn next(&mut self) -> Result<Option<E>> {
        loop {
            if let Some(Explain::UnderWay(explanation)) = &mut self.explain {
                let error = explanation.await;
                self.explain = None;
                return Err(error);
            }
            if self.ended {
                return Ok(None);
            }
            if let Some(event) = self.ready.pop_front() {
                self.ended = event.is_last();
                return Ok(Some(event));
            }
            let error = match self.source.next_batch().await {
                Ok(events) if events.is_empty() => {
                    self.ended = true;
                    Self::lost()
                }
                Ok(events) => {
                    self.ready = events.into();
                    continue;
                }
                Err(error) => error,
            };
            match self.explain.take() {
                Some(Explain::Waiting(explain)) => self.explain = Some(Explain::UnderWay(explain(error))),
                _ => return Err(error),
            }
        }
    }

    /// The next events that are there, at least one; none after the last.
    #[cfg(feature = "abi")]
    pub(crate) async fn next_batch(&mut self) -> Result<Vec<E>> {
        let Some(first) = self.next().await? else { return Ok(Vec::new()) };
        let mut events = vec![first];
        while let Some(event) = self.ready.pop_front() {
            self.ended = event.is_last();
            events.push(event);
        }
        Ok(events)
    }

    pub(crate) fn lost() -> SandboxError {
        SandboxError::lost(format!("the {} broke off without an end", E::WHAT), Admitted::Yes)
    }

    /// The control half, to be used while another task reads.
    pub fn control(&self) -> Arc<dyn SessionControl> {
        self.control.clone()
    }

    /// Writes input; see [`SessionControl::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write<D: Into<Bytes>>(&self, data: D) -> impl Future<Output = Result<()>> + Send + use<E, D> {
        let (control, data) = (self.control(), data.into());
        async move { control.write(data).await }
    }

    /// Says that no more input will come.
    ///
    /// # Errors
    /// As [`SessionControl::control`].
    pub fn close_input(&self) -> impl Future<Output = Result<()>> + Send + use<E> {
        self.request(ControlRequest::CloseInput)
    }

    /// Sends a signal to the process group.
    ///
    /// # Errors
    /// As [`SessionControl::control`].
    pub fn signal(&self, signal: i32) -> impl Future<Output = Result<()>> + Send + use<E> {
        self.request(ControlRequest::Signal(signal))
    }

    /// Kills the whole process tree. The session still delivers its last event.
    ///
    /// # Errors
    /// As [`SessionControl::control`].
    pub fn kill(&self) -> impl Future<Output = Result<()>> + Send + use<E> {
        self.request(ControlRequest::Kill)
    }

    // A session is not Sync, so what is awaited must not borrow it: it can then be awaited in any task.
    pub(crate) fn request(&self, request: ControlRequest) -> impl Future<Output = Result<()>> + Send + use<E> {
        let control = self.control();
        async move { control.control(request).await.map(drop) }
    }
}

impl<E> fmt::Debug for Session<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// Feeds a [`Session`]. Dropping it before the last event breaks the session off (`Lost` for the holder).
#[derive(Debug)]
pub struct SessionSink<E> {
    sender: mpsc::Sender<Result<E>>,
}

impl<E> Clone for SessionSink<E> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone() }
    }
}

impl<E> SessionSink<E> {
    /// Delivers an event; waits while the reader is behind. False when the holder is gone.
    pub async fn send(&self, event: E) -> bool {
        self.sender.send(Ok(event)).await.is_ok()
    }

    /// Breaks the session off with this error.
    pub async fn fail(&self, error: SandboxError) {
        let _ = self.sender.send(Err(error)).await;
    }

    /// Resolves when the holder has dropped the session.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    /// True if the holder has dropped the session.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct NoControl;

#[crate::async_trait]
impl SessionControl for NoControl {
    async fn write(&self, _data: Bytes) -> Result<()> {
        Err(SandboxError::invalid_state("the input is closed"))
    }

    async fn control(&self, _request: ControlRequest) -> Result<ControlReply> {
        Err(SandboxError::invalid_state("it is over already"))
    }
}

impl SandboxError {
    /// The refusal of a control request that a session does not know.
    pub fn unsupported_control(provider: impl Into<String>, capability: Option<Capability>) -> Self {
        let provider = provider.into();
        match capability {
            Some(capability) => Self::unsupported(provider, capability),
            None => Self::new(
                crate::ErrorKind::Unsupported,
                format!("provider {provider:?} does not support this control request"),
            )
            .with_provider(provider),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{NoControl, Session};
    use crate::{CaptureLimits, ErrorKind, ExecEvent, ExecExit, ExecOutcome, ExecStream, SandboxError};

    fn exit(code: i32) -> ExecEvent {
        ExecEvent::Exit(ExecExit::new(ExecOutcome::Exited(code)))
    }

    #[tokio::test]
    async fn a_stream_that_ends_without_an_exit_is_lost() {
        let (sink, stream) = ExecStream::channel(NoControl);
        sink.send(ExecEvent::Stdout(Bytes::from_static(b"x"))).await;
        drop(sink);
        let error = stream.collect(CaptureLimits::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
    }

    #[tokio::test]
    async fn nothing_follows_the_exit() {
        let (sink, mut stream) = ExecStream::channel(NoControl);
        for event in [ExecEvent::Stdout(Bytes::from_static(b"x")), exit(3), ExecEvent::Stdout(Bytes::from_static(b"y"))]
        {
            sink.send(event).await;
        }
        assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
        assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Exit(_))));
        assert!(stream.next().await.unwrap().is_none());
        assert!(stream.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn dropping_the_session_tells_the_sink_and_aborts_its_task() {
        let (sink, stream) = ExecStream::channel(NoControl);
        drop(stream);
        sink.closed().await;
        let (started, is_started) = tokio::sync::oneshot::channel();
        let (alive, is_dropped) = tokio::sync::oneshot::channel::<()>();
        let stream: ExecStream = Session::spawn(NoControl, |_sink| async move {
            let _alive = alive;
            let _ = started.send(());
            std::future::pending::<()>().await;
            Ok(())
        });
        is_started.await.unwrap();
        drop(stream);
        is_dropped.await.unwrap_err();
    }

    #[tokio::test]
    async fn the_error_that_breaks_it_off_is_looked_into_even_when_nobody_waits_for_a_while() {
        let (sink, stream) = ExecStream::channel(NoControl);
        let (tell, told) = tokio::sync::oneshot::channel();
        let mut stream = stream.with_explanation(|error| async move {
            let why: &str = told.await.unwrap();
            error.context(why)
        });
        sink.send(ExecEvent::Stdout(Bytes::from_static(b"x"))).await;
        drop(sink);
        assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
        let brief = std::time::Duration::from_millis(1);
        for _ in 0..3 {
            tokio::time::timeout(brief, stream.next()).await.unwrap_err();
        }
        tell.send("out of memory").unwrap();
        let error = stream.next().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.message().starts_with("out of memory: "), "{error}");
        assert!(stream.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn the_panic_of_a_task_reaches_the_reader_with_its_text() {
        let stream: ExecStream = Session::spawn(NoControl, |_sink| async { panic!("boom {}", 1) });
        let error = stream.collect(CaptureLimits::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.to_string().contains("boom 1"), "{error}");
    }

    #[tokio::test]
    async fn the_error_of_a_task_reaches_the_reader() {
        let stream: ExecStream =
            Session::spawn(NoControl, |_sink| async { Err(SandboxError::unavailable("no backend")) });
        let error = stream.collect(CaptureLimits::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
