//! Running a command.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Buf, Bytes};
use reqwest::Method;
use sandbox_core::{
    ControlReply, ControlRequest, ErrorKind, ExecEvent, ExecExit, ExecRequest, ExecStream, JobOffsets, Result,
    SandboxError, SandboxHandle, SessionControl, SessionSink, async_trait, tracing,
};
use tokio::{runtime::Handle, sync::Mutex, time::timeout};

use crate::{
    config::ExecMode,
    direct,
    error::{Failure, NAME},
    gate::Throttle,
    job::{Job, Wanted, folder_name},
    labels::state,
    news::{Attempt, News, Told, read},
    provider::Shared,
    random::random_hex,
    toolbox::{Script, check},
};

/// How long the first request waits: a command that is over by then costs one request.
const FIRST_WAIT: Duration = Duration::from_millis(400);

/// How long a request waits for news inside; far below what cuts silent connections.
const LONG_WAIT: Duration = Duration::from_secs(15);

/// How long a running command may be out of reach before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long ending a command is tried.
const KILL_WITHIN: Duration = Duration::from_secs(60);

/// Output beyond this is removed at once when it was delivered, not with the next command.
const LARGE_OUTPUT: u64 = 1 << 20;

/// So much that is left of the output of a command that is over is fetched as a file.
const BULK_BYTES: u64 = 1 << 20;

/// How long a body may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// Bytes of one event.
const EVENT_BYTES: usize = 64 << 10;

/// Bytes of input in one request.
const INPUT_BYTES: usize = 48 << 10;

/// A command that was launched.
pub(crate) struct Running {
    shared: Arc<Shared>,
    handle: SandboxHandle,
    toolbox: String,
    job: Job,
    attempt: Attempt,
    /// Set when its end is known: nothing is to be killed then.
    is_over: AtomicBool,
    /// Set when no more input will come.
    is_closed: AtomicBool,
    /// Whether its output is kept when it was delivered.
    is_kept: bool,
    /// The number of the next part of the input.
    next_input: Mutex<u64>,
    stdout: AtomicU64,
    stderr: AtomicU64,
}

/// Starts a command. A start that fails is an outcome.
pub(crate) async fn exec(shared: &Arc<Shared>, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
    request.validate()?;
    check(handle)?;
    if shared.config.operations.exec_mode == ExecMode::Direct {
        return direct::exec(shared, handle, request).await;
    }
    let id = match request.exec_id.as_str() {
        "" => format!("job-{}", random_hex(12)?),
        given => folder_name("id", given),
    };
    let workdir = state(handle).workdir;
    let attempt = Attempt::new(&request, workdir.as_deref());
    let job = Job::new(id, &shared.config.operations.job_folder, workdir.as_deref(), &request);
    let mut running = Running::new(shared, handle, job, attempt).await?;
    running.is_closed = AtomicBool::new(request.stdin != sandbox_core::StdinSource::Stream);
    let running = Arc::new(running);
    let guard = KillOnDrop { running: running.clone(), runtime: Handle::current() };
    running.upload().await?;
    let over = shared.delivered(&handle.sandbox_id);
    let launch = running.job.launch(&over, "");
    let first = running.ask(&launch, FIRST_WAIT).await;
    let news = match first {
        Ok(Told::News(news)) => news,
        Ok(_) => {
            running.is_over.store(true, Ordering::Release);
            return Err(SandboxError::invalid_state("a command of this exec_id ran before").with_provider(NAME));
        }
        Err(failure) => {
            let error = shared.explain(handle, "starting a command", failure).await;
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidState | ErrorKind::Unavailable) {
                running.is_over.store(true, Ordering::Release);
            }
            return Err(error);
        }
    };
    if let Some(exit) = running.end_of(&news) {
        let mut events = Vec::new();
        split(&news, |event| events.push(event));
        events.push(ExecEvent::Exit(exit));
        running.deliver();
        return Ok(ExecStream::from_events(events));
    }
    let control = Control(running.clone());
    Ok(ExecStream::spawn(control, |sink| running.pump(news, sink)).with_guard(guard))
}

/// The output of news, as events.
fn split(news: &News, mut each: impl FnMut(ExecEvent)) {
    for (bytes, make) in
        [(&news.stdout, ExecEvent::Stdout as fn(Bytes) -> ExecEvent), (&news.stderr, ExecEvent::Stderr)]
    {
        let mut rest = bytes.clone();
        while !rest.is_empty() {
            each(make(rest.split_to(rest.len().min(EVENT_BYTES))));
        }
    }
}

impl Running {
    /// A command that nothing is known of yet.
    pub(crate) async fn new(shared: &Arc<Shared>, handle: &SandboxHandle, job: Job, attempt: Attempt) -> Result<Self> {
        Ok(Self {
            toolbox: shared.toolbox(handle).await?,
            shared: shared.clone(),
            handle: handle.clone(),
            job,
            attempt,
            is_over: AtomicBool::new(false),
            is_closed: AtomicBool::new(true),
            is_kept: false,
            next_input: Mutex::new(0),
            stdout: AtomicU64::new(0),
            stderr: AtomicU64::new(0),
        })
    }

    /// The same, whose output is kept, and of which so much is known.
    pub(crate) fn kept(mut self, since: JobOffsets) -> Self {
        self.is_kept = true;
        (self.stdout, self.stderr) = (AtomicU64::new(since.stdout), AtomicU64::new(since.stderr));
        self
    }

    /// Files that the launch needs.
    pub(crate) async fn upload(&self) -> Result<()> {
        for (path, contents) in self.job.uploads() {
            self.shared.put(&self.handle, &path, contents).await?;
        }
        Ok(())
    }

    /// Follows a command that was launched before. Dropping the stream leaves it alone.
    pub(crate) fn follow(self, first: News) -> ExecStream {
        let running = Arc::new(self);
        let control = Control(running.clone());
        ExecStream::spawn(control, |sink| async move {
            match running.end_of(&first) {
                Some(exit) => running.finish(&first, exit, &sink).await,
                None => running.pump(first, sink).await,
            }
        })
    }

    /// Passes the last news on, and the end.
    async fn finish(&self, news: &News, exit: ExecExit, sink: &SessionSink<ExecEvent>) -> Result<()> {
        let mut events = Vec::new();
        split(news, |event| events.push(event));
        events.push(ExecEvent::Exit(exit));
        for event in events {
            if !sink.send(event).await {
                break;
            }
        }
        Ok(())
    }

    /// Asks for news. `before` runs first.
    pub(crate) async fn ask(&self, before: &str, wait: Duration) -> Result<Told, Failure> {
        let (stdout, stderr) = (self.stdout.load(Ordering::Acquire), self.stderr.load(Ordering::Acquire));
        let end = Instant::now() + PATIENCE;
        let mut unreadable = 0;
        loop {
            let mark = format!("NEWS{}", random_hex(6).map_err(|error| Failure::NotSent(error.message().to_owned()))?);
            let text = format!("{before}{}", self.job.poll(&mark, stdout, stderr, wait));
            let script = Script { text: &text, within: wait + Duration::from_secs(20), deadline: end };
            let failure = match self.shared.script_at(&self.toolbox, script).await {
                Ok(said) => match read(&mark, &said.output) {
                    // The sandbox may be going down; what the control plane says of it decides.
                    Told::Unreadable if unreadable < 3 => {
                        unreadable += 1;
                        Failure::Broken("the answer was cut".to_owned())
                    }
                    Told::Unreadable => {
                        tracing::debug!(code = said.code, "the answer is unreadable");
                        return Err(Failure::Broken("the answers are unreadable".to_owned()));
                    }
                    told => return Ok(told),
                },
                Err(failure) => failure,
            };
            let is_hopeless = !failure.is_transient() || !self.is_alive().await;
            if is_hopeless || Instant::now() >= end {
                return Err(failure);
            }
            tokio::time::sleep(self.shared.client.backoff.wait(2)).await;
        }
    }

    /// Whether commands may still run there, as far as is known.
    async fn is_alive(&self) -> bool {
        match self.shared.look(&self.handle.sandbox_id, Duration::from_secs(10)).await {
            Ok(dto) => crate::toolbox::not_running(&self.handle.sandbox_id, &dto).is_none(),
            Err(failure) => failure.status().is_none(),
        }
    }

    /// Counts what has come; gives the ending when everything has.
    pub(crate) fn end_of(&self, news: &News) -> Option<ExecExit> {
        let stdout = self.stdout.fetch_add(news.stdout.len() as u64, Ordering::AcqRel) + news.stdout.len() as u64;
        let stderr = self.stderr.fetch_add(news.stderr.len() as u64, Ordering::AcqRel) + news.stderr.len() as u64;
        let is_all = stdout >= news.stdout_total && stderr >= news.stderr_total;
        news.end.as_ref().filter(|_| is_all).map(|end| end.exit(&self.attempt))
    }

    /// Passes news on until the end.
    async fn pump(self: Arc<Self>, first: News, sink: SessionSink<ExecEvent>) -> Result<()> {
        let mut news = first;
        let mut exit = None;
        loop {
            let mut events = Vec::new();
            split(&news, |event| events.push(event));
            for event in events {
                if !sink.send(event).await {
                    return Ok(());
                }
            }
            if let Some(exit) = exit.take() {
                self.deliver();
                sink.send(ExecEvent::Exit(exit)).await;
                return Ok(());
            }
            if news.end.is_some() && !self.bulk(&news, &sink).await {
                return Ok(());
            }
            news = match self.ask("", LONG_WAIT).await {
                Ok(Told::News(news)) => news,
                Ok(_) => {
                    self.is_over.store(true, Ordering::Release);
                    return Err(SandboxError::lost(
                        "the command was lost: its folder in the sandbox is gone",
                        sandbox_core::Admitted::Yes,
                    ));
                }
                Err(failure) => return Err(self.shared.explain_loss(&self.handle, failure).await),
            };
            if !news.is_up && news.end.is_none() && news.stdout.is_empty() && news.stderr.is_empty() {
                return Err(SandboxError::lost("the command never started", sandbox_core::Admitted::Unknown));
            }
            exit = self.end_of(&news);
        }
    }

    /// Fetches what is left of much output as files, which is cheaper than many answers. What does not come this way
    /// comes by asking. False when nobody reads any more.
    async fn bulk(&self, news: &News, sink: &SessionSink<ExecEvent>) -> bool {
        type Make = fn(Bytes) -> ExecEvent;
        for (name, have, total, make) in [
            ("out", &self.stdout, news.stdout_total, ExecEvent::Stdout as Make),
            ("err", &self.stderr, news.stderr_total, ExecEvent::Stderr as Make),
        ] {
            let mut skip = have.load(Ordering::Acquire);
            if total.saturating_sub(skip) < BULK_BYTES {
                continue;
            }
            let client = &self.shared.client;
            let request = client.request(Method::GET, &format!("{}/files/download", self.toolbox));
            let request = request.query(&[("path", self.job.output(name))]);
            let Ok(Ok(mut response)) = timeout(SILENCE, client.send(request, Throttle::Other)).await else { continue };
            while let Ok(Ok(Some(mut chunk))) = timeout(SILENCE, response.chunk()).await {
                let skipped = skip.min(chunk.len() as u64);
                skip -= skipped;
                chunk.advance(usize::try_from(skipped).unwrap_or_default());
                let wanted = total - have.load(Ordering::Acquire);
                chunk.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
                have.fetch_add(chunk.len() as u64, Ordering::AcqRel);
                while !chunk.is_empty() {
                    if !sink.send(make(chunk.split_to(chunk.len().min(EVENT_BYTES)))).await {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Its end was told: what it left may go.
    fn deliver(&self) {
        self.is_over.store(true, Ordering::Release);
        if self.is_kept {
            return;
        }
        let size = self.stdout.load(Ordering::Acquire) + self.stderr.load(Ordering::Acquire);
        if size <= LARGE_OUTPUT {
            self.shared.note_delivered(&self.handle.sandbox_id, &self.job.id);
            return;
        }
        let (shared, toolbox, text) = (self.shared.clone(), self.toolbox.clone(), self.job.forget());
        tokio::spawn(async move {
            let deadline = Instant::now() + KILL_WITHIN;
            let _ = shared.script_at(&toolbox, Script { text: &text, within: KILL_WITHIN, deadline }).await;
        });
    }

    async fn kill(&self, is_wanted: Wanted) -> Result<(), Failure> {
        let text = self.job.kill(is_wanted);
        let script = Script { text: &text, within: Duration::from_secs(20), deadline: Instant::now() + KILL_WITHIN };
        self.shared.script_at(&self.toolbox, script).await.map(drop)
    }

    /// Runs a script of control. Exit 3 of it means that the command is over.
    async fn steer(&self, text: &str) -> Result<i32> {
        let script = Script { text, within: Duration::from_secs(20), deadline: Instant::now() + KILL_WITHIN };
        match self.shared.script_at(&self.toolbox, script).await {
            Ok(said) if said.code == 3 => Err(over()),
            Ok(said) => Ok(said.code),
            Err(failure) => Err(self.shared.explain(&self.handle, "reaching a command", failure).await),
        }
    }

    fn ensure_running(&self) -> Result<()> {
        if self.is_over.load(Ordering::Acquire) { Err(over()) } else { Ok(()) }
    }
}

fn over() -> SandboxError {
    SandboxError::invalid_state("the command is over").with_provider(NAME)
}

/// Ends the command when its stream, or the start of it, is dropped before its end.
struct KillOnDrop {
    running: Arc<Running>,
    runtime: Handle,
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if self.running.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = self.running.clone();
        self.runtime.spawn(async move {
            if let Err(failure) = running.kill(Wanted::Nothing).await {
                tracing::debug!(status = failure.status(), "a dropped command could not be ended");
            }
        });
    }
}

struct Control(Arc<Running>);

#[async_trait]
impl SessionControl for Control {
    async fn write(&self, mut data: Bytes) -> Result<()> {
        let running = &self.0;
        running.ensure_running()?;
        // Held while a part is on its way: parts go in order.
        let mut next = running.next_input.lock().await;
        if running.is_closed.load(Ordering::Acquire) {
            return Err(SandboxError::invalid_state("the input is closed").with_provider(NAME));
        }
        while !data.is_empty() {
            let part = data.split_to(data.len().min(INPUT_BYTES));
            let text = running.job.input(*next, &STANDARD.encode(&part));
            // A command that does not read slows its writer down.
            while running.steer(&text).await? == 4 {}
            *next += 1;
        }
        Ok(())
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        let running = &self.0;
        running.ensure_running()?;
        match request {
            ControlRequest::CloseInput => {
                let _next = running.next_input.lock().await;
                if !running.is_closed.swap(true, Ordering::AcqRel) {
                    running.steer(&running.job.close_input()).await?;
                }
            }
            ControlRequest::Signal(signal @ 1..=64) => drop(running.steer(&running.job.signal(signal)).await?),
            ControlRequest::Signal(_) => return Err(SandboxError::invalid_input("signal", "must be 1 to 64")),
            ControlRequest::Kill => {
                let killed = running.kill(Wanted::Exit).await;
                if let Err(failure) = killed {
                    return Err(running.shared.explain(&running.handle, "ending a command", failure).await);
                }
            }
            ControlRequest::Detach if running.is_kept => {}
            _ => return Err(SandboxError::unsupported_control(NAME, None)),
        }
        Ok(ControlReply::default())
    }
}
