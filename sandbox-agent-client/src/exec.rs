//! Commands that outlive the connection they were started on: after a loss the stream goes on where it was, and nothing
//! runs twice.
//!
//! A start that got no answer is repeated under the same id, which the agent runs once. Output goes on at the byte that
//! was read last. Input goes on at the byte that the agent took last; what may not have arrived is kept for that.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use sandbox_core::{
    Admitted, ControlReply, ControlRequest, ErrorKind, ExecEvent, ExecRequest, ExecStream, Result, SandboxError,
    Session, SessionControl, SessionSink, StdinSource, async_trait, tracing,
};
use sandbox_protocol::{
    Client,
    methods::{self, ExecAttach, ExecAttached, ExecStart},
};
use tokio::{sync::watch, time::Instant};

use crate::random_hex;

/// How long a command is reattached to. The agent ends it when nobody came back for a little longer.
const REATTACH_LIMIT: Duration = Duration::from_secs(28);
const PAUSE: Duration = Duration::from_millis(100);

/// Input that is kept because it may not have arrived: more than a stream and its connection hold on their way.
const KEPT_BYTES: usize = 24 << 20;

/// The way to one agent, whose connection is made again when it broke.
#[async_trait]
pub trait AgentWay: Send + Sync + 'static {
    /// The connection, made if there is none.
    ///
    /// # Errors
    /// When the sandbox has ended, or cannot be reached for long.
    async fn client(&self) -> Result<Client>;

    /// What an error means when the sandbox itself is the reason, with the provider's name.
    async fn explain(&self, error: SandboxError) -> SandboxError;
}

/// Whether a call on this connection failed because it broke.
pub fn is_broken(client: &Client, error: &SandboxError) -> bool {
    is_loss(error) && client.close_reason().is_some()
}

/// Runs a command that outlives the connection it was started on.
///
/// # Errors
/// Those of the contract.
pub async fn exec(way: Arc<dyn AgentWay>, mut request: ExecRequest) -> Result<ExecStream> {
    if request.exec_id.is_empty() {
        request.exec_id = format!("exec-{}", random_hex(12)?);
    }
    let exec_id = request.exec_id.clone();
    let mut input = Input::default();
    if let StdinSource::Bytes(bytes) = &request.stdin {
        // It goes the way of every other input, so that it can be repeated.
        input.add(bytes.clone());
        input.is_closed = true;
        request.stdin = StdinSource::Stream;
    }
    let deadline = Instant::now() + REATTACH_LIMIT;
    let mut was_lost = false;
    let (client, stream) = loop {
        let client = match way.client().await {
            Ok(client) => client,
            Err(error) if was_lost => {
                // It may run.
                return Err(way.explain(SandboxError::lost(error.message(), Admitted::Unknown)).await);
            }
            Err(error) => return Err(way.explain(error).await),
        };
        match client.exec_start(ExecStart::new(request.clone())).await {
            Ok((_, stream)) => break (client, stream),
            Err(error) if is_broken(&client, &error) && Instant::now() < deadline => {
                was_lost |= error.kind() == ErrorKind::Lost;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(way.explain(error).await),
        }
    };
    let has_input = !input.kept.is_empty() || input.is_closed;
    let line = Arc::new(Line {
        current: watch::Sender::new(Current { number: 0, control: Some(stream.control()) }),
        input: tokio::sync::Mutex::new(input),
    });
    let feeding = has_input.then(|| {
        let line = line.clone();
        AbortOnDrop(tokio::spawn(async move { line.feed().await }))
    });
    let pump = Pump { way, exec_id, line: line.clone(), client, stdout: 0, stderr: 0, feeder: None };
    let session = Session::spawn(Control(line), move |sink| pump.run(stream, sink));
    Ok(session.with_guard(feeding))
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What was written so far, as far as it may have to be written again.
#[derive(Default)]
struct Input {
    kept: VecDeque<Bytes>,
    kept_bytes: usize,
    /// Offset of the first byte that is kept.
    start: u64,
    is_closed: bool,
}

impl Input {
    fn add(&mut self, bytes: Bytes) {
        self.kept_bytes += bytes.len();
        self.kept.push_back(bytes);
    }

    /// Drops what must have arrived.
    fn trim(&mut self) {
        while self.kept_bytes > KEPT_BYTES
            && let Some(first) = self.kept.pop_front()
        {
            self.kept_bytes -= first.len();
            self.start += first.len() as u64;
        }
    }

    /// What is behind this offset; none where it is no longer kept.
    fn from(&self, offset: u64) -> Option<Vec<Bytes>> {
        let mut skip = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let mut rest = Vec::new();
        for part in &self.kept {
            let skipped = skip.min(part.len());
            skip -= skipped;
            if skipped < part.len() {
                rest.push(part.slice(skipped..));
            }
        }
        (skip == 0).then_some(rest)
    }
}

#[derive(Clone)]
struct Current {
    /// Counts the connections.
    number: u64,
    /// None: it is over.
    control: Option<Arc<dyn SessionControl>>,
}

/// The way in to a command, whatever connection it is on.
struct Line {
    current: watch::Sender<Current>,
    /// Held while bytes are written, so that they stay in order.
    input: tokio::sync::Mutex<Input>,
}

fn over() -> SandboxError {
    SandboxError::invalid_state("it is over already")
}

fn is_loss(error: &SandboxError) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable)
}

impl Line {
    /// The connection after this one; an error when the command is over.
    async fn after(&self, number: u64) -> Result<Current> {
        let mut current = self.current.subscribe();
        let next = current.wait_for(|current| current.number > number || current.control.is_none()).await;
        next.map(|next| next.clone()).map_err(|_| over())
    }

    /// Writes what was given with the request.
    async fn feed(&self) {
        let input = self.input.lock().await;
        let (number, control) = {
            let current = self.current.borrow();
            (current.number, current.control.clone())
        };
        let Some(control) = control.filter(|_| number == 0) else { return };
        for bytes in input.kept.clone() {
            // After a loss the new connection gets all of it. A command that does not read its input is no error.
            if control.write(bytes).await.is_err() {
                return;
            }
        }
        let _ = control.control(ControlRequest::CloseInput).await;
    }

    async fn write(&self, data: Bytes) -> Result<()> {
        let mut input = self.input.lock().await;
        let current = self.current.borrow().clone();
        let control = current.control.ok_or_else(over)?;
        input.add(data.clone());
        let written = control.write(data).await;
        input.trim();
        drop(input);
        match written {
            // The new connection writes it again.
            Err(error) if is_loss(&error) => self.after(current.number).await.map(drop),
            written => written,
        }
    }

    async fn close_input(&self) -> Result<ControlReply> {
        let mut input = self.input.lock().await;
        let current = self.current.borrow().clone();
        let control = current.control.ok_or_else(over)?;
        let closed = control.control(ControlRequest::CloseInput).await;
        input.is_closed |= closed.as_ref().map_or_else(is_loss, |_| true);
        drop(input);
        match closed {
            Err(error) if is_loss(&error) => self.after(current.number).await.map(|_| ControlReply::default()),
            closed => closed,
        }
    }

    /// Goes on with another connection: writes what the agent has not taken. Beside the reading of the output, without which
    /// a command takes no input.
    ///
    /// # Errors
    /// `Lost` where that is no longer kept.
    async fn go_on(&self, control: Arc<dyn SessionControl>, attached: ExecAttached) -> Result<()> {
        let input = self.input.lock().await;
        let rest = match attached.stdin_closed {
            true => Some(Vec::new()),
            false => input.from(attached.stdin_offset),
        };
        let rest = rest.ok_or_else(|| {
            SandboxError::lost("more input than is kept was on its way when the connection broke", Admitted::Yes)
        })?;
        // Whoever writes waits for the lock; signals go at once.
        self.current.send_modify(|current| {
            current.number += 1;
            current.control = Some(control.clone());
        });
        // What fails here is the connection's or the command's matter, and is told by its output.
        for bytes in rest {
            if control.write(bytes).await.is_err() {
                return Ok(());
            }
        }
        if input.is_closed && !attached.stdin_closed {
            let _ = control.control(ControlRequest::CloseInput).await;
        }
        Ok(())
    }
}

struct Control(Arc<Line>);

#[async_trait]
impl SessionControl for Control {
    async fn write(&self, data: Bytes) -> Result<()> {
        self.0.write(data).await
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        if request == ControlRequest::CloseInput {
            return self.0.close_input().await;
        }
        let mut current = self.0.current.borrow().clone();
        loop {
            let control = current.control.ok_or_else(over)?;
            match control.control(request.clone()).await {
                // Told twice is as good as once. A signal may have arrived: whoever sent it decides.
                Err(error) if is_loss(&error) && !matches!(request, ControlRequest::Signal(_)) => {
                    current = self.0.after(current.number).await?;
                }
                done => return done,
            }
        }
    }
}

/// Carries the output.
struct Pump {
    way: Arc<dyn AgentWay>,
    exec_id: String,
    line: Arc<Line>,
    client: Client,
    /// Bytes that were delivered.
    stdout: u64,
    stderr: u64,
    /// Writes input again.
    feeder: Option<AbortOnDrop<Result<()>>>,
}

/// Tells the way in that the command is over, however this ends.
struct End(Arc<Line>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.current.send_modify(|current| current.control = None);
    }
}

impl Pump {
    async fn run(mut self, mut stream: ExecStream, sink: SessionSink<ExecEvent>) -> Result<()> {
        let _end = End(self.line.clone());
        loop {
            let next = match &mut self.feeder {
                None => stream.next().await,
                Some(feeder) => tokio::select! {
                    biased;
                    fed = &mut feeder.0 => {
                        self.feeder = None;
                        match fed {
                            Ok(Err(error)) => return Err(self.way.explain(error).await),
                            _ => continue,
                        }
                    }
                    next = stream.next() => next,
                },
            };
            let error = match next {
                Ok(Some(event)) => {
                    match &event {
                        ExecEvent::Stdout(bytes) => self.stdout += bytes.len() as u64,
                        ExecEvent::Stderr(bytes) => self.stderr += bytes.len() as u64,
                        _ => {}
                    }
                    if !sink.send(event).await {
                        return Ok(());
                    }
                    continue;
                }
                Ok(None) => return Ok(()),
                Err(error) => error,
            };
            if !is_broken(&self.client, &error) {
                return Err(self.way.explain(error).await);
            }
            match self.reattach().await {
                Ok(again) => stream = again,
                Err(_) => {
                    let lost = SandboxError::lost(error.message(), Admitted::Yes);
                    return Err(self.way.explain(lost).await);
                }
            }
        }
    }

    /// Gets the command back on another connection.
    async fn reattach(&mut self) -> Result<ExecStream> {
        self.feeder = None;
        let deadline = Instant::now() + REATTACH_LIMIT;
        loop {
            // Fails when the sandbox has ended, or cannot be reached for long.
            let client = self.way.client().await?;
            let attach = ExecAttach {
                exec_id: self.exec_id.clone(),
                stdout_offset: self.stdout,
                stderr_offset: self.stderr,
                stdin_offset: None,
            };
            let done = async {
                let attached = client.open_with_reply::<ExecEvent, ExecAttached>(methods::EXEC_ATTACH, &attach);
                let (attached, stream) = attached.await?;
                self.check_offsets(&attached)?;
                Ok((attached, stream))
            };
            match done.await {
                Ok((attached, stream)) => {
                    let (line, control) = (self.line.clone(), stream.control());
                    self.feeder = Some(AbortOnDrop(tokio::spawn(async move { line.go_on(control, attached).await })));
                    tracing::debug!(exec_id = %self.exec_id, "a command was reattached to");
                    self.client = client;
                    return Ok(stream);
                }
                Err(error) if is_broken(&client, &error) && Instant::now() < deadline => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Output in between must not be missing.
    fn check_offsets(&self, attached: &ExecAttached) -> Result<()> {
        match attached.stdout_offset == self.stdout && attached.stderr_offset == self.stderr {
            true => Ok(()),
            false => Err(SandboxError::lost("output is no longer kept", Admitted::Yes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::Input;

    #[test]
    fn what_was_not_taken_is_found_again_from_any_byte_on() {
        let mut input = Input::default();
        for part in ["abc", "", "defg", "h"] {
            input.add(Bytes::from_static(part.as_bytes()));
        }
        for offset in 0..=8 {
            let rest = input.from(offset).unwrap().concat();
            assert_eq!(rest, &b"abcdefgh"[offset as usize..]);
        }
        assert!(input.from(9).is_none(), "more than was written");
    }

    #[test]
    fn what_must_have_arrived_is_not_kept() {
        let mut input = Input::default();
        for _ in 0..30 {
            input.add(Bytes::from(vec![7; 1 << 20]));
            input.trim();
        }
        assert!(input.kept_bytes <= super::KEPT_BYTES);
        assert!(input.from(input.start - 1).is_none());
        assert_eq!(input.from(30 << 20).unwrap().len(), 0);
    }
}
